"""Silver: a backend of cross attention, against a definition in float64 that shares no code with the reference, over a
cache poisoned with NaN."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from tessera.platform.attention import AttentionBackend
from tessera.testing.compare import TOLERANCES, difference
from tessera.testing.conformance.attention import block_sizes
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, falls_back, named
from tessera.testing.conformance.leaks import kept_per_call
from tessera.testing.conformance.target import Target
from tessera.testing.cross_attention import CrossCase, CrossTrial, cross_cases

_DIMS = (12, 16, 32, 64, 128)
"""Sizes of heads to choose from if a backend does not support the usual one; those of some cases are their point."""
_OWN_DIM = "heads-of-"


def cross_attention_cases(target: Target) -> Iterator[Case]:
    """One for each case and dtype of a backend that takes encoders."""
    if target.brings_a_runner:
        return
    for backend in target.attention_backends:
        for dtype in target.platform.capabilities.dtypes:
            if takes_encoders(backend, dtype):
                for name, _ in cross_cases():
                    check = partial(_check, target, backend, name, dtype)
                    yield Case(f"cross/{backend.name}/{name}-{dtype}", "silver", "cross attention", check)


def takes_encoders(backend: AttentionBackend, dtype: str) -> bool:
    """Whether a backend supports cross attention in a dtype."""
    usual = _fitted(backend, CrossCase(((1, 1),), dtype=dtype))
    return backend.supports(usual.spec()) is None


def _fitted(backend: AttentionBackend, case: CrossCase) -> CrossCase:
    """The case, with the first size of heads that the backend supports; its own is tried first."""
    sizes = (replace(case, head_dim=dim) for dim in (case.head_dim, *_DIMS))
    return next((one for one in sizes if backend.supports(one.spec()) is None), case)


def _check(target: Target, backend: AttentionBackend, name: str, dtype: str) -> Verdict:
    case = dict(cross_cases(dtype=dtype))[name]
    case = case if name.startswith(_OWN_DIM) else _fitted(backend, case)
    reason = backend.supports(case.spec())
    if reason is not None:
        return falls_back(reason)
    for size in block_sizes(backend, case):
        made = _trial(target, backend, replace(case, block_size=size))
        results, right = made.run(), made.expected()
        for row, (found, expected) in enumerate(zip(results, right, strict=True)):
            wrong = difference(found.double(), expected, TOLERANCES[dtype])
            if wrong is not None:
                tokens, length = made.case.rows[row]
                raise ConformanceError(
                    f"cross attention, {name}, {dtype}, blocks of {size}, row {row} of {tokens} tokens over {length} "
                    f"positions: {wrong}",
                    named(queries=made.queries, keys=made.keys, values=made.values, result=results, expected=right),
                )
    if name == "plain":
        left = kept_per_call(made.run)
        if left:
            raise ConformanceError(f"cross attention: each launch keeps {left} tensors that it has made")
    return PASSED


def _trial(target: Target, backend: AttentionBackend, case: CrossCase) -> CrossTrial:
    """On the platform's device, with its ops, its dtype of indices and its shapes of launches."""
    longest = max(tokens for tokens, _ in case.rows) + 1
    shaping = target.shaping(case.spec(), longest + case.block_size)
    index_dtype = target.platform.capabilities.index_dtype
    return CrossTrial(backend, case, index_dtype=index_dtype, ops=target.bound(), shaping=shaping)
