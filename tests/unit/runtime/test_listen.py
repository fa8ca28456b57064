"""Addresses, and when the path of a Unix socket is free."""

import socket
from pathlib import Path

import pytest

from burstgate_runtime.listen import SettingsError, parse_listen, refuse_if_taken


@pytest.mark.parametrize(
    ("text", "bind", "target"),
    [
        ("127.0.0.1:50051", "127.0.0.1:50051", "127.0.0.1:50051"),
        ("localhost:0", "localhost:0", "localhost:0"),
        ("[::1]:50051", "[::1]:50051", "[::1]:50051"),
        ("0.0.0.0:50051", "0.0.0.0:50051", "127.0.0.1:50051"),
        ("[::]:50051", "[::]:50051", "[::1]:50051"),
        ("unix:/run/b.sock", "unix:/run/b.sock", "unix:/run/b.sock"),
        ("unix:///run/b.sock", "unix:/run/b.sock", "unix:/run/b.sock"),
        ("unix:b.sock", "unix:b.sock", "unix:b.sock"),
    ],
)
def test_an_address_says_what_to_bind_and_what_to_dial(text: str, bind: str, target: str) -> None:
    listen = parse_listen(text)
    assert (listen.bind, listen.target, listen.is_unix) == (bind, target, text.startswith("unix:"))


@pytest.mark.parametrize(
    "text",
    ["50051", ":50051", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "::1:50051", "[::1]",
     "host:port", "http://x:1", "unix:", "unix:/", "unix:/a/", "unix:a\0b", "127.0.0.1:1 ", "127.0.0.1:١"],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="must be host:port"):
        parse_listen(text)


def test_a_path_too_long_for_a_socket_is_refused_with_its_length() -> None:
    with pytest.raises(SettingsError, match="this one has 200"):
        parse_listen("unix:/" + "x" * 199)


def test_ipv6_host_and_port_come_without_brackets() -> None:
    assert parse_listen("[::1]:9464").host_port == ("::1", 9464)


def test_a_free_path_is_taken_by_nobody(tmp_path: Path) -> None:
    assert refuse_if_taken(parse_listen(f"unix:{tmp_path}/s")) is None


def test_a_socket_that_somebody_answers_on_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        assert refuse_if_taken(parse_listen(f"unix:{path}")) == "another process answers there"
        assert path.is_socket()


def test_a_dead_socket_is_cleared_away(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    assert path.is_socket()
    assert refuse_if_taken(parse_listen(f"unix:{path}")) is None
    assert not path.exists()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    assert refuse_if_taken(parse_listen(f"unix:{path}")) == f"{path} exists and is not a socket"
    assert path.read_text() == "precious"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert "the folder" in str(refuse_if_taken(parse_listen(f"unix:{tmp_path}/no/s")))
