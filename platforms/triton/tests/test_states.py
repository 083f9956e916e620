"""Mixers that keep a state compute what their definitions say, on the host, by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from tessera.platform import AttentionBackend, StateSpec
from tessera.testing.conformance import Case, ConformanceError, conformance_cases
from tessera.testing.conformance.state import KINDS, Row, StateTrial
from tessera.testing.conformance.target import reference_ops
from tessera_triton import Launcher, state_mixers
from tessera_triton.delta_rule import delta_chunks
from tessera_triton.facts import INTERPRETED
from tests.platforms.interpreted import Interpreted

DAILY = ("delta-net-float16", "mamba2-limits-bfloat16", "short-convolution-bfloat16")


def _cases() -> Iterator[Any]:
    for case in conformance_cases(f"{Interpreted.__module__}:{Interpreted.__name__}"):
        if case.id.startswith("state/"):
            daily = case.id.removeprefix("state/triton-") in DAILY
            yield pytest.param(case, id=case.id, marks=() if daily else pytest.mark.nightly)


@pytest.mark.parametrize("case", list(_cases()))
def test_it_conforms(case: Case) -> None:
    assert case.run().status == "passed"


def test_chunks_of_keys_that_are_alike_are_solved() -> None:
    """And hardly fade: sums of powers of the system would be beyond what a float holds."""
    torch.manual_seed(0)
    tokens, size, heads = 32, 16, 1
    mixed = torch.randn(1, 1, size * 3) + 0.02 * torch.randn(1, tokens, size * 3)
    side = torch.tensor([[4.0, -9.0]]).repeat(tokens, 1)  # b and a
    systems = torch.empty(1, heads, 2, tokens, tokens, dtype=torch.float16)
    counts = torch.tensor([0, tokens], dtype=torch.int32), torch.tensor([tokens], dtype=torch.int32)
    Launcher()(
        delta_chunks, (1, heads), mixed[0].contiguous(), side, 2, torch.zeros(1), torch.zeros(1), *counts, systems,
        1.0, 2.0, 0, 1,
        HEADS=heads, KEY_HEADS=1, KEY_DIM=size, DIM=size, CHUNK=tokens, DOUBLINGS=5, BLOCK_K=size,
    )  # fmt: skip
    q, k, v = mixed[0].double().split(size, dim=-1)
    q, k = (one * torch.rsqrt(one.square().sum(-1, keepdim=True) + 1e-6) for one in (q, k))
    decay = torch.exp(-torch.nn.functional.softplus(side[:, 1].double()))
    beta = 2.0 * side[:, 0].double().sigmoid()
    state, expected = torch.zeros(size, size, dtype=torch.float64), torch.empty(tokens, size, dtype=torch.float64)
    for t in range(tokens):  # the definition
        state = state * decay[t]
        state = state + torch.outer(k[t], beta[t] * (v[t] - k[t] @ state))
        expected[t] = q[t] @ state
    solved, read = systems[0, 0].double()
    torch.testing.assert_close(read @ (solved @ v), expected, rtol=0.02, atol=0.02)


# ---- mistakes

Named = dict[str, Any]
"""Arguments of a launch by name."""


def last_input_forgotten(arguments: Named, options: Named) -> None:
    if "fills" in arguments and "weight" in arguments:
        arguments["weight"] = torch.cat([arguments["weight"][:, :-1], 0 * arguments["weight"][:, -1:]], dim=1)


def all_fresh(arguments: Named, options: Named) -> None:
    if "ends" in arguments:
        arguments["ends"] = arguments["lengths"]


def reads_as_written(arguments: Named, options: Named) -> None:
    if "systems" in arguments and "out" in arguments:
        arguments["systems"] = arguments["systems"].flip(2)


def decays_of_other_heads(arguments: Named, options: Named) -> None:
    if "a_log" in arguments:
        arguments["a_log"] = arguments["a_log"].flip(0)


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
        return state_mixers(INTERPRETED, Changing(type(self).change))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (last_input_forgotten, "short-convolution-float32"),
        (all_fresh, "short-convolution-float32"),
        (decays_of_other_heads, "mamba2-float32"),
        (reads_as_written, "delta-net-float16"),
    ],
)
def test_the_kit_names_mistakes(
    change: Callable[[Named, Named], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Faulty, "change", staticmethod(change), raising=False)
    (case,) = (case for case in conformance_cases(f"{__name__}:Faulty") if case.id == f"state/triton-{name}")
    with pytest.raises(ConformanceError):
        case.run()


# ---- which rows, and which layers

OF_KIND = {kind.name: kind for kind in KINDS if not kind.variant}


def test_a_launch_that_fills_has_zeros_where_there_is_no_row() -> None:
    """Rows of padding that decode are written, since nothing else is before them in a captured launch."""
    for mixer in state_mixers(INTERPRETED):
        kind = OF_KIND[mixer.kind]
        made = StateTrial(mixer, kind, "float32", reference_ops(), "int32")
        launch = made.launch([Row(1, 1, 0)])
        plan = made.backend.plan(launch, made.group, Unused())
        assert (plan.few, plan.fills, plan.padded) == (3, True, False)
        x = torch.randn(3, kind.inputs)
        found = made.layer.fused(x, launch.positions, [made.planes], plan)
        assert found[0].abs().sum() > 0
        assert not found[1:].any()


class Unused:
    """Buffers of launches that are captured."""

    def get(self, name: str, shape: Any, dtype: str) -> Any:
        raise AssertionError("a plan needs no buffers")

    put = get


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        ("mamba2", {"dtype": "float64"}, "no kernels for float64"),
        ("mamba2", {"kind": "rg_lru"}, "no mamba2 over rg_lru"),
        ("mamba2", {"options": (("kernel", 9), ("state_dim", 10))}, "a convolution over 9 tokens, more than 8"),
        ("mamba2", {"options": (("kernel", 4), ("state_dim", 256))}, "states of 256 for an element, more than 128"),
        ("mamba2", {"head_dim": 8192}, "groups of 24576 elements, more than 16384"),
        ("gated_delta_net", {"head_dim": 260}, "heads of 260, more than 256"),
        ("short_convolution", {"cache": StateSpec((), "bfloat16")}, "a state in bfloat16, not in float32"),
    ],
    ids=str,
)
def test_it_says_what_it_does_not_take(kind: str, change: dict[str, Any], why: str) -> None:
    (mixer,) = (mixer for mixer in state_mixers(INTERPRETED) if mixer.kind == kind)
    spec = OF_KIND[kind].spec("bfloat16")
    assert mixer.supports(spec) is None
    assert mixer.supports(replace(spec, **change)) == why
