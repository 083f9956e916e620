"""A stranger's feature with both halves, as a plugin brings it: requests that prefer even tokens, or draw nothing else.

`--features even=3` enables it; three such requests may run at once. Requests set `push` (added to the logits of even
tokens, in the worker) or `even` (draw so many even tokens and end; in the engine) in extra_args or vllm_xargs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.platform import (
    Array,
    Column,
    ConfigError,
    EngineFeature,
    Failure,
    Feature,
    FeatureState,
    Launch,
    Reason,
    Request,
    RequestError,
    RequestView,
    Resource,
    Tensor,
    WorkerFeature,
    hookimpl,
)

if TYPE_CHECKING:
    from tessera.plugins.registry import Registry

EVEN_PLUGIN = "tests.platforms.fake_feature"
EVEN = Feature(engine=f"{EVEN_PLUGIN}:EvenInEngine", worker=f"{EVEN_PLUGIN}:EvenInWorker")
BIT = "even"
COLUMN = "push"
FIELD = "even"
LOOKS = 3  # until a request is ready


@hookimpl
def extensions(registry: Registry) -> None:
    registry.features.add("even", f"{EVEN_PLUGIN}:EVEN", level=0)


class EvenInWorker(WorkerFeature):
    """Adds a row's `push` to the logits of tokens with an even number. calls: of its methods in steps, by name."""

    def __init__(self, config: Any, option: str) -> None:
        self.calls: list[str] = []

    def columns(self) -> Sequence[Column]:
        return (Column(COLUMN, "float32"),)

    def keys(self) -> frozenset[str]:
        return frozenset((BIT,))

    def before(self, launch: Launch) -> None:
        self.calls.append("before")
        assert launch.columns[COLUMN].shape == launch.rows.shape

    def logits(self, launch: Launch, logits: Tensor) -> Tensor:
        self.calls.append("logits")
        pushed = logits.clone()
        pushed[:, ::2] += launch.columns[COLUMN][:, None]
        return pushed

    def after(self, launch: Launch, sampled: Tensor) -> None:
        self.calls.append("after")
        assert sampled.shape == launch.rows.shape


class EvenInEngine(EngineFeature):
    """most: requests that may have the field at once."""

    def __init__(self, config: Any, option: str) -> None:
        if not option.isdigit() and option:
            raise ConfigError(f"even={option}: the option must be a whole number.")
        self.places = Places(int(option or 1))

    def fields(self) -> frozenset[str]:
        return frozenset((FIELD,))

    def resources(self) -> Sequence[Resource]:
        return (self.places,)

    def begin(self, request: Request) -> FeatureState | None:
        wanted = request.columns.get(FIELD)
        if wanted is None:
            return None
        if wanted < 1:
            raise RequestError(f"even must be at least 1, got {wanted:g}.", param=f"extra_args.{FIELD}")
        self.places.keys.add(request.key)
        return OnlyEven(int(wanted))


class Places(Resource):
    name = "places for even requests"

    def __init__(self, most: int) -> None:
        self.most, self.keys, self.taken, self.most_taken = most, set[int](), set[int](), 0

    def fits(self, request: RequestView, num_tokens: int) -> int | Reason:
        return num_tokens if request.key not in self.keys or len(self.taken) < self.most else "all are taken"

    def take(self, request: RequestView, num_tokens: int) -> None:
        if request.key in self.keys:
            self.taken.add(request.key)
            self.most_taken = max(self.most_taken, len(self.taken))

    def release(self, request: RequestView) -> None:
        self.taken.discard(request.key)


class OnlyEven(FeatureState):
    """looks: how often it was asked whether the request is ready. 13 is unlucky, as a grammar that is found out to be
    wrong late. 17 comes to a dead end after two tokens."""

    masks = True

    def __init__(self, wanted: int) -> None:
        self.wanted, self.drawn, self.looks = wanted, 0, 0

    def ready(self) -> bool:
        self.looks += 1
        if self.wanted == 13 and self.looks > 1:
            raise RequestError("even must not be 13.", param=f"extra_args.{FIELD}")
        return self.looks >= LOOKS

    def mask(self, bits: Array) -> None:
        bits &= np.int32(0 if self.failure else 0x55555555)

    def accept(self, token: int) -> bool:
        self.drawn += 1
        return token % 2 == 0

    @property
    def complete(self) -> bool:
        return self.drawn >= self.wanted

    @property
    def failure(self) -> Failure | None:
        return Failure("dead_end", "No 17 are even.") if (self.wanted, self.drawn) == (17, 2) else None
