"""Silver: a backend of encoder attention, against a definition in float64 that shares no code with the reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from tessera.platform.attention import AttentionBackend
from tessera.testing.compare import TOLERANCES, difference
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, falls_back, named
from tessera.testing.conformance.leaks import kept_per_call
from tessera.testing.conformance.target import Target
from tessera.testing.encoder_attention import EncoderCase, EncoderTrial, encoder_cases

_DIMS = (12, 16, 32, 64, 128)
"""Sizes of heads to choose from if a backend does not support the usual one; those of some cases are their point."""
_OWN_DIM = ("heads-of-", "all-heads")


def encoder_attention_cases(target: Target) -> Iterator[Case]:
    """One for each case and dtype of a backend that takes whole texts."""
    if target.brings_a_runner:
        return
    for backend in target.attention_backends:
        for dtype in target.platform.capabilities.dtypes:
            if takes_texts(backend, dtype):
                for name, case in encoder_cases(dtype):
                    yield Case(
                        f"encoder/{backend.name}/{name}-{dtype}",
                        "silver",
                        "encoder attention",
                        partial(_check, target, backend, name, case),
                    )


def takes_texts(backend: AttentionBackend, dtype: str) -> bool:
    """Whether a backend supports encoder attention in a dtype."""
    return _refusal(backend, _fitted(backend, EncoderCase((1,), dtype=dtype))) is None


def _refusal(backend: AttentionBackend, case: EncoderCase) -> str | None:
    return backend.supports(case.spec())


def _fitted(backend: AttentionBackend, case: EncoderCase) -> EncoderCase:
    """The case, with the first size of heads that the backend supports; its own is tried first."""
    sizes = (replace(case, head_dim=dim) for dim in (case.head_dim, *_DIMS))
    return next((one for one in sizes if _refusal(backend, one) is None), case)


def _check(target: Target, backend: AttentionBackend, name: str, case: EncoderCase) -> Verdict:
    case = case if name.startswith(_OWN_DIM) else _fitted(backend, case)
    reason = _refusal(backend, case)
    if reason is not None:
        return falls_back(reason)
    made = _trial(target, backend, case)
    results, right = made.run(), made.expected()
    for text, (found, expected) in enumerate(zip(results, right, strict=True)):
        wrong = difference(found.double(), expected, TOLERANCES[case.dtype])
        if wrong is not None:
            raise ConformanceError(
                f"encoder attention, {name}, {case.dtype}, text {text} of {made.case.lengths[text]} tokens: {wrong}",
                named(texts=made.texts, weights=made.weights, result=results, expected=right),
            )
    if name == "plain":
        left = kept_per_call(made.run)
        if left:
            raise ConformanceError(f"encoder attention: each launch keeps {left} tensors that it has made")
    return PASSED


def _trial(target: Target, backend: AttentionBackend, case: EncoderCase) -> EncoderTrial:
    """On the platform's device, with its ops and its shapes of launches; texts that are longer than its launches hold
    are cut."""
    shaping = target.shaping(case.spec(), max(case.lengths))
    if shaping is not None:
        rules = shaping.policy.rules()
        most = rules.max_tokens_per_request or max(case.lengths)
        most -= most % rules.chunk_multiple
        case = replace(case, lengths=tuple(min(length, most) for length in case.lengths))
    return EncoderTrial(backend, case, ops=target.bound(), shaping=shaping)
