"""How hosts join: over TCP, and before anything else is said each side proves that it has the cluster's key.

Host 0 sends a random challenge, the other answers with one of its own and with a proof, the HMAC (RFC 2104) of both
under the key, and host 0 answers with its proof. A process that does not have the key learns the version and no more.
What follows is neither encrypted nor signed, and torch's own connections are not guarded at all: the network must be
one that others cannot reach."""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from tessera._version import __version__
from tessera.errors import PlatformError
from tessera.platform.platform import WorkerSpec
from tessera.processes.frames import frame, read_frame
from tessera.processes.peers import keep_alive

HANDSHAKE_SECONDS = 10.0
MAX_HANDSHAKE_BYTES = 8192
NONCE_BYTES = 32


class Challenge(msgspec.Struct, tag=True):
    """From host 0."""

    nonce: bytes
    version: str


class Hello(msgspec.Struct, tag=True):
    """From another host, of the connection itself or of one of its workers."""

    # number of the host, from 1
    host: int
    # of the worker; None for the host's own connection
    rank: int | None
    # on the host, for files of its workers
    folder: str
    version: str
    nonce: bytes = b""
    proof: bytes = b""


class Welcome(msgspec.Struct, tag=True):
    proof: bytes


class Refusal(msgspec.Struct, tag=True):
    """Why the other host may not join, in one line."""

    message: str


class HostWork(msgspec.Struct, tag=True):
    """From host 0: the workers that a host starts."""

    specs: Sequence[WorkerSpec]


class Leave(msgspec.Struct, tag=True):
    """From host 0: the server has ended."""


class NotAdmittedError(Exception):
    """A connection that does not join, with the reason in one line."""


def admit(link: socket.socket, key: bytes) -> Hello:
    """Host 0's side. Raises NotAdmittedError, OSError, EOFError."""
    link.settimeout(HANDSHAKE_SECONDS)
    challenge = Challenge(secrets.token_bytes(NONCE_BYTES), __version__)
    _send(link, challenge)
    hello = _receive(link, Hello)
    if len(hello.nonce) != NONCE_BYTES or not hmac.compare_digest(hello.proof, _proof(key, "host", challenge, hello)):
        message = "it has another cluster key; --cluster-key-file must name the same secret on all hosts."
        _refuse(link, message)
    if hello.version != __version__:
        _refuse(link, f"it runs version {hello.version}, and host 0 version {__version__}; install the same on all.")
    _send(link, Welcome(_proof(key, "host 0", challenge, hello)))
    keep_alive(link)
    return hello


def _refuse(link: socket.socket, message: str) -> None:
    with suppress(OSError):
        _send(link, Refusal(message))
    raise NotAdmittedError(message)


def join(address: str, port: int, hello: Hello, key: bytes) -> socket.socket:
    """The other side. Raises PlatformError if this host may not join, OSError and EOFError if host 0 is not there."""
    link = socket.create_connection((address, port), timeout=HANDSHAKE_SECONDS)
    try:
        challenge = _receive(link, Challenge)
        hello = msgspec.structs.replace(hello, nonce=secrets.token_bytes(NONCE_BYTES))
        hello.proof = _proof(key, "host", challenge, hello)
        _send(link, hello)
        answer = _receive(link, Welcome | Refusal)
        if isinstance(answer, Refusal):
            raise PlatformError(f"host 0 does not let this host join: {answer.message}")
        if not hmac.compare_digest(answer.proof, _proof(key, "host 0", challenge, hello)):
            raise PlatformError(f"what answers at {address} port {port} has another cluster key, so it is not host 0.")
        keep_alive(link)
    except NotAdmittedError as error:
        link.close()
        raise PlatformError(f"what answers at {address} port {port} is no host 0: {error}") from error
    except BaseException:
        link.close()
        raise
    return link


def _proof(key: bytes, side: str, challenge: Challenge, hello: Hello) -> bytes:
    """Of all that was said, so that none of it can be exchanged."""
    said = msgspec.msgpack.encode(
        (side, challenge.nonce, hello.nonce, hello.host, hello.rank, hello.folder, hello.version)
    )
    return hmac.digest(key, said, "sha256")


def _send(link: socket.socket, message: Any) -> None:
    link.sendall(frame(msgspec.msgpack.encode(message)))


def _receive(link: socket.socket, kind: Any) -> Any:
    try:
        return msgspec.msgpack.decode(read_frame(link.recv_into, MAX_HANDSHAKE_BYTES), type=kind)
    except (ValueError, msgspec.MsgspecError) as error:
        raise NotAdmittedError("it says something else than a host that joins.") from error
