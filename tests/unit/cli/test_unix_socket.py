"""--uds: who may connect, what stands in the way, what is left behind."""

from __future__ import annotations

import os
import socket
import stat

import pytest

from tessera.cli.listen import listen, socket_path, unix_listener, url_of
from tessera.errors import PortError


def connect(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(path))


def left_behind(path):
    """As a server that was killed leaves it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
        dead.listen()


def test_it_is_private_takes_connections_and_is_gone_afterwards(tmp_path):
    path = tmp_path / "socket"
    with listen("0.0.0.0", 80, str(path)) as listener:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert (url_of(listener), url_of(listener, tls=True)) == ("http://localhost", "https://localhost")
        assert socket_path(listener) == str(path)
        connect(path)
    assert not path.exists()


def test_what_a_dead_server_left_is_replaced(tmp_path):
    path = tmp_path / "socket"
    left_behind(path)
    with pytest.raises(ConnectionRefusedError):
        connect(path)
    with unix_listener(str(path), 4):
        connect(path)


def test_a_live_server_is_left_alone(tmp_path):
    path = tmp_path / "socket"
    with unix_listener(str(path), 4):
        with pytest.raises(
            PortError, match="Another server is listening on --uds .*; stop it or choose another path"
        ) as caught:
            unix_listener(str(path), 4).__enter__()
        assert caught.value.exit_code == 7
        connect(path)


def test_one_that_is_too_busy_to_accept_is_live(tmp_path):
    path = tmp_path / "socket"
    with unix_listener(str(path), 0):
        clients = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(3)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(str(path))
        with pytest.raises(PortError, match="Another server is listening"):
            unix_listener(str(path), 4).__enter__()
        for client in clients:
            client.close()


def test_only_its_own_socket_is_removed(tmp_path):
    path = tmp_path / "socket"
    with unix_listener(str(path), 4):
        path.unlink()
        left_behind(path)
    assert path.exists()
    path.unlink()
    with unix_listener(str(path), 4):
        path.unlink()


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda path: path.write_text("mine"), "already exists and is not a socket; choose another path"),
        (lambda path: path.mkdir(), "already exists and is not a socket"),
        (lambda path: path.symlink_to("/dev/null"), "already exists and is not a socket"),
    ],
    ids=["file", "folder", "link"],
)
def test_what_is_no_socket_is_never_removed(tmp_path, make, what):
    path = tmp_path / "socket"
    make(path)
    with pytest.raises(PortError, match=what):
        unix_listener(str(path), 4).__enter__()
    assert os.path.lexists(path)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("no/such/folder", "cannot be created: No such file or directory"),
        ("x" * 120, "cannot be created: AF_UNIX path too long"),
    ],
)
def test_a_path_that_cannot_be_is_one_line(tmp_path, name, what):
    with pytest.raises(PortError, match=what):
        unix_listener(str(tmp_path / name), 4).__enter__()
