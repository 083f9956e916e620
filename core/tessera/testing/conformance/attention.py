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


def block_sizes(backend: AttentionBackend, case: AttentionCase) -> list[int]:
    """The smallest and the largest that the backend names, and a multiple where it does multiples."""
    said = backend.constraints(case.spec())
    sizes = {min(said.block_sizes), max(said.block_sizes)}
    return sorted(sizes | ({2 * max(sizes)} if said.block_multiple and 2 * max(sizes) <= _TRIED else set()))


def refusal(backend: AttentionBackend, case: AttentionCase) -> Reason | None:
    return backend.supports(case.spec())


def trial(target: Target, backend: AttentionBackend, case: AttentionCase) -> AttentionTrial:
    """On the platform's device, with its ops and its dtype of indices."""
    return AttentionTrial(backend, case, index_dtype=target.platform.capabilities.index_dtype, ops=target.bound())


def compare(how: str, made: AttentionTrial, found: list[torch.Tensor]) -> None:
    """By row with the definition. Raises ConformanceError."""
    case = made.case
    for row, (part, expected) in enumerate(zip(found, made.expected(), strict=True)):
        text = difference(part.double(), expected, TOLERANCES[case.dtype])
        if text is not None:
            tensors = named(
                queries=made.queries, keys=made.keys, values=made.values, result=found, expected=made.expected(),
                cache=made.caches[0], tables=[torch.tensor(table) for table in made.tables],
            )  # fmt: skip
            raise ConformanceError(f"{how} of {_said(case)}, row {row}: {text}", tensors)


def _check(target: Target, backend: AttentionBackend, name: str, dtype: str) -> Verdict:
    usual = dict(attention_cases(dtype=dtype))[name]
    reason = refusal(backend, usual)
    if reason is not None:
        return falls_back(reason)
    for size in block_sizes(backend, usual):
        case = dict(attention_cases(size, dtype))[name]
        made = trial(target, backend, case)
        compare("attention", made, made.run())
        launch, _ = made.launch(made.grants)
        shape = launch.key.tokens, case.heads, case.head_dim
        out = torch.full(shape, torch.nan, dtype=made.queries[0].dtype, device=made.target)
        compare("attention into out= filled with NaN", made, made.attended(out))
    return PASSED


def _by_precision(dtypes: tuple[str, ...]) -> list[str]:
    """float32, where a mistake shows best, first."""
    return sorted(dtypes, key=lambda dtype: dtype != "float32")


def _said(case: AttentionCase) -> str:
    differs = replace(AttentionCase(case.rows), dtype="")
    facts = {name: value for name, value in vars(case).items() if value != getattr(differs, name)}
    return ", ".join(f"{name}={value}" for name, value in {"rows": case.rows, **facts}.items())
