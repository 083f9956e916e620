"""Whose job is next, and whose is refused."""

from __future__ import annotations

import asyncio

import pytest

from tessera.errors import OverloadedError
from tessera.processes.fair_queue import FairQueue


async def order(queue: FairQueue[str]) -> list[str]:
    return [await queue.get() for _ in range(len(queue))]


async def test_owners_take_turns_however_many_jobs_one_has() -> None:
    queue: FairQueue[str] = FairQueue(1000, "full")
    for number in range(4):
        queue.put("flood", f"flood {number}", 1)
    queue.put("a", "a 0", 1)
    queue.put("b", "b 0", 1)
    queue.put("a", "a 1", 1)
    assert await order(queue) == ["flood 0", "a 0", "b 0", "flood 1", "a 1", "flood 2", "flood 3"]


async def test_an_owner_fills_its_part_and_leaves_the_rest_to_others() -> None:
    queue: FairQueue[str] = FairQueue(100, "full")
    queue.put("flood", "as large as it likes", 90)
    with pytest.raises(OverloadedError):
        queue.put("flood", "more", 1)
    queue.put("a", "a", 5)
    queue.put("a", "a again", 5)
    with pytest.raises(OverloadedError):
        queue.put("a", "too much together", 5)
    assert await order(queue) == ["as large as it likes", "a", "a again"]
    queue.put("flood", "again", 90)


async def test_dropped_jobs_make_room_and_are_not_done() -> None:
    queue: FairQueue[str] = FairQueue(100, "full")
    for name in ("first", "second"):
        queue.put("a", name, 12)
    queue.drop("a", "first")
    queue.drop("a", "unknown")
    queue.put("a", "third", 12)
    assert await order(queue) == ["second", "third"]
    queue.drop("a", "third")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.01)
