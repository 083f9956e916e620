"""How the event loop is shared while an engine's messages come faster than they are handled."""

from __future__ import annotations

import asyncio
import os
import time

from tessera.engine.engine_connection import ROUNDS_BETWEEN_TURNS, TURN_SECONDS, EngineConnection
from tessera.engine.messages import Starting

MESSAGES = 12


class Backlog:
    """A spawned engine whose messages have all arrived, and whose descriptor stays readable."""

    closed = False

    def __init__(self) -> None:
        self.descriptor, self._theirs = os.pipe()
        os.write(self._theirs, b"x")
        self._left = iter(range(MESSAGES))

    def receive(self):
        return (Starting("weights", number, MESSAGES) for number in self._left)

    def on_exit(self, callback):
        """It does not end."""


def test_other_work_has_several_rounds_of_the_loop_between_turns_of_messages():
    rounds: list[int] = []
    """The loop's round that each message was handled in."""

    async def play() -> None:
        now = 0

        def handle(_progress) -> None:
            rounds.append(now)
            time.sleep(TURN_SECONDS * 0.6)

        EngineConnection(Backlog(), lambda _report: None, handle, 10.0)
        while len(rounds) < MESSAGES:
            now += 1
            await asyncio.sleep(0)

    asyncio.run(play())
    assert len(rounds) == MESSAGES
    turns = sorted(set(rounds))
    assert all(rounds.count(turn) <= 2 for turn in turns)  # the second message ends a turn
    assert all(later - earlier > ROUNDS_BETWEEN_TURNS for earlier, later in zip(turns, turns[1:], strict=False))
