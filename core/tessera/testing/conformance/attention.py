"""Silver: each attention backend against the definition, over a cache poisoned with NaN, in blocks of the sizes that it
claims."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from tessera.platform.attention import AttentionBackend
from tessera.platform.platform import Reason
from tessera.testing.attention_cases import AttentionCase, attention_cases
from tessera.testing.attention_trial import AttentionTrial
from tessera.testing.compare import TOLERANCES, difference
from tessera.testing.conformance.arguments import named
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent, falls_back
from tessera.testing.conformance.target import Target

_TRIED = 64  # tokens of the largest block size for whose sake a case is made longer
_KEPT = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")  # dtypes of caches that another dtype computes over
_CUT_SHORT = ("mixed-", "shared")  # kinds of launches that dtypes after the first are tried with


def backend_cases(target: Target) -> Iterator[Case]:
    """One for each kind of launch in each dtype."""
    if target.brings_a_runner:
        yield Case("attention", "silver", "attention", lambda: absent("it brings a runner of its own"))
        return
    if not target.backends:
        yield Case("attention", "silver", "attention", lambda: falls_back("it has no backend"))
    for backend in target.backends:
        for place, dtype in enumerate(_by_precision(target.platform.capabilities.dtypes)):
            for name, _ in attention_cases():
                if place == 0 or name.startswith(_CUT_SHORT):
                    yield Case(
                        f"attention/{backend.name}/{name}-{dtype}",
                        "silver",
                        "attention",
                        partial(_check, target, backend, name, dtype),
                    )
            yield Case(
                f"attention/{backend.name}/lse-{dtype}", "silver", "attention", partial(_sums, target, backend, dtype)
            )
            for kept in _KEPT:
                if kept != dtype:
                    yield Case(
                        f"attention/{backend.name}/{dtype}-over-{kept}",
                        "silver",
                        "attention",
                        partial(_check, target, backend, "mixed-plain", dtype, kept),
                    )


def block_sizes(backend: AttentionBackend, case: AttentionCase) -> list[int]:
    """The smallest and the largest that the backend names, and a multiple where it does multiples."""
    said = backend.constraints(case.spec())
    sizes = {min(said.block_sizes), max(said.block_sizes)}
    return sorted(sizes | ({2 * max(sizes)} if said.block_multiple and 2 * max(sizes) <= _TRIED else set()))


def refusal(backend: AttentionBackend, case: AttentionCase) -> Reason | None:
    return backend.supports(case.spec())


def trial(target: Target, backend: AttentionBackend, case: AttentionCase) -> AttentionTrial:
    """On the platform's device, with its ops, its dtype of indices and its shapes of launches."""
    longest = max(length for _, length in case.rows)
    shaping = target.shaping(case.spec(), longest + case.block_size)
    if shaping is not None:
        case = replace(case, rows=shaping.allowed(case.rows))
    index_dtype = target.platform.capabilities.index_dtype
    return AttentionTrial(backend, case, index_dtype=index_dtype, ops=target.bound(), shaping=shaping)


def compare(how: str, made: AttentionTrial, found: list[torch.Tensor], right: list[torch.Tensor] | None = None) -> None:
    """By row with what is right, the definition of attention unless something else is asked. Raises
    ConformanceError."""
    case = made.case
    right = right or made.expected()
    for row, (part, expected) in enumerate(zip(found, right, strict=True)):
        text = difference(part.double(), expected, TOLERANCES[case.dtype])
        if text is not None:
            tensors = named(
                queries=made.queries, keys=made.keys, values=made.values, result=found, expected=right,
                cache=made.caches[0], tables=[torch.tensor(table) for table in made.tables],
            )  # fmt: skip
            raise ConformanceError(f"{how} of {_said(case)}, row {row}: {text}", tensors)


def _check(target: Target, backend: AttentionBackend, name: str, dtype: str, kept: str = "") -> Verdict:
    usual = replace(dict(attention_cases(dtype=dtype))[name], kv_dtype=kept)
    reason = refusal(backend, usual)
    if reason is not None:
        return falls_back(reason)
    for size in block_sizes(backend, usual):
        case = replace(dict(attention_cases(size, dtype))[name], kv_dtype=kept)
        made = trial(target, backend, case)
        compare("attention", made, made.run())
        compare("attention into out= filled with NaN", made, made.attended(into_nan=True))
    return PASSED


def _sums(target: Target, backend: AttentionBackend, dtype: str) -> Verdict:
    usual = AttentionCase(((1, 1),), dtype=dtype)
    if "lse" not in backend.constraints(usual.spec()).features:
        return absent("it gives no log of the sum of exponents")
    for size in block_sizes(backend, usual):
        for name in ("mixed-plain", "mixed-window-softcap"):
            made = trial(target, backend, dict(attention_cases(size, dtype))[name])
            made.run()
            compare("the log of the sum of exponents", made, made.sums(), made.expected_sums())
    return PASSED


def _by_precision(dtypes: tuple[str, ...]) -> list[str]:
    """float32, where a mistake shows best, first."""
    return sorted(dtypes, key=lambda dtype: dtype != "float32")


def _said(case: AttentionCase) -> str:
    differs = replace(AttentionCase(case.rows), dtype="")
    facts = {name: value for name, value in vars(case).items() if value != getattr(differs, name)}
    return ", ".join(f"{name}={value}" for name, value in {"rows": case.rows, **facts}.items())
