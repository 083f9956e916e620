"""How hosts prove to each other that they have the cluster's key."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import msgspec
import pytest

from tessera._version import __version__
from tessera.errors import ConfigError, PlatformError
from tessera.executor import joining
from tessera.executor.joining import Challenge, Hello, NotAdmittedError, Welcome, admit, join
from tessera.processes.frames import frame, read_frame
from tessera.processes.interfaces import interface_of
from tessera.processes.peers import read_key

HELLO = Hello(1, 3, "/tmp/somewhere", __version__)


def met(own: bytes, other: bytes, hello: Hello = HELLO) -> tuple[object, object]:
    """What each side comes to: host 0 a Hello or its error, the other a socket or its error."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ends: list[object] = [None]

        def arrive() -> None:
            try:
                with join("127.0.0.1", listener.getsockname()[1], hello, other):
                    ends[0] = "joined"
            except (PlatformError, OSError, EOFError) as error:
                ends[0] = error

        thread = threading.Thread(target=arrive)
        thread.start()
        link, _ = listener.accept()
        with link:
            try:
                own_end: object = admit(link, own)
            except (NotAdmittedError, OSError, EOFError) as error:
                own_end = error
            if isinstance(own_end, Exception):
                link.close()
            thread.join()
        return own_end, ends[0]


@pytest.mark.parametrize("key", [b"", b"secret"])
def test_those_with_one_key_meet(key: bytes) -> None:
    hello, other = met(key, key)
    assert isinstance(hello, Hello)
    assert (hello.host, hello.rank, hello.folder) == (1, 3, "/tmp/somewhere")
    assert other == "joined"


@pytest.mark.parametrize(("own", "other"), [(b"a", b"b"), (b"", b"b"), (b"a", b"")])
def test_those_with_two_do_not(own: bytes, other: bytes) -> None:
    refused, error = met(own, other)
    assert isinstance(refused, NotAdmittedError)
    assert isinstance(error, PlatformError)
    assert "must name the same secret on all hosts" in error.message


def test_versions_must_be_equal() -> None:
    refused, error = met(b"a", b"a", msgspec.structs.replace(HELLO, version="0.0.1"))
    assert isinstance(refused, NotAdmittedError)
    assert isinstance(error, PlatformError)
    assert f"it runs version 0.0.1, and host 0 version {__version__}" in error.message


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n" + bytes(50), frame(b"\xc1"), frame(b""), frame(b"[" * 90)])
def test_what_is_no_host_is_turned_away(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(sent)
        with pytest.raises(NotAdmittedError):
            admit(ours, b"a")


def test_one_that_says_nothing_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "HANDSHAKE_SECONDS", 0.05)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(TimeoutError):
        admit(ours, b"a")


def answered_with(proof: bytes, key: bytes) -> None:
    """Joins what answers with this proof."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            link, _ = listener.accept()
            with link:
                link.sendall(frame(msgspec.msgpack.encode(Challenge(bytes(32), __version__))))
                read_frame(link.recv_into)
                link.sendall(frame(msgspec.msgpack.encode(Welcome(proof))))
                link.recv(1)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            join("127.0.0.1", listener.getsockname()[1], HELLO, key).close()
        finally:
            thread.join()


def test_a_host_0_without_the_key_is_not_believed() -> None:
    with pytest.raises(PlatformError, match="has another cluster key, so it is not host 0"):
        answered_with(bytes(32), b"a")


def test_a_proof_is_of_one_side_and_of_all_that_was_said() -> None:
    challenge = Challenge(bytes(32), __version__)
    proofs = {
        joining._proof(key, side, challenge, hello)
        for key in (b"a", b"b")
        for side in ("host", "host 0")
        for hello in (HELLO, *(msgspec.structs.replace(HELLO, **{name: value}) for name, value in OTHERS.items()))
    }
    assert len(proofs) == 2 * 2 * (1 + len(OTHERS))


OTHERS = {"host": 2, "rank": None, "folder": "/", "version": "1", "nonce": b"n"}


def test_the_file_of_the_key(tmp_path: Path) -> None:
    assert read_key("") == b""
    file = tmp_path / "key"
    file.write_bytes(b" secret\n")
    assert read_key(str(file)) == b"secret"
    for wrong in (b"", b" \n", bytes(5000)):
        file.write_bytes(wrong)
        with pytest.raises(ConfigError, match="must hold 1 to 4096 bytes"):
            read_key(str(file))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_key(str(tmp_path / "none"))


def test_the_interface_of_an_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") is None
    assert interface_of("::1") is None
