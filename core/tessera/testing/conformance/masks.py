"""Masks: a mask is applied to its own row, for its own token and no other (silver)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from tessera.arrays import Array
from tessera.platform.feature import EngineFeature, FeatureState
from tessera.request import Request
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent
from tessera.testing.conformance.target import Target
from tessera.testing.conformance.tiny import VOCAB, TinyRun, prompts_of

_REQUESTS, _UNMASKED, _TOKENS = 5, 2, 12
_KINDS = 23  # of tokens: by their number modulo this


def mask_cases(target: Target) -> Iterator[Case]:
    yield Case("masks/answers", "silver", "masks", partial(_answers, target))


def _answers(target: Target) -> Verdict:
    """Each request may sample other tokens at each place, and other tokens than its neighbours; one has no mask."""
    prompts = prompts_of([5] * _REQUESTS)
    with TinyRun(target, target.exact_dtype, steps_in_flight=2) as plain:
        plain.ask(prompts, _TOKENS, temperature=1.5)
    turns = Turns()
    with TinyRun(target, target.exact_dtype, steps_in_flight=2, engine_features=[turns]) as run:
        if "structured_outputs" in run.started.loaded.unsupported:
            return absent("the platform's own runner does not apply masks")
        run.ask(prompts, _TOKENS, temperature=1.5)
    if turns.problems:
        raise ConformanceError(f"masks: {turns.problems[0]}")
    if target.exact_dtype == "float32" and run.answers[_UNMASKED] != plain.answers[_UNMASKED]:
        raise ConformanceError(
            f"masks: request {_UNMASKED} has no mask, but beside masked ones its answer is {run.answers[_UNMASKED]}, "
            f"not {plain.answers[_UNMASKED]}"
        )
    return PASSED


def _kind(request: int, place: int) -> int:
    """The kind of token that a request may sample at a place of its answer. No two requests have the same kind at the
    same place, and none has the kind that its neighbour had one place before."""
    return (5 * request + place) % _KINDS


class Turns(EngineFeature):
    """Allows each request tokens of one kind, and of the next kind for its next token. problems: tokens that were
    sampled although their mask forbids them."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def begin(self, request: Request) -> FeatureState | None:
        return None if request.key == _UNMASKED else _MaskState(request.key, self.problems)


class _MaskState(FeatureState):
    masks = True

    def __init__(self, request: int, problems: list[str]) -> None:
        self.request, self.problems, self.place = request, problems, 0

    def mask(self, bits: Array) -> None:
        allowed = np.zeros(32 * len(bits), np.uint8)
        allowed[_kind(self.request, self.place) : VOCAB : _KINDS] = 1
        bits &= np.packbits(allowed, bitorder="little").view(np.int32)

    def accept(self, token: int) -> bool:
        if token % _KINDS != _kind(self.request, self.place):
            self.problems.append(
                f"request {self.request} drew token {token} at place {self.place} of its answer, where it is forbidden"
                f"{self._instead(token % _KINDS)}"
            )
        self.place += 1
        return True

    def _instead(self, kind: int) -> str:
        if self.place and kind == _kind(self.request, self.place - 1):
            return "; the mask of the token before allows it, so the mask came one step late"
        others = [other for other in range(_REQUESTS) if kind == _kind(other, self.place)]
        return f"; the mask of request {others[0]} allows it, so a row got another row's mask" if others else ""
