"""Silver: a backend of attention with linear biases (ALiBi, arXiv:2108.12409) against its definition, over a cache
poisoned with NaN. It is a kind of layer of its own, so a backend that does not take it has no such cases."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tessera.testing.attention import AttentionCase, alibi_cases
from tessera.testing.conformance.attention import check_attention, fitted, refusal
from tessera.testing.conformance.case import Case
from tessera.testing.conformance.target import Target


def alibi_attention_cases(target: Target) -> Iterator[Case]:
    """One for each kind of launch in each dtype."""
    if target.brings_a_runner:
        return
    for backend in target.attention_backends:
        for dtype in target.platform.capabilities.dtypes:
            if refusal(backend, fitted(backend, AttentionCase(((1, 1),), alibi=True, dtype=dtype))) is not None:
                continue
            for name, _ in alibi_cases():
                check = partial(check_attention, target, backend, name, dtype)
                yield Case(f"alibi/{backend.name}/{name}-{dtype}", "silver", "alibi attention", check)
