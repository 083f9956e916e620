"""What engines say to each other over a connection: frames of msgpack until both have proved to have the cluster's key
and the cache is granted, then pieces of it.

The source sends a random challenge and the versions that it speaks; the other answers with the newest that both do, a
challenge of its own and a proof, the HMAC (RFC 2104) of both under the key; the source answers with its proof. A piece
is a header, so many tokens of a section, or a state, in canonical form or as the blocks that they are in, and the hash
of that (XXH3, 64 bits). Both sides know which pieces follow (CacheFormat.pieces). A header without tokens says that the
source gives up."""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from typing import Any, NoReturn

import msgspec

from tessera.kv_transfer_params import KVTransferParams
from tessera.platform.transfer import CacheFormat, TransferError
from tessera.processes.frames import frame, read_frame
from tessera.processes.peers import keep_alive

VERSIONS = range(1, 2)
"""Of the protocol, which this engine speaks. An engine that speaks a newer one keeps the one before, so that engines
can be upgraded one after the other."""
HANDSHAKE_SECONDS = 10.0
MAX_STRANGER_BYTES = 4096
"""Of a message before the proof."""
MAX_MESSAGE_BYTES = 1 << 20
MAX_PIECE_BYTES = 1 << 28
NONCE_BYTES = 32
PIECE = struct.Struct(">IIQ")
"""Header of a piece: first token, last (exclusive), bytes. Behind these is their hash."""


class TransferChallenge(msgspec.Struct, tag=True):
    """From the source."""

    nonce: bytes
    # Of VERSIONS.
    oldest: int
    newest: int


class TransferHello(msgspec.Struct, tag=True):
    """From whoever wants a cache."""

    nonce: bytes
    version: int
    proof: bytes = b""


class TransferWelcome(msgspec.Struct, tag=True):
    proof: bytes
    # Of its leases.
    lease_seconds: float


class TransferRefusal(msgspec.Struct, tag=True):
    """Why not, as a TransferError has it."""

    message: str


class Waiting(msgspec.Struct, tag=True):
    """There is no room yet for this cache, which is still wanted."""

    request_id: str


class Wanted(msgspec.Struct, tag=True):
    """The tokens of a cache that are wanted."""

    request_id: str
    # Of all tokens of the lease.
    digest: bytes
    format: CacheFormat
    first: int
    # Exclusive.
    last: int
    # Tokens: pieces must begin and end at multiples.
    unit: int
    # TokenStore.block_format of who wants it.
    block_format: str = ""


class Granted(msgspec.Struct, tag=True):
    """Pieces follow."""

    # Of each piece, the last one excepted.
    num_tokens: int
    # Whether pieces are blocks as they are, and not tokens in canonical form.
    as_blocks: bool = False


class Arrived(msgspec.Struct, tag=True):
    """The lease is of no more use."""

    request_id: str


def send(link: socket.socket, message: msgspec.Struct) -> None:
    link.sendall(frame(msgspec.msgpack.encode(message)))


def receive(link: socket.socket, kinds: Any, max_bytes: int = MAX_MESSAGE_BYTES) -> Any:
    """Raises TransferError for what is no such message and for a TransferRefusal, OSError, EOFError."""
    try:
        message = msgspec.msgpack.decode(read_frame(link.recv_into, max_bytes), type=kinds | TransferRefusal)
    except (ValueError, msgspec.MsgspecError) as error:
        raise TransferError("it says something that no engine says") from error
    if isinstance(message, TransferRefusal):
        raise TransferError(message.message[:MAX_STRANGER_BYTES])
    return message


def admit(link: socket.socket, key: bytes, lease_seconds: float) -> None:
    """The source's side. Raises TransferError, OSError, EOFError."""
    link.settimeout(HANDSHAKE_SECONDS)
    challenge = TransferChallenge(secrets.token_bytes(NONCE_BYTES), VERSIONS[0], VERSIONS[-1])
    send(link, challenge)
    hello = receive(link, TransferHello, MAX_STRANGER_BYTES)
    if len(hello.nonce) != NONCE_BYTES or not hmac.compare_digest(hello.proof, _proof(key, "fetch", challenge, hello)):
        refuse(link, "it has another cluster key; --cluster-key-file must name the same secret for all engines")
    if hello.version not in VERSIONS:
        refuse(link, f"it speaks versions {spoken(VERSIONS[0], VERSIONS[-1])} and not {hello.version}")
    send(link, TransferWelcome(_proof(key, "lend", challenge, hello), lease_seconds))
    keep_alive(link)


def refuse(link: socket.socket, message: str) -> NoReturn:
    """Raises TransferError."""
    send(link, TransferRefusal(message))
    raise TransferError(message)


def join(link: socket.socket, key: bytes) -> float:
    """The other side: the seconds of a lease. Raises TransferError, OSError, EOFError."""
    challenge = receive(link, TransferChallenge, MAX_STRANGER_BYTES)
    version = min(challenge.newest, VERSIONS[-1])
    if version < max(challenge.oldest, VERSIONS[0]):
        raise TransferError(
            f"it speaks versions {spoken(challenge.oldest, challenge.newest)}, and this engine "
            f"{spoken(VERSIONS[0], VERSIONS[-1])}"
        )
    hello = TransferHello(secrets.token_bytes(NONCE_BYTES), version)
    hello.proof = _proof(key, "fetch", challenge, hello)
    send(link, hello)
    welcome = receive(link, TransferWelcome, MAX_STRANGER_BYTES)
    if not hmac.compare_digest(welcome.proof, _proof(key, "lend", challenge, hello)):
        raise TransferError("it has another cluster key")
    keep_alive(link)
    lease_seconds: float = welcome.lease_seconds
    return lease_seconds


def spoken(oldest: int, newest: int) -> str:
    return str(oldest) if oldest == newest else f"{oldest} to {newest}"


def _proof(key: bytes, side: str, challenge: TransferChallenge, hello: TransferHello) -> bytes:
    """Of all that was said, so that none of it can be exchanged."""
    said = (side, challenge.nonce, challenge.oldest, challenge.newest, hello.nonce, hello.version)
    return hmac.digest(key, msgspec.msgpack.encode(said), "sha256")


def signature(key: bytes, params: KVTransferParams) -> str:
    """By which an engine knows that another one of its cluster, and not a client, says where a cache is."""
    said = (
        params.remote_engine_id, params.remote_request_id, params.remote_host, params.remote_port,
        params.remote_num_tokens, *(params.remote_state_tokens or ()),
    )  # fmt: skip
    return hmac.digest(key, msgspec.msgpack.encode(said), "sha256").hex()
