"""Silver: a backend of latent attention, against a definition in float64 that shares no code with the reference, over a
cache poisoned with NaN; and its fused layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tessera.ops.tensors import torch_dtype
from tessera.platform.device import Reason
from tessera.platform.latent import LatentBackend, LatentInput
from tessera.platform.launch import Launch
from tessera.reference.latent import ReferenceLatentAttention
from tessera.testing.compare import TOLERANCES, difference
from tessera.testing.conformance.attention import FarBlocks, block_sizes, compared_far_apart, placed_trial
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent, falls_back, named
from tessera.testing.conformance.leaks import kept_per_call
from tessera.testing.conformance.target import Target, reference_ops
from tessera.testing.latent import SIZES, LatentCase, LatentTrial, latent_cases

_OWN_SIZES = ("served", "mixed-wide-values", "decode-wide-values")  # whose sizes are the point
_ONCE = ("one-row", "many-heads", "served")
"""Launches of sizes that have nothing to do with the size of blocks: one is enough."""
_MOVED = ("decode-plain", "mixed-plain")
"""Launches after which blocks are moved, and attention is run again by the same layer."""
_STYLES = ("", "pairs", "half")  # of rotary embeddings


def latent_attention_cases(target: Target) -> Iterator[Case]:
    """One for each case and dtype of a backend of latent attention."""
    if target.brings_a_runner:
        return
    for backend in target.latent_backends:
        for dtype in target.platform.capabilities.dtypes:
            if _refusal(backend, _fitted(backend, LatentCase(((1, 1),), dtype=dtype))) is not None:
                continue
            for name, _ in latent_cases():
                yield _case(backend, f"{name}-{dtype}", partial(_check, target, backend, name, dtype))
            yield _case(backend, f"far-apart-{dtype}", partial(_far_apart, target, backend, dtype))
            for style in _STYLES:
                fused = f"fused-{style or 'unturned'}-{dtype}"
                yield _case(backend, fused, partial(_check_fused, target, backend, style, dtype))


def _case(backend: LatentBackend, name: str, check: partial[Verdict]) -> Case:
    return Case(f"latent/{backend.name}/{name}", "silver", "latent attention", check)


def _refusal(backend: LatentBackend, case: LatentCase) -> Reason | None:
    return backend.supports(case.spec())


def _fitted(backend: LatentBackend, case: LatentCase) -> LatentCase:
    """The case, with the first sizes that the backend supports."""
    sizes = (replace(case, **sizes) for sizes in SIZES)
    return next((one for one in sizes if _refusal(backend, one) is None), case)


def _check(target: Target, backend: LatentBackend, name: str, dtype: str) -> Verdict:
    def sized(block_size: int) -> LatentCase:
        case = dict(latent_cases(block_size, dtype))[name]
        return case if name in _OWN_SIZES else _fitted(backend, case)

    usual = sized(16)
    reason = _refusal(backend, usual)
    if reason is not None:
        return falls_back(reason)
    sizes = block_sizes(backend, usual)
    for size in sizes[-1:] if name in _ONCE else sizes:
        made = placed_trial(target, backend, sized(size), LatentTrial)
        if made.shaping is not None and not made.shaping.holds(made.case):
            return absent("the platform's launches hold no drafts")
        _compare(name, made, made.run())
        if name in _ONCE:
            continue
        _compare(f"{name}, into out= filled with NaN", made, made.attended(into_nan=True))
        if name == "mixed-plain":
            left = kept_per_call(made.attended)
            if left:
                raise ConformanceError(f"latent attention: each launch keeps {left} tensors that it has made")
        if name in _MOVED:
            made.move()
            _compare(f"{name}, over blocks that were moved", made, made.attended())
    return PASSED


class FarLatents(FarBlocks, LatentTrial):
    """Of latent attention."""


def _far_apart(target: Target, backend: LatentBackend, dtype: str) -> Verdict:
    case = _fitted(backend, LatentCase(((1, 1),), dtype=dtype))
    size = block_sizes(backend, case)[0]
    case = replace(case, rows=((1, 2 * size + 1), (5, size + 5)), block_size=size)
    return compared_far_apart(target, backend, case, LatentTrial, FarLatents)


def _compare(how: str, trial: LatentTrial, results: list[Tensor]) -> None:
    case, right = trial.case, trial.expected()
    for row, (part, expected) in enumerate(zip(results, right, strict=True)):
        text = difference(part.double(), expected, TOLERANCES[case.dtype])
        if text is not None:
            raise ConformanceError(
                f"latent attention, {how}, {trial.case.spec().place}, blocks of {case.block_size}, row {row}: {text}",
                named(
                    queries=trial.queries, latents=trial.latents, weights=trial.drawn, result=results, expected=right
                ),
            )


def _check_fused(target: Target, backend: LatentBackend, style: str, dtype: str) -> Verdict:
    case = replace(_fitted(backend, LatentCase(((1, 20), (7, 30)), dtype=dtype)), style=style)
    reason = _refusal(backend, case)
    if reason is not None:
        return falls_back(reason)
    made = placed_trial(target, backend, replace(case, block_size=block_sizes(backend, case)[-1]), LatentTrial)
    found = _fused(made)
    expected = _fused(LatentTrial(ReferenceLatentAttention(), made.case, ops=reference_ops()))
    text = difference(found, expected, TOLERANCES[dtype])
    if text is not None:
        said = f"fused latent attention, {f'turned by {style}' if style else 'unturned'}, {dtype}: {text}"
        raise ConformanceError(said, named(result=found, expected=expected))
    return PASSED


def _fused(trial: LatentTrial) -> Tensor:
    """What the layer returns for fixed random projections: [tokens, H value_dim], on the host."""
    trial.run()
    case, random = trial.case, torch.Generator().manual_seed(1)
    sizes = case.heads * case.query_dim, case.rank + case.rope_dim
    rows = [
        torch.randn(tokens, sum(sizes), generator=random).to(torch_dtype(case.dtype)) for tokens, _ in trial.case.rows
    ]

    def fused(x: Tensor, launch: Launch) -> Tensor:
        projected = LatentInput(*x.split(sizes, dim=-1))
        mixed: Tensor = trial.layer.fused(projected, launch.positions, trial.caches, launch.plans[0])
        return mixed

    return torch.cat(trial.by_row(rows, fused))
