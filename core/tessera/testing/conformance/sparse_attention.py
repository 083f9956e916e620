"""Silver: backends of indexers, and of latent attention over selected tokens, against definitions in float64 that share
no code with the reference, over a cache poisoned with NaN; and their fused layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tessera.ops.tensors import torch_dtype
from tessera.platform.device import Reason
from tessera.platform.latent import LatentInput
from tessera.platform.launch import Launch
from tessera.platform.sparse_attention import IndexerBackend, IndexerInput, SparseLatentBackend, SparseLatentInput
from tessera.reference.sparse_attention import ReferenceIndexer, ReferenceSparseLatentAttention
from tessera.testing.compare import TOLERANCES, difference
from tessera.testing.conformance.attention import FarBlocks, block_sizes, compared_far_apart, placed_trial
from tessera.testing.conformance.case import (
    PASSED,
    Case,
    ConformanceError,
    Verdict,
    absent,
    described,
    falls_back,
    named,
)
from tessera.testing.conformance.target import Target, reference_ops
from tessera.testing.latent import SIZES
from tessera.testing.sparse_attention import (
    INDEXER_SIZES,
    IndexerCase,
    IndexerTrial,
    SparseLatentCase,
    SparseLatentTrial,
    indexer_cases,
    sparse_latent_cases,
)

_MOVED = ("decode-plain", "mixed-plain")
"""Launches after which blocks are moved, and the same layer is run again."""
_STYLES = ("", "pairs", "half")  # of rotary embeddings
_EXCHANGED = 1  # tokens of a query that rounding may exchange for others of nearly the same scores, in fused layers
_FUSED_ROWS = (1, 20), (7, 30)


def sparse_attention_cases(target: Target) -> Iterator[Case]:
    """One for each case and dtype of a backend."""
    if target.brings_a_runner:
        return
    for dtype in target.platform.capabilities.dtypes:
        for indexer in (one for one in target.backends if isinstance(one, IndexerBackend)):
            if _refusal(indexer, _fitted(indexer, IndexerCase(((1, 1),), dtype=dtype))) is None:
                for name, _ in indexer_cases():
                    yield _case(indexer, f"{name}-{dtype}", partial(_check_indexer, target, indexer, name, dtype))
                yield _case(indexer, f"far-apart-{dtype}", partial(_indexer_far_apart, target, indexer, dtype))
                for style in _STYLES:
                    fused = f"fused-{style or 'unturned'}-{dtype}"
                    yield _case(indexer, fused, partial(_check_fused_indexer, target, indexer, style, dtype))
        for backend in (one for one in target.backends if isinstance(one, SparseLatentBackend)):
            if _refusal(backend, _fitted(backend, SparseLatentCase(((1, 1),), dtype=dtype))) is None:
                for name, _ in sparse_latent_cases():
                    yield _case(backend, f"{name}-{dtype}", partial(_check_latents, target, backend, name, dtype))
                yield _case(backend, f"far-apart-{dtype}", partial(_latents_far_apart, target, backend, dtype))
                yield _case(backend, f"fused-{dtype}", partial(_check_fused_latents, target, backend, dtype))


def _case(backend: Any, name: str, check: partial[Verdict]) -> Case:
    return Case(f"sparse/{backend.name}/{name}", "silver", "sparse attention", check)


def _refusal(backend: Any, case: Any) -> Reason | None:
    reason: Reason | None = backend.supports(case.spec())
    return reason


def _fitted(backend: Any, case: Any) -> Any:
    """The case, with the first sizes that the backend supports."""
    sizes = INDEXER_SIZES if isinstance(case, IndexerCase) else SIZES
    made = (replace(case, **one) for one in sizes)
    return next((one for one in made if _refusal(backend, one) is None), case)


# ---- indexers


def _check_indexer(target: Target, backend: IndexerBackend, name: str, dtype: str) -> Verdict:
    def sized(block_size: int) -> IndexerCase:
        case = dict(indexer_cases(block_size, dtype))[name]
        fitted: IndexerCase = case if case.heads == 1 else _fitted(backend, case)
        return fitted

    usual = sized(16)
    reason = _refusal(backend, usual)
    if reason is not None:
        return falls_back(reason)
    for size in block_sizes(backend, usual):
        made = placed_trial(target, backend, sized(size), IndexerTrial)
        if made.shaping is not None and not made.shaping.holds(made.case):
            return absent("the platform's launches hold no drafts")
        _judge(name, made, made.run())
        if name in _MOVED:
            made.move()
            _judge(f"{name}, over blocks that were moved", made, made.attended())
    return PASSED


class FarKeys(FarBlocks, IndexerTrial):
    """Of an indexer."""


def _indexer_far_apart(target: Target, backend: IndexerBackend, dtype: str) -> Verdict:
    case = _far(backend, IndexerCase(((1, 1),), dtype=dtype))
    try:
        made = placed_trial(target, backend, case, FarKeys)
    except (OSError, RuntimeError) as error:  # some devices have no error of their own for it
        return absent(f"there is no memory for blocks that lie far apart: {described(error)}")
    _judge("over blocks that lie far apart", made, made.run())
    return PASSED


def _far(backend: Any, case: Any) -> Any:
    fitted = _fitted(backend, case)
    size = block_sizes(backend, fitted)[0]
    return replace(fitted, rows=((1, 2 * size + 1), (5, size + 5)), block_size=size)


def _judge(how: str, trial: IndexerTrial, results: list[Tensor]) -> None:
    """Raises ConformanceError unless each query's tokens are those with the best scores. Tokens whose scores are as
    near to each other as rounding goes may be exchanged, unless the case is exact."""
    case, scores = trial.case, trial.expected()
    tolerance = 0.0 if case.whole else TOLERANCES[case.dtype]
    for row, (selected, of_row) in enumerate(zip(results, scores, strict=True)):
        for query, (tokens, of_query) in enumerate(zip(selected.long(), of_row, strict=True)):
            text = selection_fault(tokens, of_query, case.limit, tolerance)
            if text is not None:
                said = f"indexer, {how}, {case.spec().place}, blocks of {case.block_size}, row {row}, query {query}"
                raise ConformanceError(
                    f"{said}: {text}",
                    named(queries=trial.queries, keys=trial.keys, result=results, scores=scores),
                )


def selection_fault(tokens: Tensor, scores: Tensor, limit: int, tolerance: float) -> str | None:
    """What is wrong with the tokens [limit] that are selected by scores [K], -inf for those that a query does not see;
    None if nothing."""
    seen = int((scores > -torch.inf).sum())
    number = min(limit, seen)
    chosen = tokens[tokens != -1].sort().values
    if len(chosen) != number or len(chosen.unique()) != number:
        return f"it selects {chosen.tolist()}, where it should select {number} tokens, each of them once"
    if ((chosen < 0) | (chosen >= seen)).any():
        return f"it selects {chosen.tolist()}, but sees tokens 0 to {seen - 1} alone"
    order = scores.sort(descending=True, stable=True).indices[:number]
    if tolerance == 0.0:
        right = order.sort().values
        return None if torch.equal(chosen, right) else f"it selects {chosen.tolist()} instead of {right.tolist()}"
    last = scores[order[-1]]
    worse, left_out = scores[chosen] < last - tolerance, scores > last + tolerance
    left_out[chosen] = False
    if not worse.any() and not left_out.any():
        return None
    better = [token for token in order.tolist() if token not in chosen]
    return f"it selects {chosen[worse].tolist()} of lower scores than others, and leaves out {sorted(better)}"


def _check_fused_indexer(target: Target, backend: IndexerBackend, style: str, dtype: str) -> Verdict:
    case = replace(_fitted(backend, IndexerCase(_FUSED_ROWS, dtype=dtype)), style=style)
    reason = _refusal(backend, case)
    if reason is not None:
        return falls_back(reason)
    made = placed_trial(target, backend, replace(case, block_size=block_sizes(backend, case)[-1]), IndexerTrial)
    found = _fused_indexer(made)
    expected = _fused_indexer(IndexerTrial(ReferenceIndexer(), made.case, ops=reference_ops()))
    differ = [
        query
        for query, (one, other) in enumerate(zip(found.tolist(), expected.tolist(), strict=True))
        if len(set(other) - set(one)) > _EXCHANGED
    ]
    if differ:
        said = f"fused indexer, {f'turned by {style}' if style else 'unturned'}, {dtype}: queries {differ} differ"
        raise ConformanceError(said, named(result=found, expected=expected))
    return PASSED


def _fused_indexer(trial: IndexerTrial) -> Tensor:
    """What the layer selects for fixed random projections: [tokens, limit], on the host."""
    trial.run()
    case, random = trial.case, torch.Generator().manual_seed(1)
    sizes = case.hidden, case.heads * case.dim, case.dim
    rows = [torch.randn(tokens, sum(sizes), generator=random).to(torch_dtype(case.dtype)) for tokens, _ in case.rows]

    def fused(both: Tensor, launch: Launch) -> Tensor:
        x, queries, keys = both.split(sizes, dim=-1)
        projected = IndexerInput(x, queries, keys.contiguous())
        selected: Tensor = trial.layer.fused(projected, launch.positions, trial.caches, launch.plans[0])
        return selected

    return torch.cat(trial.by_row(rows, fused))


# ---- latent attention over selected tokens


def _check_latents(target: Target, backend: SparseLatentBackend, name: str, dtype: str) -> Verdict:
    def sized(block_size: int) -> SparseLatentCase:
        case: SparseLatentCase = _fitted(backend, dict(sparse_latent_cases(block_size, dtype))[name])
        return case

    usual = sized(16)
    reason = _refusal(backend, usual)
    if reason is not None:
        return falls_back(reason)
    for size in block_sizes(backend, usual):
        made = placed_trial(target, backend, sized(size), SparseLatentTrial)
        if made.shaping is not None and not made.shaping.holds(made.case):
            return absent("the platform's launches hold no drafts")
        _compare(name, made, made.run())
        _compare(f"{name}, into out= filled with NaN", made, made.attended(into_nan=True))
        if name in _MOVED:
            made.move()
            _compare(f"{name}, over blocks that were moved", made, made.attended())
    return PASSED


class FarSparseLatents(FarBlocks, SparseLatentTrial):
    """Of latent attention over selected tokens."""


def _latents_far_apart(target: Target, backend: SparseLatentBackend, dtype: str) -> Verdict:
    case = _far(backend, SparseLatentCase(((1, 1),), dtype=dtype))
    return compared_far_apart(target, backend, case, SparseLatentTrial, FarSparseLatents)


def _compare(how: str, trial: SparseLatentTrial, results: list[Tensor]) -> None:
    case, right = trial.case, trial.expected()
    for row, (part, expected) in enumerate(zip(results, right, strict=True)):
        text = difference(part.double(), expected, TOLERANCES[case.dtype])
        if text is not None:
            raise ConformanceError(
                f"sparse attention, {how}, {case.spec().place}, blocks of {case.block_size}, row {row}: {text}",
                named(queries=trial.queries, latents=trial.latents, selections=trial.selections, result=results),
            )


def _check_fused_latents(target: Target, backend: SparseLatentBackend, dtype: str) -> Verdict:
    case = replace(_fitted(backend, SparseLatentCase(_FUSED_ROWS, dtype=dtype)), style="pairs")
    reason = _refusal(backend, case)
    if reason is not None:
        return falls_back(reason)
    made = placed_trial(target, backend, replace(case, block_size=block_sizes(backend, case)[-1]), SparseLatentTrial)
    reference = SparseLatentTrial(ReferenceSparseLatentAttention(), made.case, ops=reference_ops())
    found, expected = _fused_latents(made), _fused_latents(reference)
    text = difference(found, expected, TOLERANCES[dtype])
    if text is not None:
        raise ConformanceError(f"fused sparse attention, {dtype}: {text}", named(result=found, expected=expected))
    return PASSED


def _fused_latents(trial: SparseLatentTrial) -> Tensor:
    """What the layer returns for fixed random projections: [tokens, H value_dim], on the host."""
    trial.run()
    case, random = trial.case, torch.Generator().manual_seed(1)
    sizes = case.heads * case.query_dim, case.rank + case.rope_dim
    rows = [torch.randn(tokens, sum(sizes), generator=random).to(torch_dtype(case.dtype)) for tokens, _ in case.rows]

    def fused(both: Tensor, launch: Launch) -> Tensor:
        x, selection = trial.apart(both)
        projected = SparseLatentInput(LatentInput(*x.split(sizes, dim=-1)), selection)
        mixed: Tensor = trial.layer.fused(projected, launch.positions, trial.caches, launch.plans[0])
        return mixed

    return torch.cat(trial.by_row(trial.together(rows), fused))
