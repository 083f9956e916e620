"""Silver: a layout says where the bytes of a block are, so that blocks can be exported, loaded elsewhere and copied
without knowing the backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from types import MappingProxyType

import numpy as np
import torch

from tessera.arrays import Array
from tessera.platform.attention import AttentionBackend, KVLayout
from tessera.reference.dtypes import torch_dtype
from tessera.testing.attention_cases import AttentionCase, launches
from tessera.testing.attention_trial import AttentionTrial
from tessera.testing.conformance.attention import block_sizes, compare, fitted, kept_in, refusal, trial
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, falls_back
from tessera.testing.conformance.target import Target
from tessera.testing.poison import poison

_HALF = 0.51  # of a scale, by which rounding is off at most


def layout_cases(target: Target) -> Iterator[Case]:
    """One for each backend, check and dtype."""
    if target.brings_a_runner:
        return
    for backend in target.backends:
        for dtype in target.platform.capabilities.dtypes:
            for (name, check), kept in product(_CHECKS.items(), kept_in(backend, dtype)):
                yield Case(
                    f"cache/{backend.name}/{name}-{dtype}{kept and f'-over-{kept}'}",
                    "silver",
                    "cache layout",
                    partial(_at_each_size, target, backend, dtype, kept, check),
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

    def exported(self, blocks: list[int]) -> dict[str, torch.Tensor]:
        """Planes in canonical form by their names, flat."""
        planes = self.layout.planes
        parts = np.split(
            self.layout.export(self.read(blocks)), np.cumsum([plane.nbytes for plane in planes])[:-1], axis=1
        )
        return {
            plane.name: torch.from_numpy(np.ascontiguousarray(part)).view(torch_dtype(plane.dtype))
            for plane, part in zip(planes, parts, strict=True)
        }

    @property
    def blocks(self) -> list[int]:
        return sorted({block for table in self.trial.tables for block in table})


def _at_each_size(
    target: Target, backend: AttentionBackend, dtype: str, kept: str, check: Callable[[Stored], None]
) -> Verdict:
    usual = fitted(backend, AttentionCase(((1, 1),), dtype=dtype, kv_dtype=kept))
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
    """The canonical form has keys, then values, by token, head and dim; where there are scales, those first."""
    names = [plane.name for plane in stored.layout.planes]
    if names not in (["k", "v"], ["k_scale", "v_scale", "k", "v"]):
        return  # only its author knows what such planes hold
    size, case = stored.trial.case.block_size, stored.trial.case
    for row, table in enumerate(stored.trial.tables):
        exported = stored.exported(table)
        for name, rows in (("k", stored.trial.keys), ("v", stored.trial.values)):
            expected = rows[row]
            shape = len(table) * size, case.kv_heads
            found = exported[name].reshape(*shape, case.head_dim)[: len(expected)]
            right = torch.equal(found, expected)
            if f"{name}_scale" in exported:
                scale = exported[f"{name}_scale"].reshape(*shape, 1)[: len(expected)]
                right = bool(((found * scale - expected).abs() <= _HALF * scale).all())
            if not right:
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
        poison(plane)
    stored.written([moved[block] for block in old], data)
    made.tables = [[moved[block] for block in table] for table in made.tables]
    compare(how, made, made.attended())


_CHECKS: Mapping[str, Callable[[Stored], None]] = MappingProxyType(
    {"round-trip": _round_trip, "export": _export, "load": _load, "copy": _copy}
)
