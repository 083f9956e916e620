"""Finds the checkpoint tensors that a module's weights are made of.

transformers 5 stores some weights differently from checkpoints (experts stacked, gate and up joined, other names) and
can convert them back. That conversion runs once, on tensors that hold row numbers instead of weights; where a number
ends up shows where the row is in the checkpoint.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, rename_source_key, revert_weight_conversion

from tessera.arrays import Array
from tessera.models.fields import RefusedTypeError
from tessera.platform.quantization import Part

NESTED = ("model.language_model.", "model.text_model.", "language_model.")
"""What comes before the names of a text model beside others."""
_BELOW = "language_model.model."
"""What older files have before the names of a text model below its head."""
_BASE = "model."
"""What sources of weights put before the names of a decoder, whatever it is in the files."""


@dataclass(frozen=True)
class _Run:
    """Consecutive rows of a checkpoint tensor that are also consecutive in a weight. first: the number of the first
    row; start: its place in the tensor, which has `rows` rows."""

    first: int
    count: int
    name: str
    start: int
    rows: int


class CheckpointNames:
    """The checkpoint names of one model that is served in `dtype`. nested: it is the text model of a checkpoint that
    has others beside it. text: what the names of a text model begin with that is a part of the model. stored: the names
    in the checkpoint, of which transformers knows more forms than the one that it writes."""

    def __init__(
        self, model: PreTrainedModel, dtype: str, *, nested: bool = False, text: str = "", stored: Iterable[str] = ()
    ) -> None:
        self._float32 = {*(model._keep_in_fp32_modules_strict or ())}
        if dtype == "float16":
            self._float32 |= {*(model._keep_in_fp32_modules or ())}
        self._prefix = f"{model.base_model_prefix}."
        self._nested, self._text = nested, text
        self._headless = model.base_model is model  # and the checkpoint may have been saved with a head
        self._forms = _Forms(model, stored)
        self._first: dict[int, int] = {}
        numbered: dict[str, Tensor] = {}
        total = 0
        for name, weight in model.state_dict(keep_vars=True).items():
            if id(weight) not in self._first:
                self._first[id(weight)] = total
                total += _rows(weight)
            numbered[name] = _numbered(weight, self._first[id(weight)])
        starts = np.array(sorted(self._first.values()))
        self._runs: dict[int, list[_Run]] = defaultdict(list)
        for name, numbers in revert_weight_conversion(model, numbered).items():
            if numbers.dim() < 2 or numbers.shape[-1] == 1:  # otherwise it is transposed
                for run in _runs(name, numbers.flatten().numpy(), starts):
                    self._runs[run.first].append(run)

    def keeps_float32(self, name: str) -> bool:
        """Whether transformers keeps a weight or module of this name in float32."""
        return any(pattern in name for pattern in self._float32)

    def candidates(self, weight: Tensor) -> list[str]:
        """All names that a matrix may have in a checkpoint."""
        return [name for part in self.joins(weight)[0] for name in (part.name, *part.also)]

    def joins(self, weight: Tensor, dtype: str | None = None) -> list[list[Part]]:
        """The checkpoint parts that make up a weight, joined along the rows; for stacked experts, one list for each.
        dtype: to load them in, if it is not the model's. Raises RefusedTypeError for a weight that is not made of whole
        rows."""
        tail = tuple(weight.shape[-1:]) if weight.dim() > 1 else ()
        number, end = self._first[id(weight)], self._first[id(weight)] + _rows(weight)
        parts: list[tuple[int, Part]] = []
        while number < end:
            runs = self._runs.get(number)
            if runs is None:
                raise RefusedTypeError(
                    f"transformers makes its weights of shape {tuple(weight.shape)} in a way unknown here"
                )
            parts.append((runs[0].count, self._part(runs, weight, tail, dtype)))
            number += runs[0].count
        return _grouped(parts, weight)

    def _part(self, runs: Sequence[_Run], weight: Tensor, tail: tuple[int, ...], dtype: str | None) -> Part:
        run = runs[0]
        whole = tuple(weight.shape) if run.rows == _rows(weight) else (run.rows, *tail)
        names = [run.name, *(other.name for other in runs[1:] if (other.start, other.rows) == (run.start, run.rows))]
        names += self._forms.others(run.name)
        for outer in (self._text, _BELOW) if self._text else ():
            names += [_BASE + name.removeprefix(outer) for name in names if name.startswith(outer)]
        names += [name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix)]
        names += [self._prefix + name for name in names if self._headless]
        if self._nested:
            bare = [name.removeprefix(self._prefix) for name in names]
            names += [outer + name for outer in NESTED for name in dict.fromkeys(names + bare)]
        rows = None if run.count == run.rows else (run.start, run.start + run.count)
        return Part(names[0], whole, rows, fill=_fill(run.name, weight), also=tuple(names[1:]), dtype=dtype)


class _Forms:
    """What a checkpoint's tensors are called in transformers' module."""

    def __init__(self, model: PreTrainedModel, stored: Iterable[str]) -> None:
        names = sorted(stored)  # some renamings depend on the first name of a group
        self._renamings: list[WeightRenaming] = []
        self._prefix, self._state = model.base_model_prefix, model.state_dict() if names else {}
        if names:
            transforms = get_model_conversion_mapping(model)
            self._renamings = [transform for transform in transforms if isinstance(transform, WeightRenaming)]
        self._stored: dict[str, list[str]] = defaultdict(list)
        for name in names:
            self._stored[self._in_module(name)].append(name)

    def _in_module(self, name: str) -> str:
        return rename_source_key(name, self._renamings, [], self._prefix, self._state)[0]

    def others(self, name: str) -> list[str]:
        """The checkpoint's names for what has this one in the form that transformers writes."""
        return [*self._stored.get(self._in_module(name), ())] if self._stored else []


def _rows(weight: Tensor) -> int:
    return prod(weight.shape[:-1]) if weight.dim() > 1 else prod(weight.shape)


def _numbered(weight: Tensor, first: int) -> Tensor:
    """The numbers of a weight's rows, in its shape, except that the last of several dimensions is 1."""
    shape = (*weight.shape[:-1], 1) if weight.dim() > 1 else tuple(weight.shape)
    return torch.arange(first, first + _rows(weight)).view(shape)


def _runs(name: str, numbers: Array, weights: Array) -> Iterator[_Run]:
    """Splits numbers into runs. weights: the first row numbers of weights; no run extends into the next weight."""
    cuts = np.flatnonzero((np.diff(numbers) != 1) | np.isin(numbers[1:], weights)) + 1
    for start, end in pairwise([0, *cuts.tolist(), len(numbers)]):
        yield _Run(int(numbers[start]), end - start, name, start, len(numbers))


def _grouped(parts: Sequence[tuple[int, Part]], weight: Tensor) -> list[list[Part]]:
    if weight.dim() < 3 or len(parts) == 1:
        return [[part for _, part in parts]]
    joins: list[list[Part]] = [[]]
    filled = 0
    for count, part in parts:
        if filled == weight.shape[1]:
            joins.append([])
            filled = 0
        joins[-1].append(part)
        filled += count
    return joins


def _fill(name: str, weight: Tensor) -> float | None:
    """The constant that a dummy load uses for norms and biases, for which random values would not do; else None."""
    if weight.dim() > 1:
        return None
    return 1.0 if name.endswith("weight") else 0.0
