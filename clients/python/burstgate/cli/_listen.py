"""Addresses that `burstgate serve` hands to the services it starts.

Owns the check, made before anything is loaded, that nobody has an address already. The services check again
when they bind; between the two a port may be lost, and then the service says so.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path

# Seen from this machine, a server on every interface is on loopback.
_LOOPBACKS = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - only recognised here
_TCP = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\]):(?P<port>[0-9]{1,5})")
_CONNECT_S = 1.0


class ListenError(Exception):
    """An address that cannot be listened on; the text says why."""


def claim(address: str) -> str:
    """The address, once it is known to be free; port 0 becomes a port that is."""
    if address.startswith("unix:"):
        _refuse_if_answered(address.removeprefix("unix:"))
        return address
    match = _TCP.fullmatch(address)
    if match is None or int(match["port"]) > 65_535:
        raise ListenError(f'{address!r} is neither "host:port" nor "unix:/path"')
    return f"{match['host']}:{_bindable_port(address, match['host'].strip('[]'), int(match['port']))}"


def dial(address: str) -> str:
    """What a client on this machine calls to reach a server that listens on `address`."""
    host, _, port = address.rpartition(":")
    return f"{_LOOPBACKS[host]}:{port}" if host in _LOOPBACKS else address


def _bindable_port(address: str, host: str, port: int) -> int:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ListenError(f"{address}: {error.strerror or error}") from error
    with socket.socket(family, kind, protocol) as probe:
        # As gRPC does: connections that are still closing do not make a port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(where)
            probe.listen()
        except OSError as error:
            raise ListenError(f"{address}: {error.strerror or error}") from error
        return int(probe.getsockname()[1])


def _refuse_if_answered(path: str) -> None:
    if not Path(path).is_socket():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect(path)
        except OSError:
            return  # left by a server that is gone; the service clears it away
    raise ListenError(f"unix:{path}: Address already in use")
