"""What reads, changes and samples logits does what its reference does, on the host, by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tessera.platform import BoundOps, EditLogitsSpec, Edits, History, LogprobsSpec, SampleSpec, SamplingRows
from tessera.testing import REFERENCE
from tessera.testing.conformance import Case, conformance_cases
from tessera.testing.reference import host_device
from tests.platforms.interpreted import Interpreted

PLATFORM = f"{Interpreted.__module__}:{Interpreted.__name__}"
OPS = tuple(f"op/{name}/" for name in ("logprobs", "take_logits", "mask_logits", "edit_logits", "penalise", "sample"))
# Others ask for the same and more.
NIGHTLY = {"op/logprobs/1", "op/sample/1", "op/sample/2", "op/sample/4", "op/sample/5"}
CASES = [
    pytest.param(case, id=case.id, marks=[pytest.mark.nightly] if case.id in NIGHTLY else [])
    for case in conformance_cases(PLATFORM)
    if case.id.startswith(OPS)
]


@pytest.mark.parametrize("case", CASES)
def test_it_conforms(case: Case) -> None:
    case.run()


VOCAB = 301


def drawn(logits: Tensor, **filters: float) -> tuple[list[int], list[int]]:
    """The tokens that the kernel and the reference draw."""
    number = len(logits)
    of_all = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | filters
    kinds = (torch.float32, torch.int32, torch.float32, torch.float32)
    seed = torch.randint(-(2**31), 2**31, (number, 2), generator=torch.Generator().manual_seed(3)).to(torch.int32)
    columns = (torch.full((number,), value, dtype=kind) for value, kind in zip(of_all.values(), kinds, strict=True))
    rows = SamplingRows(*columns, seed, torch.arange(number, dtype=torch.int32))
    spec = SampleSpec(VOCAB, filters=bool(filters))
    found, expected = (
        BoundOps(ops, host_device(), {}).bind("sample", spec)(logits, rows).tokens.tolist()
        for ops in (Interpreted().ops(REFERENCE), REFERENCE)
    )
    return found, expected


@pytest.mark.parametrize(
    "filters",
    [
        {"top_k": 1},
        {"top_k": 40},
        {"top_k": 300},
        {"top_k": 40, "top_p": 0.7},
        {"top_k": 3, "top_p": 0.9, "min_p": 0.1},
        {"top_p": 0.6},
        {"top_p": 0.0},
        {"min_p": 0.2},
        {"min_p": 1.0},
    ],
    ids=str,
)
def test_filters_keep_the_first_of_equal_entries(filters: dict[str, float]) -> None:
    """Of 301 entries with nine values, so that every bound falls among equal ones."""
    logits = torch.randint(-4, 5, (6, VOCAB), generator=torch.Generator().manual_seed(2)).to(torch.bfloat16) / 4
    found, expected = drawn(logits, **filters, temperature=1.5)
    assert found == expected


def test_entries_that_are_not_finite_are_drawn_as_the_reference_draws() -> None:
    logits = torch.randn(7, VOCAB, generator=torch.Generator().manual_seed(4))
    logits[0, [7, 200]] = torch.nan
    logits[1, [9, 100]] = torch.inf
    logits[2, [50, 30]] = torch.tensor([torch.inf, torch.nan])
    logits[3] = -torch.inf
    logits[4, 1:] = -torch.inf
    logits[5, ::2] = -torch.inf
    logits[6, 5] = -torch.nan
    for filters in ({}, {"top_k": 5, "top_p": 0.5}, {"min_p": 0.1}):
        found, expected = drawn(logits, **filters)
        assert found == expected
        assert found[:5] == [7, 9, 30, 0, 0]
        assert found[6] == 5


def test_log_probabilities_of_what_is_not_finite_are_nan() -> None:
    logits = torch.randn(3, 40)
    logits[0, 3], logits[1, 4], logits[2] = torch.nan, torch.inf, -torch.inf
    found = BoundOps(Interpreted().ops(REFERENCE), host_device(), {}).bind("logprobs", LogprobsSpec(40, 2))(
        logits, torch.tensor([1, 2, 3], dtype=torch.int32)
    )
    assert found.logprobs.isnan().all()
    assert found.ids[:, 0].tolist() == [1, 2, 3]
    assert found.ids[0, 1] == 3
    assert found.ids[1, 1] == 4
    assert found.ranks.tolist() == [1, 1, 1]


def test_edits_of_one_logit_are_added_wherever_they_stand() -> None:
    number = 150
    edit = torch.arange(number)
    edits = Edits(
        row=(edit % 2).to(torch.int32),
        token=(edit % 3).to(torch.int32),
        value=torch.where(edit == 149, -torch.inf, 1.0 + edit % 2),
        until=torch.full((number,), 9, dtype=torch.int32),
        prefix=torch.empty(number, 0, dtype=torch.int32),
    )
    ones = torch.ones(2, dtype=torch.int32)
    logits = torch.zeros(2, 5)
    edit_logits = BoundOps(Interpreted().ops(REFERENCE), host_device(), {}).bind("edit_logits", EditLogitsSpec(5))
    edit_logits(logits, History(torch.zeros(2, 4, dtype=torch.int32), torch.tensor([1, 0]).int(), ones, ones), edits)
    assert logits.tolist() == [[25.0, 25.0, 25.0, 0.0, 0.0], [50.0, 50.0, -torch.inf, 0.0, 0.0]]


def test_more_of_the_most_likely_tokens_than_kernels_report_are_the_reference_s() -> None:
    ops = Interpreted().ops(REFERENCE)
    assert "up to 32" in ops["logprobs"].kernel.supports(LogprobsSpec(97, 33))
    assert "up to 32" in ops["sample"].kernel.supports(SampleSpec(97, logprobs=33))
    assert ops["sample"].kernel.supports(SampleSpec(200_000, logprobs=20)) is None
