"""Blocks that are lent come back when they have arrived, when nobody asks for them any more, or when the engine wants
them, and never while somebody reads them."""

from __future__ import annotations

import time

import pytest

from tessera.platform.transfer import Lease, TokenBlocks
from tessera.transfer.leases import LeaseTable


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def table(*names: str) -> LeaseTable:
    leases = LeaseTable(30.0)
    for name in names:
        leases.add(Lease(name, TokenBlocks(0, ()), 5, name.encode()))
    return leases


def ended(leases: LeaseTable) -> list[str]:
    return [lease.request_id for lease in leases.take_ended()]


def test_a_lease_lasts_as_long_as_there_are_signs(clock: list[float]) -> None:
    leases = table("a", "b")
    clock[0] += 29
    assert leases.renew("a")
    assert not leases.renew("unknown")
    clock[0] += 1
    assert ended(leases) == ["b"]
    assert (ended(leases), leases.num_expired) == ([], 1)
    clock[0] += 29
    assert (ended(leases), leases.num_expired) == (["a"], 2)
    assert not leases.renew("a")


def test_what_has_arrived_comes_back_at_once(clock: list[float]) -> None:
    leases = table("a", "b")
    leases.end("b")
    leases.end("unknown")
    assert (ended(leases), leases.num_expired) == (["b"], 0)
    assert [lease.request_id for lease in leases.leases()] == ["a"]


def test_only_who_knows_its_tokens_may_read(clock: list[float]) -> None:
    leases = table("a")
    for name, digest in (("a", b"b"), ("b", b"a"), ("", b"")):
        with leases.reading(name, digest) as lease:
            assert lease is None
    with leases.reading("a", b"a") as lease:
        assert lease is not None
        assert lease.num_tokens == 5


def test_what_is_read_stays_until_it_has_been(clock: list[float]) -> None:
    leases = table("a", "b")
    with leases.reading("a", b"a"), leases.reading("a", b"a"):
        clock[0] += 1000
        assert ended(leases) == ["b"]
        assert leases.call_back()
        assert leases.is_called_back("a")
        assert ended(leases) == []
        with leases.reading("a", b"a") as lease:
            assert lease is None, "nobody begins with one that is called back"
    assert ended(leases) == ["a"]


def test_reading_is_a_sign(clock: list[float]) -> None:
    leases = table("a")
    with leases.reading("a", b"a"):
        clock[0] += 1000
    assert ended(leases) == []
    clock[0] += 30
    assert ended(leases) == ["a"]


def test_the_oldest_is_called_back_first(clock: list[float]) -> None:
    leases = table("a", "b")
    assert leases.call_back()
    assert not leases.renew("a")
    assert leases.is_called_back("a")
    assert not leases.is_called_back("b")
    assert (ended(leases), leases.num_expired) == (["a"], 0)
    assert leases.call_back()
    assert not leases.call_back()
    assert leases.is_called_back("unknown")
