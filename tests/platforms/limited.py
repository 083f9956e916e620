"""Platforms with resources of their own: something each request holds, something each step has so much of."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.platform import Default, ModelFacts, Reason, RequestView, Resource
from tessera.testing import SeparateStrictPlatform, StrictPlatform
from tessera_cpu.platform import CpuPlatform

SLOTS = 3
ROWS = 300
TOKENS = 16


class CommandSlots(Resource):
    """At most SLOTS requests hold one at once."""

    name = "command slots"
    scope = "request"

    def __init__(self) -> None:
        self.holders: set[int] = set()
        self.most = 0

    def fits(self, request: RequestView, num_tokens: int) -> int | Reason:
        return num_tokens if len(self.holders) < SLOTS else "every command slot is taken"

    def take(self, request: RequestView, num_tokens: int) -> None:
        assert request.key not in self.holders
        self.holders.add(request.key)
        self.most = max(self.most, len(self.holders))

    def release(self, request: RequestView) -> None:
        self.holders.remove(request.key)


class StepTokens(Resource):
    """At most TOKENS tokens a step, beside the scheduler's own budget."""

    name = "tokens of a step"
    scope = "step"

    def __init__(self) -> None:
        self.used = self.most = 0

    def begin_step(self) -> None:
        self.used = 0

    def fits(self, request: RequestView, num_tokens: int) -> int | Reason:
        left = TOKENS - self.used
        return min(num_tokens, left) if left else "the step is full"

    def take(self, request: RequestView, num_tokens: int) -> None:
        self.used += num_tokens
        self.most = max(self.most, self.used)

    def release(self, request: RequestView) -> None:
        raise AssertionError("begin_step gives back what a step holds")


class LimitedCpuPlatform(CpuPlatform):
    def __init__(self) -> None:
        self.slots, self.tokens = CommandSlots(), StepTokens()

    def resources(self, model: ModelFacts) -> Sequence[Resource]:
        return (self.slots, self.tokens)


class LimitedStrictPlatform(StrictPlatform):
    def __init__(self) -> None:
        super().__init__()
        self.slots, self.tokens = CommandSlots(), StepTokens()

    def resources(self, model: ModelFacts) -> Sequence[Resource]:
        return (self.slots, self.tokens)


class LimitedSeparatePlatform(SeparateStrictPlatform):
    def __init__(self) -> None:
        super().__init__()
        self.slots, self.tokens = CommandSlots(), StepTokens()

    def resources(self, model: ModelFacts) -> Sequence[Resource]:
        return (self.slots, self.tokens)


class RoomyCpuPlatform(CpuPlatform):
    """Would have more rows and wider steps than core."""

    def defaults(self, model: ModelFacts) -> dict[str, Default]:
        return {
            "scheduler.max_num_seqs": Default(ROWS, "there is room"),
            "scheduler.max_num_batched_tokens": Default(4096, "there is room"),
        }


class Door(Resource):
    name = "door"

    def fits(self, request: RequestView, num_tokens: int) -> int | Reason:
        return "it is shut"

    def take(self, request: RequestView, num_tokens: int) -> None:
        raise AssertionError("it is shut")

    def release(self, request: RequestView) -> None:
        raise AssertionError("it is shut")


class ShutCpuPlatform(CpuPlatform):
    """Lets nobody start."""

    def resources(self, model: ModelFacts) -> Sequence[Resource]:
        return (Door(),)
