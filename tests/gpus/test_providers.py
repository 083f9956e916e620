"""Attention by packages of others, over stand-ins for them: each backend passes the kit, so what it hands over means
what the package's documentation says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tessera.testing.attention import AttentionCase, AttentionTrial
from tessera.testing.compare import TOLERANCES, difference
from tessera.testing.conformance import Case, conformance_cases
from tests.platforms.providers import platforms
from tests.platforms.providers.platforms import (
    OverAiter,
    OverFlashAttention2,
    OverFlashAttention3,
    OverFlashInfer,
    Provided,
)

# Tokens between rows hold NaN, which NumPy, unlike a device, reports where it compares and rounds it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning"),
    # A soft cap takes the exponent of a large score, which is infinite there too, and as meant.
    pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning"),
]

KINDS = ("attention/", "fused/", "cache/")
DAILY = (
    "decode-padded-bfloat16", "mixed-window-softcap-bfloat16", "mixed-spaced-float16", "lse-bfloat16",
    "shared-window-bfloat16", "half-normed-float16", "export-bfloat16", "mixed-sinks-bfloat16",
)  # fmt: skip
VARLEN = (OverFlashAttention2, OverFlashAttention3, OverAiter)
PROVIDED = (*VARLEN, OverFlashInfer)
DECLINED = re.compile(r"/flash\w+/.*sinks|-over-|flash_attention_3/.*window")
"""Sinks, except by aiter, caches in another dtype, and windows in FlashAttention-3."""
WITHOUT_SUMS = "attention/aiter/lse-"


def _cases() -> Iterator[Any]:
    for platform in PROVIDED:
        for case in conformance_cases(f"{platforms.__name__}:{platform.__name__}"):
            if case.id.startswith(KINDS):
                marks = () if case.id.endswith(DAILY) else pytest.mark.nightly
                yield pytest.param(case, id=case.id, marks=marks)


@pytest.mark.parametrize("case", list(_cases()))
def test_it_conforms(case: Case) -> None:
    sums = case.id.startswith(WITHOUT_SUMS)
    assert case.run().status == ("n/a" if sums else "falls back" if DECLINED.search(case.id) else "passed")


class Kept:
    """Buffers of launches that are captured: each name has one tensor of a shape."""

    def __init__(self) -> None:
        self.made: dict[Any, torch.Tensor] = {}

    def get(self, name: str, shape: Any, dtype: str) -> torch.Tensor:
        return self.made.setdefault((name, tuple(shape), dtype), torch.empty(shape, dtype=getattr(torch, dtype)))


def trial(platform: type[Provided], rows: Any, **facts: Any) -> AttentionTrial:
    backend = platform()._provided()
    size = max(backend.constraints(AttentionCase(rows, head_dim=16, dtype="bfloat16").spec()).block_sizes)
    made = AttentionTrial(backend, AttentionCase(rows, size, head_dim=16, dtype="bfloat16", **facts))
    made.run()
    return made


def agrees(made: AttentionTrial, found: torch.Tensor, starts: list[int]) -> bool:
    parts = (found[start : start + tokens] for start, (tokens, _) in zip(starts, made.case.rows, strict=True))
    differences = (
        difference(part.double(), expected, TOLERANCES["bfloat16"])
        for part, expected in zip(parts, made.expected(), strict=True)
    )
    return all(said is None for said in differences)


@pytest.mark.parametrize("platform", VARLEN)
@pytest.mark.parametrize("stride", [0, 4])
def test_a_captured_plan_stays_where_it_is_and_holds_for_other_rows_of_its_shape(
    platform: type[Provided], stride: int
) -> None:
    kept, plans = Kept(), []
    for rows in (((1, 30), (3, 9)), ((3, 40), (1, 300))):
        made = trial(platform, rows, stride=stride, padding=4 - 2 * bool(stride))
        launch, starts = made.launch(made.grants)
        plan = made.backend.plan(launch, made.group, kept)
        found = made.layer.attend(made.laid(launch, starts, made.queries), made.caches, plan)
        assert agrees(made, found, starts)
        plans.append(plan)
    first, second = plans
    assert first.lengths.data_ptr() == second.lengths.data_ptr()
    assert len(first.lengths) == len(found) == first.tokens


@pytest.mark.parametrize("platform", VARLEN)
def test_a_decode_launch_takes_the_tensors_of_the_launch_as_they_are(platform: type[Provided]) -> None:
    made = trial(platform, ((1, 30), (1, 9)), padding=2)
    launch, _ = made.launch(made.grants)
    plan = made.backend.plan(launch, made.group, None)
    assert (plan.table.data_ptr(), plan.lengths.data_ptr()) == (
        launch.block_tables[0].data_ptr(),
        launch.seq_lens.data_ptr(),
    )
    assert (plan.starts, plan.ends) == (None, None)


@pytest.mark.parametrize("platform", VARLEN)
@pytest.mark.parametrize("wrong", ["values for keys", "starts of queries", "lengths"])
def test_wrong_wiring_is_found(platform: type[Provided], wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trial(platform, ((2, 30), (3, 9)))
    launch, starts = made.launch(made.grants)
    plan, (keys, values) = launch.plans[0], made.caches[0]
    q = made.laid(launch, starts, made.queries)
    assert agrees(made, made.layer.attend(q, made.caches, plan), starts)
    if wrong == "values for keys":
        made.caches[0] = (values, keys)
    elif wrong == "starts of queries":
        plan.starts[1] = 3
    else:
        (plan.lengths if plan.ends is None else plan.ends)[1] -= 1
    assert not agrees(made, made.layer.attend(q, made.caches, plan), starts)


@pytest.mark.parametrize("stride", [0, 4])
def test_what_flashinfer_plans_for_a_graph_stays_where_it_is_and_holds_for_other_rows(stride: int) -> None:
    kept, plans, places = Kept(), [], []
    backend = OverFlashInfer()._provided()
    for rows in (((1, 30), (3, 290)), ((3, 300), (1, 40))):
        made = trial(OverFlashInfer, rows, stride=stride, padding=4 - 2 * bool(stride))
        launch, starts = made.launch(made.grants)
        plans.append(backend.plan(launch, made.group, kept))
        places.append([tensor.data_ptr() for tensor in plans[-1].planner.wrapper.kept])
        made.layer.backend = backend
        found = made.layer.attend(made.laid(launch, starts, made.queries), made.caches, plans[-1])
        assert agrees(made, found, starts)
    first, second = plans
    assert first.planner is second.planner
    assert places[0] == places[1]
    assert len(found) == first.tokens


def test_rows_without_keys_are_zeros_whatever_aiter_leaves_there() -> None:
    made = trial(OverAiter, ((1, 30), (1, 9)), padding=2)
    launch, starts = made.launch(made.grants)
    found = made.layer.attend(made.laid(launch, starts, made.queries), made.caches, launch.plans[0])
    assert agrees(made, found, starts)
    assert (found[2:] == 0).all()
    assert launch.plans[0].keyless.flatten().tolist() == [False, False, True, True]


def test_flashinfer_plans_without_the_pages_before_a_window() -> None:
    made = trial(OverFlashInfer, ((1, 300), (2, 30)), window=70)
    launch, _ = made.launch(made.grants)
    wrapper = launch.plans[0].planner.wrapper
    _, indptr, pages, _ = wrapper.kept
    assert indptr.tolist() == [0, 2, 3]
    assert pages.tolist() == [*made.tables[0][3:5], made.tables[1][0]]


def test_a_plan_of_flashinfer_that_is_not_the_newest_is_not_run() -> None:
    made = trial(OverFlashInfer, ((1, 30), (2, 9)))
    old, starts = made.launch(made.grants)
    made.launch(made.grants)
    with pytest.raises(AssertionError, match="planned last"):
        made.layer.attend(made.laid(old, starts, made.queries), made.caches, old.plans[0])


@pytest.mark.parametrize("wrong", ["values for keys", "lengths"])
def test_wrong_wiring_of_flashinfer_is_found(wrong: str) -> None:
    made = trial(OverFlashInfer, ((2, 30), (3, 9)))
    launch, starts = made.launch(made.grants)
    q, (keys, values), plan = made.laid(launch, starts, made.queries), made.caches[0], launch.plans[0]
    assert agrees(made, made.layer.attend(q, made.caches, plan), starts)
    if wrong == "values for keys":
        made.caches[0] = (values, keys)
    else:
        plan.planner.wrapper.kept[3][1] -= 1
    assert not agrees(made, made.layer.attend(q, made.caches, plan), starts)
