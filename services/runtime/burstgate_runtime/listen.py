"""Addresses to listen on: what may be written, and when a Unix socket's path is free.

A path is free if nothing is there, or a socket that nobody answers on. The gRPC core would remove
any socket at the path without asking, a living server's too.
"""

import contextlib
import dataclasses
import errno
import re
import socket
import sys
from pathlib import Path


class SettingsError(ValueError):
    """A setting that cannot be used; the text names it and says what is allowed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Listen:
    """One address."""

    bind: str
    """What the server binds: "host:port" or "unix:/path"."""
    target: str
    """What a client on this machine dials; the loopback address where the server binds every one."""

    @property
    def is_unix(self) -> bool:
        """Whether it is a Unix socket."""
        return self.bind.startswith("unix:")

    @property
    def path(self) -> Path:
        """Path of the Unix socket."""
        return Path(self.bind.removeprefix("unix:"))

    @property
    def host_port(self) -> tuple[str, int]:
        """Host (without brackets) and port of a TCP address."""
        host, _, port = self.bind.rpartition(":")
        return host.strip("[]"), int(port)

    def __str__(self) -> str:
        return self.bind


_ALLOWED = 'must be host:port with a port from 0 to 65535, such as "127.0.0.1:50051" or "[::1]:50051", or unix:/path'
_TCP = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\]):(?P<port>[0-9]{1,5})")
_LOOPBACKS = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104  (only recognised here)
# Size of sun_path, less its closing zero byte.
_MAX_PATH_BYTES = 103 if sys.platform == "darwin" else 107


def parse_listen(text: str | Listen) -> Listen:
    """Reads an address; raises SettingsError saying what is allowed."""
    if isinstance(text, Listen):
        return text
    if text.startswith("unix:"):
        return _parse_unix(text)
    match = _TCP.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise SettingsError(_ALLOWED)
    return Listen(bind=text, target=f"{_LOOPBACKS.get(match['host'], match['host'])}:{match['port']}")


def refuse_if_taken(listen: Listen) -> str | None:
    """Says why a Unix socket's path cannot be bound, or clears a dead socket there and returns None."""
    path = listen.path
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist"
    if not path.exists() and not path.is_symlink():
        return None
    if not path.is_socket():
        return f"{path} exists and is not a socket"
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError as error:
            if error.errno not in (errno.ECONNREFUSED, errno.ENOENT):
                return f"{path}: {error.strerror or error}"
        else:
            return "another process answers there"
    path.unlink(missing_ok=True)
    return None


def _parse_unix(text: str) -> Listen:
    path = text.removeprefix("unix:")
    path = path.removeprefix("//")
    if not path or "\0" in path or path.endswith("/"):
        raise SettingsError(_ALLOWED)
    if len(path.encode()) > _MAX_PATH_BYTES:
        raise SettingsError(
            f"the path of a Unix socket may take {_MAX_PATH_BYTES} bytes, this one has {len(path.encode())}"
        )
    return Listen(bind=f"unix:{path}", target=f"unix:{path}")
