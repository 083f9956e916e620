"""Encoder attention computes what its definition says, on the host, by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from tessera.platform import AttentionBackend
from tessera.testing.compare import TOLERANCES, difference
from tessera.testing.conformance import Case, ConformanceError, conformance_cases
from tessera.testing.encoder_attention import EncoderCase, EncoderTrial
from tessera_triton import Launcher, TritonEncoderAttention
from tessera_triton.facts import INTERPRETED, TARGETS
from tessera_triton.tiles import encoder_tile
from tests.platforms.interpreted import Interpreted

DAILY = (
    "biased-nearby-float32", "window-biased-bfloat16", "softcap-biased-float16", "turned-bfloat16",
    "heads-of-80-float32", "all-heads-float16", "wide-window-float32", "spaced-float32", "padded-bfloat16",
)  # fmt: skip


def _cases() -> Iterator[Any]:
    for case in conformance_cases(f"{Interpreted.__module__}:{Interpreted.__name__}"):
        if case.id.startswith("encoder/"):
            daily = case.id.removeprefix("encoder/triton-encoder/") in DAILY
            yield pytest.param(case, id=case.id, marks=() if daily else pytest.mark.nightly)


@pytest.mark.parametrize("case", list(_cases()))
def test_it_conforms(case: Case) -> None:
    assert case.run().status == "passed"


# ---- mistakes

Named = dict[str, Any]
"""Arguments of a launch by name."""


def window_too_wide(arguments: Named, options: Named) -> None:
    options["WINDOW"] += 1


def bias_mirrored(arguments: Named, options: Named) -> None:
    arguments["bias"] = arguments["bias"].flip(-1)


def next_text_seen(arguments: Named, options: Named) -> None:
    """Its first token."""
    arguments["lengths"] = arguments["lengths"] + (arguments["lengths"] > 1)
    arguments["lengths"][-1] -= 1


def last_key_unseen(arguments: Named, options: Named) -> None:
    arguments["lengths"] = arguments["lengths"] - (arguments["lengths"] > 1).int()


def other_key_head(arguments: Named, options: Named) -> None:
    arguments["k"] = arguments["k"].flip(1)
    arguments["k_token"], arguments["k_head"] = arguments["k"].stride()[:2]


class Changing(Launcher):
    def __init__(self, change: Callable[[Named, Named], None]) -> None:
        super().__init__()
        self.change = change

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        named = dict(zip(kernel.arg_names, arguments, strict=False))
        self.change(named, options)
        super().__call__(kernel, grid, *named.values(), **options)


class Faulty(Interpreted):
    change: ClassVar[Callable[[Named, Named], None]]

    def attention_backends(self) -> Sequence[AttentionBackend]:
        return (TritonEncoderAttention(INTERPRETED, Changing(type(self).change)),)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (window_too_wide, "window"),
        (bias_mirrored, "biased"),
        (next_text_seen, "window-biased"),
        (last_key_unseen, "window"),
        (other_key_head, "window"),
    ],
)
def test_the_kit_names_mistakes(
    change: Callable[[Named, Named], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Faulty, "change", staticmethod(change), raising=False)
    cases = conformance_cases(f"{__name__}:Faulty")
    (case,) = (case for case in cases if case.id == f"encoder/triton-encoder/{name}-float32")
    with pytest.raises(ConformanceError, match=f"encoder attention, {name}, float32"):
        case.run()


# ---- launches


class Noting(Launcher):
    """The grid and the options of the last launch."""

    grid: tuple[int, ...]
    options: Named

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        self.grid, self.options = grid, options
        super().__call__(kernel, grid, *arguments, **options)


@pytest.mark.parametrize(
    ("lengths", "queries", "warps", "tiles"),
    [((3, 9), 32, 4, 3), ((1, 16), 64, 4, 2), ((1, 3, 90), 128, 8, 5), ((33,), 128, 8, 1)],
    ids=str,
)
def test_a_tile_has_the_queries_that_the_longest_text_needs(
    lengths: tuple[int, ...], queries: int, warps: int, tiles: int
) -> None:
    """Three heads share one of keys."""
    launch = Noting()
    case = EncoderCase(lengths, 3, 1, 20, dtype="float16")
    made = EncoderTrial(TritonEncoderAttention(INTERPRETED, launch), case)
    for found, expected in zip(made.run(), made.expected(), strict=True):
        assert difference(found.double(), expected, TOLERANCES[case.dtype]) is None
    assert (launch.options["BLOCK_M"], launch.options["num_warps"]) == (queries, warps)
    assert launch.grid == (tiles, 1)


def test_biases_that_are_copied_ahead_find_room() -> None:
    """Of heads of 64: where two turns of 64 keys would take 32 KiB for biases beside 64 KiB, and there are 99."""
    small, large = TARGETS["sm_89"], TARGETS["sm_80"]
    plain, biased = (encoder_tile(small, "bfloat16", 64, 1, 512, biased=there) for there in (False, True))
    assert (plain.keys, biased.keys) == (64, 32)
    assert encoder_tile(large, "bfloat16", 64, 1, 512, biased=True).keys == 64


class CapturedBuffers:
    """Buffers of launches that are captured."""

    def get(self, name: str, shape: Any, dtype: str) -> Any:
        raise AssertionError("a plan needs no buffers")

    put = get


def test_a_plan_that_is_captured_has_the_launch_s_own_tensors() -> None:
    made = EncoderTrial(TritonEncoderAttention(INTERPRETED), EncoderCase((2, 3), padding=1))
    ((launch, _, _),) = made.launches()
    plan = made.backend.plan(launch, made.group, CapturedBuffers())
    assert plan == launch.plans[0]
    assert plan.starts is launch.query_start_loc
    assert plan.lengths is launch.query_lens


def test_rows_of_padding_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    made = EncoderTrial(TritonEncoderAttention(INTERPRETED), EncoderCase((2, 3), padding=2, stride=5))
    monkeypatch.setattr(torch, "empty", lambda shape, **how: torch.full(shape, 7.0, **how))
    ((launch, _, _),) = made.launches()
    q, k, v = (torch.zeros(launch.key.tokens, heads, made.case.head_dim) for heads in (6, 2, 2))
    layer: Any = made.layer
    found = layer.attend(q, k, v, launch.plans[0])
    written = [token for token in range(launch.key.tokens) if not (found[token] == 7.0).all()]
    assert written == [0, 1, 5, 6, 7]


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (EncoderCase((1,), head_dim=260), "heads of 260, more than 256"),
        (EncoderCase((1,), heads=71, kv_heads=1), "more than 64 query heads for a head of keys"),
        (EncoderCase((1,), dtype="float64"), "no kernels for float64"),
    ],
    ids=str,
)
def test_it_says_what_it_does_not_take(case: EncoderCase, why: str) -> None:
    assert TritonEncoderAttention(TARGETS["sm_80"]).supports(case.spec()) == why


def test_it_takes_no_causal_layers_and_no_sinks() -> None:
    backend, spec = TritonEncoderAttention(INTERPRETED), EncoderCase((1,)).spec()
    assert backend.supports(replace(spec, kind="attention")) == "no encoder attention over attention"
    assert backend.supports(replace(spec, sinks=True)) == "no sinks where tokens see their whole text"
