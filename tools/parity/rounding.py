"""How far a narrow dtype moves the logits from float32: Tessera compared with transformers, on Tessera's answers."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor

from tools.parity.modes import Numbered, Subject

EXACT = "float32"
DTYPES = ("bfloat16",)  # supported by every platform of the table
FAR = 4.0
MOST_TYPICAL = 1.1
MORE_FAR = 0.02

ROUNDING_MODES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {"alone": {"max_num_seqs": 1}, "mixed batch": {}, "chunked": {"max_num_batched_tokens": 16}}
)
"""The ways of splitting the work, as flags."""


class Narrowed:
    """A transformers model with weights representable in the dtype, in float32 and in the dtype."""

    def __init__(self, model: Any, dtype: str) -> None:
        self._narrow = _with_weights(model, lambda weight: weight.to(getattr(torch, dtype)))
        self._exact = _with_weights(self._narrow, Tensor.float)

    @torch.inference_mode()
    def read(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The float32 logits of every position, and the dtype's error, both [len(tokens), vocabulary]."""
        text = torch.tensor([tokens])
        exact, narrow = (model(text, use_cache=False).logits[0].float() for model in (self._exact, self._narrow))
        return exact, narrow - exact


def _with_weights(model: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy with changed weights; other tensors (the frequencies of rotary embeddings) are unchanged."""
    changed = copy.deepcopy(model)
    for weight in changed.parameters():
        weight.data = change(weight.data)
    return changed


@dataclass(frozen=True)
class Rounded:
    """The root mean square error of each position's logits, [positions], for Tessera and transformers. missing: number
    of positions that were not computed."""

    ours: Tensor
    theirs: Tensor
    missing: int

    @classmethod
    def from_logits(cls, model: Narrowed, tokens: Sequence[int], logits: Sequence[tuple[int, Tensor]]) -> Self:
        """logits: (position, [vocabulary]) as computed."""
        exact, theirs = model.read(tokens)
        positions = [position for position, _ in logits]
        missing = len(set(range(len(tokens) - 1)) - set(positions))  # the last token is never fed back
        ours = torch.stack([found.float() for _, found in logits]) - exact[positions]
        return cls(_rms(ours), _rms(theirs[positions]), missing)


def _rms(error: Tensor) -> Tensor:
    return error.square().mean(-1).sqrt()


@dataclass(frozen=True)
class RoundingCell:
    """A line of the table. typical: the median of the positions' errors. far: the number of positions with more than
    FAR times transformers' median error, as when rounding selects another expert. their_*: transformers'."""

    platform: str
    family: str
    mode: str
    prompts: int
    positions: int
    missing: int
    typical: float
    their_typical: float
    far: int
    their_far: int

    @classmethod
    def from_answers(cls, where: tuple[str, str, str], rounded: Sequence[Rounded]) -> Self:
        """where: platform, family, mode."""
        ours, theirs = torch.cat([one.ours for one in rounded]), torch.cat([one.theirs for one in rounded])
        typical = float(theirs.median())
        return cls(
            *where,
            prompts=len(rounded),
            positions=len(ours),
            missing=sum(one.missing for one in rounded),
            typical=float(ours.median()),
            their_typical=typical,
            far=int((ours > FAR * typical).sum()),
            their_far=int((theirs > FAR * typical).sum()),
        )

    @property
    def ok(self) -> bool:
        near = self.typical <= MOST_TYPICAL * self.their_typical
        return near and self.far <= self.their_far + MORE_FAR * self.positions and self.missing == 0


def measure_rounding(subject: Subject, model: Any, dtype: str, mode: str) -> list[Rounded]:
    """Measures Tessera's answers to the subject's prompts in the dtype. model: transformers', in float32."""
    numbered, narrowed = Numbered(), Narrowed(model, dtype)
    with dataclasses.replace(subject, dtype=dtype).engine(**ROUNDING_MODES[mode]) as engine:
        ran = engine.run(numbered(subject.answers))
    return [
        Rounded.from_logits(narrowed, [*answer.prompt, *ran.tokens[name]], ran.record.logits[name])
        for name, answer in numbered.answers.items()
    ]
