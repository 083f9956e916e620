"""The engine halves of the enabled features, asked as one, and what they hold for a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tessera.arrays import Array
from tessera.kv_transfer_params import KVTransferParams
from tessera.platform.feature import EngineFeature, Failure, FeatureCounter, FeatureState
from tessera.platform.launch import Resource
from tessera.request import Request
from tessera.step import SchedulerOutput

if TYPE_CHECKING:
    from tessera.platform.loaded_model import LoadedModel


class RequestFeatures:
    """What the enabled features do for one request. masks: whether any of them restricts its tokens. halves: the
    features that do, each with its state."""

    __slots__ = ("_masking", "_states", "halves", "masks")

    def __init__(self, states: Sequence[FeatureState] = (), halves: Sequence[EngineFeature] = ()) -> None:
        """halves: of each state, its feature's."""
        self._states = states
        self.halves = {half: state for half, state in zip(halves, states, strict=False) if state.masks}
        self._masking = [state for state in states if state.masks]
        self.masks = bool(self._masking)

    def ready(self) -> bool:
        """Raises RequestError if the request can never start."""
        return all(state.ready() for state in self._states)

    def columns(self) -> dict[str, float]:
        """Values for the features' own columns. Asked when the request gets a row."""
        return {name: value for state in self._states for name, value in state.columns().items()}

    def finishing(self, row: int, num_tokens: int) -> KVTransferParams | None:
        """What the first of them has for the client that has anything."""
        told = (state.finishing(row, num_tokens) for state in self._states)
        return next((params for params in told if params is not None), None)

    def ended(self) -> None:
        for state in self._states:
            state.ended()

    def num_allowed(self, drafts: Array) -> int:
        """How many of the drafts all of them allow, from the first on."""
        return min(state.num_allowed(drafts) for state in self._masking)

    def mask(self, bits: Array, drafts: Array) -> None:
        """Clears the bits of tokens that must not be sampled: in bits[i] after the first i drafts, which all of them
        allow. Nothing is cleared after a draft that completes the answer, or that nothing can follow."""
        for state in self._masking:
            state.mask(bits[0])
            accepted = 0
            while accepted < len(drafts) and not state.complete and state.failure is None:
                allowed = state.accept(int(drafts[accepted]))
                assert allowed, "a draft that num_allowed() did not allow"
                accepted += 1
                if not state.complete:
                    state.mask(bits[accepted])
            if accepted:
                state.rollback(accepted)

    def accept(self, token: int) -> bool:
        """False if one of them does not allow the token."""
        for state in self._masking:  # noqa: SIM110 - once a token, where a generator takes longer
            if not state.accept(token):
                return False
        return True

    @property
    def complete(self) -> bool:
        for state in self._masking:  # noqa: SIM110 - as above
            if state.complete:
                return True
        return False

    @property
    def failure(self) -> Failure | None:
        """Of the first that has one."""
        for state in self._masking:
            if (failure := state.failure) is not None:
                return failure
        return None


NOTHING = RequestFeatures()


class EngineFeatures:
    """halves: in the order of --features. fields: of requests that they serve. num_words: int32 words of a mask."""

    def __init__(self, halves: Sequence[EngineFeature] = (), vocab_size: int = 0) -> None:
        self._halves = halves
        self.fields = frozenset[str]().union(*(half.fields() for half in halves))
        self.num_words = -(-vocab_size // 32)

    def started(self, loaded: LoadedModel) -> None:
        for half in self._halves:
            half.started(loaded)

    def check(self, args: Mapping[str, str]) -> None:
        """args: Request.feature_args. Raises RequestError if a feature cannot use its own."""
        for half in self._halves:
            half.check(args)

    def resources(self) -> list[Resource]:
        return [resource for half in self._halves for resource in half.resources()]

    def counters(self) -> list[FeatureCounter]:
        return [counter for half in self._halves for counter in half.counters()]

    def poll(self) -> None:
        for half in self._halves:
            half.poll()

    def make_room(self) -> bool:
        """Whether any of them gives up something that it holds."""
        gave_up = [half.make_room() for half in self._halves]
        return any(gave_up)

    def begin(self, request: Request) -> RequestFeatures:
        """Raises RequestError for a request that one of them cannot serve."""
        begun = [(half, state) for half in self._halves if (state := half.begin(request)) is not None]
        return RequestFeatures([state for _, state in begun], [half for half, _ in begun]) if begun else NOTHING

    def scheduled(self, step: SchedulerOutput, row_of: Callable[[int], int]) -> None:
        for half in self._halves:
            half.scheduled(step, row_of)

    def retired(self, seconds: float, num_tokens: int) -> None:
        for half in self._halves:
            half.retired(seconds, num_tokens)

    def mask(self, asking: Sequence[RequestFeatures], bits: Array) -> None:
        """Clears the bits of tokens that must not be sampled next: bits[i] for asking[i]. Each feature is asked once
        for all of its requests."""
        for half in self._halves:
            places = [place for place, features in enumerate(asking) if half in features.halves]
            states = [asking[place].halves[half] for place in places]
            if len(places) == len(asking):
                half.mask(states, bits)
            elif places:
                own = bits[places]
                half.mask(states, own)
                bits[places] = own

    def all_allowed(self, rows: int) -> Array:
        """Masks that allow every token: [rows, num_words] int32."""
        return np.full((rows, self.num_words), -1, np.int32)
