"""Caches over TCP: what arrives is what was there, and what does not arrive is said."""

from __future__ import annotations

import socket
import time

import msgspec
import numpy as np
import pytest

from tessera.arrays import int32
from tessera.kv_transfer_params import KVTransferParams
from tessera.platform.transfer import CacheFormat, Fetch, LayerFormat, PlaneFormat, TokenBlocks, TransferError
from tessera.processes.frames import frame, read_frame
from tessera.transfer import shared_memory, tcp, wire
from tests.unit.transfer.source import DIGEST, FORM, Relay, Side, end, sides, wait

NUMBERS = np.random.default_rng(3).random((6000, 2), np.float32)


@pytest.fixture(autouse=True, params=["tcp", "memory"])
def over(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to an engine of this host, but where a test stands between the two engines."""
    monkeypatch.setattr(shared_memory, "is_available", lambda: request.param == "memory")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "PIECE_BYTES", 1000)


def pair(num_tokens: int = 151, **config: object) -> tuple[Side, Side]:
    source, target = Side(24, num_tokens, **config), Side(32, num_tokens, **config)  # type: ignore[arg-type]
    source.store.numbers[:] = NUMBERS[:num_tokens]
    return source, target


def through(params: KVTransferParams, relay: Relay, key: bytes = b"key") -> KVTransferParams:
    moved = msgspec.structs.replace(params, remote_port=relay.port)
    return msgspec.structs.replace(moved, remote_signature=wire.signature(key, moved))


@pytest.mark.parametrize(("first", "last"), [(0, 128), (32, 128), (96, 128)])
def test_tokens_arrive_in_pieces_of_both_units(first: int, last: int) -> None:
    source, target = pair()
    with sides(source, target):
        fetch = target.connector.fetch(source.lend(151), DIGEST)
        assert end(fetch, last, first) == ""
        assert (fetch.num_tokens, fetch.num_bytes) == (last - first, (last - first) * 8)
        assert np.array_equal(target.store.numbers[first:last], NUMBERS[first:last])
        assert not target.store.numbers[:first].any()
        assert not target.store.numbers[last:].any()
        assert source.leases.num_bytes_sent == (last - first) * 8
        wait(lambda: bool(source.leases.take_ended()))
        assert source.leases.num_expired == 0


def test_whoever_waits_for_room_keeps_the_lease() -> None:
    source, target = pair(lease_seconds=1.0)
    with sides(source, target):
        fetch = target.connector.fetch(source.lend(151), DIGEST)
        begin = time.monotonic()
        while time.monotonic() < begin + 1.5:
            assert not source.leases.take_ended()
            time.sleep(0.05)
        assert end(fetch, 128) == ""


def test_a_lease_that_has_expired_is_said() -> None:
    source, target = pair(lease_seconds=1.0)
    with sides(source, target):
        params = source.lend(151)
        wait(lambda: bool(source.leases.take_ended()))
        assert "it has no such cache any more" in end(target.connector.fetch(params, DIGEST), 128)


def test_who_needs_nothing_ends_the_lease() -> None:
    source, target = pair()
    with sides(source, target):
        fetch = target.connector.fetch(source.lend(151), DIGEST)
        fetch.cancel()
        wait(lambda: bool(source.leases.take_ended()))
        assert source.leases.num_expired == 0


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (CacheFormat("other", FORM.layers), "it serves another model"),
        (CacheFormat("model", (LayerFormat(0, (PlaneFormat("k", "int8", (("dim", 8),)),)),)), "other keys and values"),
    ],
)
def test_caches_of_another_form_are_refused(form: CacheFormat, said: str) -> None:
    source, target = Side(24, 151), Side(32, 151, form=form)
    with sides(source, target):
        fetch = target.connector.fetch(source.lend(151), DIGEST)
        assert said in end(fetch, 128)
        assert fetch.num_tokens == 0
        assert source.leases.leases(), "another engine may still come"


def test_other_tokens_and_tokens_that_there_are_not_are_refused() -> None:
    source, target = pair()
    with sides(source, target):
        params = source.lend(151)
        assert "other tokens" in end(target.connector.fetch(params, b"another prompt"), 128)
        assert "it has tokens 0 to 151 only" in end(target.connector.fetch(params, DIGEST), 160)


def test_a_source_that_ends_in_the_middle_leaves_what_has_arrived_whole() -> None:
    source, target = pair(6000)
    with sides(source, target):
        relay = Relay(source.connector.port, lambda done, data: None if done > 20_000 else data)
        fetch = target.connector.fetch(through(source.lend(6000), relay), DIGEST)
        error = end(fetch, 5984)
        assert "has closed the connection" in error or "does not answer" in error
        assert 0 < fetch.num_tokens < 5984
        assert np.array_equal(target.store.numbers[: fetch.num_tokens], NUMBERS[: fetch.num_tokens])
        assert not target.store.numbers[fetch.num_tokens :].any()


def test_a_damaged_piece_is_noticed_and_not_written() -> None:
    source, target = pair(6000)

    def damage(done: int, data: bytes) -> bytes:
        place = 20_000 - done
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :] if 0 <= place < len(data) else data

    with sides(source, target):
        fetch = target.connector.fetch(through(source.lend(6000), Relay(source.connector.port, damage)), DIGEST)
        error = end(fetch, 5984)
        assert "have arrived damaged" in error or "it sends tokens" in error
        assert 0 < fetch.num_tokens < 20_000 // 8
        assert np.array_equal(target.store.numbers[: fetch.num_tokens], NUMBERS[: fetch.num_tokens])
        assert not target.store.numbers[fetch.num_tokens :].any()


def alike(num_tokens: int, formats: tuple[str, str] = ("as rows", "as rows")) -> tuple[Side, Side]:
    """Engines with equal blocks."""
    source, target = Side(32, num_tokens), Side(32, num_tokens)
    source.store.numbers[:] = NUMBERS[:num_tokens]
    source.store.block_format, target.store.block_format = formats
    return source, target


@pytest.mark.parametrize(("first", "last"), [(0, 128), (32, 96), (0, 5984)])
def test_equal_blocks_travel_as_they_are(first: int, last: int) -> None:
    source, target = alike(6000)
    with sides(source, target):
        fetch = target.connector.fetch(source.lend(6000), DIGEST)
        assert end(fetch, last, first) == ""
        assert (fetch.num_tokens, fetch.num_bytes) == (last - first, (last - first) * 8)
        assert np.array_equal(target.store.numbers[first:last], NUMBERS[first:last])
        assert not target.store.numbers[:first].any()
        assert not target.store.numbers[last:].any()
        assert source.store.num_pieces == target.store.num_pieces == 0, "nothing was copied"


@pytest.mark.parametrize("formats", [("as rows", "as columns"), ("as rows", ""), ("", "as rows"), ("", "")])
def test_unlike_blocks_travel_in_canonical_form(formats: tuple[str, str]) -> None:
    source, target = alike(6000, formats)
    with sides(source, target):
        assert end(target.connector.fetch(source.lend(6000), DIGEST), 5984) == ""
        assert np.array_equal(target.store.numbers[:5984], NUMBERS[:5984])
        assert source.store.num_pieces == target.store.num_pieces > 1


def test_a_damaged_block_is_noticed() -> None:
    source, target = alike(6000)

    def damage(done: int, data: bytes) -> bytes:
        place = 20_000 - done
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :] if 0 <= place < len(data) else data

    with sides(source, target):
        fetch = target.connector.fetch(through(source.lend(6000), Relay(source.connector.port, damage)), DIGEST)
        error = end(fetch, 5984)
        assert "have arrived damaged" in error or "it sends tokens" in error
        assert 0 < fetch.num_tokens < 20_000 // 8
        assert np.array_equal(target.store.numbers[: fetch.num_tokens], NUMBERS[: fetch.num_tokens])


def test_a_slow_receiver_holds_the_source_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read at the source is at most what its two buffers and the sockets hold ahead."""
    monkeypatch.setattr(tcp, "PIECE_BYTES", 1 << 20)
    source, target = Side(24, 1 << 22), Side(32, 1 << 22)  # 32 MiB
    ahead: list[int] = []

    def slowly(number: int) -> None:
        time.sleep(0.01)
        ahead.append(source.store.num_pieces - number)

    target.store.before = slowly
    with sides(source, target):
        assert end(target.connector.fetch(source.lend(1 << 22), DIGEST), 1 << 22) == ""
    assert len(ahead) > 30
    assert max(ahead) <= 2 + 2 + 12


def test_blocks_that_are_called_back_end_the_transfer() -> None:
    source, target = pair(6000)
    source.store.before = lambda number: number == 5 and source.leases.call_back() and None  # type: ignore[assignment]
    with sides(source, target):
        fetch = target.connector.fetch(source.lend(6000), DIGEST)
        assert "its blocks were needed there" in end(fetch, 5984)
        assert 0 < fetch.num_tokens < 5984
        wait(lambda: bool(source.leases.take_ended()))


def test_a_cancelled_fetch_writes_nothing_more() -> None:
    source, target = pair(6000)
    target.store.before = lambda number: time.sleep(0.01)
    with sides(source, target):
        fetch = target.connector.fetch(source.lend(6000), DIGEST)
        fetch.start(TokenBlocks(0, (int32(),)), 0, 5984)
        wait(lambda: fetch.num_tokens > 0)
        fetch.cancel()
        before = target.store.numbers.copy()
        assert fetch.is_done()
        time.sleep(0.05)
        assert np.array_equal(target.store.numbers, before)


# ---- who may


def test_another_key_gets_nothing() -> None:
    source, target = Side(24, 151), Side(32, 151, key=b"other")
    with sides(source, target):
        params = source.lend(151)
        signed = msgspec.structs.replace(params, remote_signature=wire.signature(b"other", params))
        assert "another cluster key" in end(target.connector.fetch(signed, DIGEST), 128)


def test_a_stranger_learns_the_versions_and_no_more() -> None:
    source = Side(24, 151)
    with sides(source), socket.create_connection(("127.0.0.1", source.connector.port)) as link:
        source.lend(151)
        challenge = wire.receive(link, wire.TransferChallenge)
        assert (challenge.oldest, challenge.newest) == (wire.VERSIONS[0], wire.VERSIONS[-1])
        link.sendall(frame(msgspec.msgpack.encode(wire.Wanted("lease", DIGEST, FORM, 0, 128, 32))))
        with pytest.raises((EOFError, ConnectionError)):
            read_frame(link.recv_into)


@pytest.mark.parametrize("field", ["remote_host", "remote_port", "remote_request_id", "remote_num_tokens"])
def test_a_client_cannot_send_an_engine_elsewhere(field: str) -> None:
    other = {"remote_host": "127.0.0.2", "remote_port": 9, "remote_request_id": "x", "remote_num_tokens": 3}[field]
    source, target = pair()
    with sides(source, target), socket.create_server(("127.0.0.1", 0)) as nobody:
        fetch = target.connector.fetch(msgspec.structs.replace(source.lend(151), **{field: other}), DIGEST)
        assert "remote_signature" in end(fetch, 128)
        nobody.settimeout(0)
        with pytest.raises(BlockingIOError):
            nobody.accept()


def test_without_a_key_only_this_host_is_asked() -> None:
    source, target = Side(24, 151, key=b""), Side(32, 151, key=b"")
    with sides(source, target):
        params = source.lend(151)
        elsewhere = msgspec.structs.replace(params, remote_host="192.0.2.1")
        assert "only engines of this host are asked" in end(target.connector.fetch(elsewhere, DIGEST), 128)
        assert end(target.connector.fetch(params, DIGEST), 128) == ""


# ---- versions


def fetched_from(challenge: wire.TransferChallenge) -> tuple[Fetch, bytes]:
    """A fetch from a source that speaks other versions, and what it is told."""
    target = Side(32, 151)
    with sides(target), socket.create_server(("127.0.0.1", 0)) as listener:
        params = KVTransferParams(remote_host="127.0.0.1", remote_port=listener.getsockname()[1])
        params = msgspec.structs.replace(params, remote_signature=wire.signature(b"key", params))
        fetch = target.connector.fetch(params, DIGEST)
        link, _ = listener.accept()
        with link:
            wire.send(link, challenge)
            try:
                said = bytes(read_frame(link.recv_into))
            except EOFError:
                said = b""
        wait(fetch.is_done)
    return fetch, said


@pytest.mark.parametrize(("oldest", "newest"), [(1, 1), (1, 9)])
def test_the_newest_version_that_both_speak_is_spoken(oldest: int, newest: int) -> None:
    _, said = fetched_from(wire.TransferChallenge(b"n" * 32, oldest, newest))
    assert msgspec.msgpack.decode(said, type=wire.TransferHello).version == wire.VERSIONS[-1]


@pytest.mark.parametrize(("oldest", "newest"), [(2, 9), (0, 0)])
def test_versions_that_have_nothing_in_common_are_said(oldest: int, newest: int) -> None:
    fetch, said = fetched_from(wire.TransferChallenge(b"n" * 32, oldest, newest))
    assert said == b""
    assert f"it speaks versions {wire.spoken(oldest, newest)}, and this engine 1" in str(fetch.error())


def test_a_version_that_was_not_offered_is_refused() -> None:
    source = Side(24, 151)
    with sides(source), socket.create_connection(("127.0.0.1", source.connector.port)) as link:
        challenge = wire.receive(link, wire.TransferChallenge)
        hello = wire.TransferHello(b"n" * 32, 9)
        hello.proof = wire._proof(b"key", "fetch", challenge, hello)
        wire.send(link, hello)
        with pytest.raises(TransferError, match="it speaks versions 1 and not 9"):
            wire.receive(link, wire.TransferWelcome)
