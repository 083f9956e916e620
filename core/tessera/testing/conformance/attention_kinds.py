"""Silver: a backend of attention with linear biases (ALiBi, arXiv:2108.12409), with biases by distance (T5,
arXiv:1910.10683), within chunks (Llama 4) or that looks ahead within an image (Gemma 3) against its definition, over a
cache poisoned with NaN. Each is a kind of layer of its own, so a backend that does not take it has no such cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from tessera.testing.attention import AttentionCase, alibi_cases, chunked_cases, lookahead_cases, relative_cases
from tessera.testing.conformance.attention import check_attention, fitted, refusal
from tessera.testing.conformance.case import Case
from tessera.testing.conformance.target import Target

Cases = Callable[[], Iterator[tuple[str, AttentionCase]]]
KINDS: Mapping[str, Cases] = MappingProxyType(
    {"alibi": alibi_cases, "chunked": chunked_cases, "lookahead": lookahead_cases, "relative": relative_cases}
)
"""The cases of each kind, by what their names begin with."""


def attention_kind_cases(target: Target) -> Iterator[Case]:
    """One for each kind of layer and launch in each dtype."""
    if target.brings_a_runner:
        return
    for backend in target.attention_backends:
        for dtype in target.platform.capabilities.dtypes:
            for kind, cases in KINDS.items():
                usual = next(case for _, case in cases())
                smallest = replace(usual, rows=((1, 1),), dtype=dtype)
                if refusal(backend, fitted(backend, smallest)) is not None:
                    continue
                for name, _ in cases():
                    check = partial(check_attention, target, backend, name, dtype)
                    yield Case(f"{kind}/{backend.name}/{name}-{dtype}", "silver", f"{kind} attention", check)
