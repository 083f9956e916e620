"""Silver: a layout says where the bytes of a block are, so that blocks can be exported, loaded elsewhere and copied
without knowing the backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from tessera.arrays import Array
from tessera.platform.attention import AttentionBackend, KVLayout
from tessera.reference.dtypes import torch_dtype
from tessera.testing.attention_cases import AttentionCase, launches
from tessera.testing.attention_trial import AttentionTrial
from tessera.testing.conformance.attention import block_sizes, compare, fitted, refusal, trial
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, falls_back
from tessera.testing.conformance.target import Target


def layout_cases(target: Target) -> Iterator[Case]:
    """One for each backend, check and dtype."""
    if target.brings_a_runner:
        return
    for backend in target.backends:
        for dtype in target.platform.capabilities.dtypes:
            for name, check in (("round-trip", _round_trip), ("export", _export), ("load", _load), ("copy", _copy)):
                yield Case(
                    f"cache/{backend.name}/{name}-{dtype}",
                    "silver",
                    "cache layout",
                    partial(_at_each_size, target, backend, dtype, check),
                )


@dataclass
class Stored:
    """A trial whose tokens are written, and its layout."""

    trial: AttentionTrial
    layout: KVLayout

    def read(self, blocks: list[int]) -> Array:
        """[n, nbytes] uint8, as the planes have them."""
        planes = self.trial.caches[0]
        parts = [plane[blocks].cpu().contiguous().flatten(1).view(torch.uint8).numpy() for plane in planes]
        return np.concatenate(parts, axis=1)

    def written(self, blocks: list[int], data: Array) -> None:
        """The inverse of read."""
        ends = np.cumsum([plane.nbytes for plane in self.layout.planes])[:-1]
        for cache, plane, part in zip(
            self.trial.caches[0], self.layout.planes, np.split(data, ends, axis=1), strict=True
        ):
            typed = torch.from_numpy(np.ascontiguousarray(part)).view(torch_dtype(plane.dtype))
            cache[blocks] = typed.view(len(blocks), *plane.shape).to(cache.device)

    @property
    def blocks(self) -> list[int]:
        return sorted({block for table in self.trial.tables for block in table})


def _at_each_size(target: Target, backend: AttentionBackend, dtype: str, check: Callable[[Stored], None]) -> Verdict:
    usual = fitted(backend, AttentionCase(((1, 1),), dtype=dtype))
    reason = refusal(backend, usual)
    if reason is not None:
        return falls_back(reason)
    for size in block_sizes(backend, usual):
        case = replace(usual, rows=launches(size)["mixed"], block_size=size)
        made = trial(target, backend, case)
        made.run()
        check(Stored(made, backend.kv_cache_layout(case.spec().cache, size)))
    return PASSED


def _round_trip(stored: Stored) -> None:
    """Any bytes, out and back."""
    layout = stored.layout
    data = np.random.default_rng(0).integers(0, 256, (3, layout.nbytes), dtype=np.uint8)
    if not (layout.load(layout.export(data)) == data).all():
        raise ConformanceError("what was exported and loaded again is not what it was")


def _export(stored: Stored) -> None:
    """The canonical form has keys, then values, by token, head and dim."""
    names = [plane.name for plane in stored.layout.planes]
    if names != ["k", "v"]:
        return  # only its author knows what such planes hold
    size = stored.trial.case.block_size
    for row, table in enumerate(stored.trial.tables):
        data = stored.layout.export(stored.read(table))
        planes = np.split(data, 2, axis=1)
        for name, plane, rows in zip(names, planes, (stored.trial.keys, stored.trial.values), strict=True):
            expected = rows[row]
            flat = torch.from_numpy(np.ascontiguousarray(plane)).view(expected.dtype)
            found = flat.reshape(len(table) * size, *expected.shape[1:])[: len(expected)]
            if not torch.equal(found, expected):
                raise ConformanceError(
                    f"plane {name!r} of exported blocks of {size} tokens does not hold row {row}'s tokens in order",
                    {"expected": expected, "result": found.contiguous()},
                )


def _load(stored: Stored) -> None:
    """Exported blocks, loaded into others: attention over those is the same."""
    _move(stored, "attention over loaded blocks", lambda data: stored.layout.load(stored.layout.export(data)))


def _copy(stored: Stored) -> None:
    """The bytes of blocks, copied into others."""
    _move(stored, "attention over copied blocks", lambda data: data)


def _move(stored: Stored, how: str, through: Callable[[Array], Array]) -> None:
    made, old = stored.trial, stored.blocks
    data = through(stored.read(old))
    moved = dict(zip(old, reversed(old), strict=True))
    for plane in made.caches[0]:
        plane.fill_(torch.nan)
    stored.written([moved[block] for block in old], data)
    made.tables = [[moved[block] for block in table] for table in made.tables]
    compare(how, made, made.attended())
