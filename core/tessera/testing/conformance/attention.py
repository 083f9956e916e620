"""Silver: each attention backend against the definition, over a cache poisoned with NaN, in blocks of the sizes that it
claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from tessera.platform.attention import AttentionBackend
from tessera.platform.device import Reason
from tessera.testing.attention_cases import AttentionCase, attention_cases
from tessera.testing.attention_trial import AttentionTrial
from tessera.testing.compare import TOLERANCES, difference
from tessera.testing.conformance.arguments import named
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent, falls_back
from tessera.testing.conformance.target import Target

_TRIED = 64  # tokens of the largest block size for whose sake a case is made longer
_LARGEST = "mixed-largest-heads"
WITH_SCALES = "int8"  # dtype of a cache that has a scale for each token and head
_KEPT = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", WITH_SCALES)  # that another dtype computes over
_USUAL = "mixed-plain"
_WITH_SCALES = ("decode-padded", "mixed-window-softcap", "mixed-one-kv-head", "shared", _LARGEST)
HEAD_DIMS = (12, 16, 20, 24, 32, 40, 48, 64, 72, 80, 96, 112, 128, 192, 256)
"""Sizes of heads, one of which a backend is tried with that does not take the usual one."""

_CUT_SHORT = ("mixed-", "shared")  # kinds of launches that dtypes after the first are tried with


def backend_cases(target: Target) -> Iterator[Case]:
    """One for each kind of launch in each dtype."""
    if target.brings_a_runner:
        yield Case("attention", "silver", "attention", lambda: absent("it brings a runner of its own"))
        return
    if not target.backends:
        yield Case("attention", "silver", "attention", lambda: falls_back("it has no backend"))
    for backend in target.backends:
        for place, dtype in enumerate(_by_precision(backend, target.platform.capabilities.dtypes)):
            for name in (*dict(attention_cases()), _LARGEST):
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
                for name in _over(backend, dtype, kept):
                    yield Case(
                        f"attention/{backend.name}/{dtype}-over-{kept}{name.removeprefix(_USUAL)}",
                        "silver",
                        "attention",
                        partial(_check, target, backend, name, dtype, kept),
                    )


def _over(backend: AttentionBackend, dtype: str, kept: str) -> Sequence[str]:
    """Cases for a cache of another dtype: one asks whether the backend takes it; scales may go wrong in more ways."""
    if kept == dtype:
        return ()
    return (_USUAL, *_WITH_SCALES) if kept == WITH_SCALES and takes(backend, dtype, kept) else (_USUAL,)


def takes(backend: AttentionBackend, dtype: str, kept: str) -> bool:
    """Whether a backend computes in a dtype over a cache of another."""
    case = AttentionCase(((1, 1),), dtype=dtype, kv_dtype=kept)
    return refusal(backend, fitted(backend, case)) is None


def kept_in(backend: AttentionBackend, dtype: str) -> Sequence[str]:
    """Dtypes of caches that all of a backend's checks are for; "": as it computes."""
    return ("", WITH_SCALES) if takes(backend, dtype, WITH_SCALES) else ("",)


def block_sizes(backend: AttentionBackend, case: AttentionCase) -> list[int]:
    """The smallest and the largest that the backend names, and a multiple where it does multiples."""
    said = backend.constraints(case.spec())
    sizes = {min(said.block_sizes), max(said.block_sizes)}
    return sorted(sizes | ({2 * max(sizes)} if said.block_multiple and 2 * max(sizes) <= _TRIED else set()))


def fitted(backend: AttentionBackend, case: AttentionCase, dims: Sequence[int] = HEAD_DIMS) -> AttentionCase:
    """With the first of the sizes of heads that the backend takes, where it does not take the case's own."""
    sizes = (replace(case, head_dim=dim) for dim in (case.head_dim, *dims))
    return next((one for one in sizes if refusal(backend, one) is None), case)


def named_case(backend: AttentionBackend, name: str, block_size: int, dtype: str, kept: str) -> AttentionCase:
    if name == _LARGEST:
        case = replace(dict(attention_cases(block_size, dtype))[_USUAL], kv_dtype=kept)
        return fitted(backend, replace(case, head_dim=HEAD_DIMS[-1]), HEAD_DIMS[::-1])
    return fitted(backend, replace(dict(attention_cases(block_size, dtype))[name], kv_dtype=kept))


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
    usual = named_case(backend, name, 16, dtype, kept)
    reason = refusal(backend, usual)
    if reason is not None:
        return falls_back(reason)
    for size in block_sizes(backend, usual):
        made = trial(target, backend, named_case(backend, name, size, dtype, kept))
        compare("attention", made, made.run())
        compare("attention into out= filled with NaN", made, made.attended(into_nan=True))
    return PASSED


def _sums(target: Target, backend: AttentionBackend, dtype: str) -> Verdict:
    usual = fitted(backend, AttentionCase(((1, 1),), dtype=dtype))
    if not backend.constraints(usual.spec()).returns_lse:
        return absent("it gives no log of the sum of exponents")
    for size in block_sizes(backend, usual):
        for name in ("mixed-plain", "mixed-window-softcap"):
            made = trial(target, backend, named_case(backend, name, size, dtype, ""))
            made.run()
            compare("the log of the sum of exponents", made, made.sums(), made.expected_sums())
    return PASSED


def _by_precision(backend: AttentionBackend, dtypes: tuple[str, ...]) -> list[str]:
    """What the backend takes first, of that float32, where a mistake shows best."""

    return sorted(dtypes, key=lambda dtype: (not takes(backend, dtype, ""), dtype != "float32"))


def _said(case: AttentionCase) -> str:
    differs = replace(AttentionCase(case.rows), dtype="")
    facts = {name: value for name, value in vars(case).items() if value != getattr(differs, name)}
    return ", ".join(f"{name}={value}" for name, value in {"rows": case.rows, **facts}.items())
