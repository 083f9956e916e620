"""--batch-invariant: a row has the same bits in any batch, on every instruction set; and without it, it need not."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tessera.platform import BoundOps, GatedMLPSpec, GateSpec, LinearSpec, LoraSpec, RefusedError
from tessera.testing import REFERENCE, OpInputs
from tessera.testing.conformance import Target
from tessera.testing.conformance.lora import save_adapter
from tessera.testing.conformance.tiny import TinyRun, prompts_of
from tessera_cpu import native
from tessera_cpu.platform import CpuPlatform
from tests.platforms.cpu_kernels import available, kernels, needs_kernels

PLATFORM = f"{CpuPlatform.__module__}:{CpuPlatform.__name__}"
HEIGHTS = [1, 2, 3, 4, 5, 7, 12, 13, 33, 64, 389]
every_set = pytest.mark.parametrize("name", available())
best_set_first = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] if place else []) for place, name in enumerate(available())]
)
pytestmark = needs_kernels

Bits = list[tuple[list[int], list[float]]]


def bound(op: str, spec: Any) -> Any:
    platform = CpuPlatform()
    ops = BoundOps(platform.ops(REFERENCE), platform.open(0), batch_invariant=True)
    call = ops.bind(op, spec)
    assert ops.variant == {}
    return ops, call


def packed(ops: BoundOps, spec: LinearSpec) -> Any:
    return ops.prepare("linear", spec, {"weight": torch.randn(spec.n, spec.k).to(getattr(torch, spec.dtype))})


@every_set
@pytest.mark.parametrize("dtype", native.ENTRIES)
@pytest.mark.parametrize(("n", "k"), [(97, 131), (64, 1030), (40, 4100)])
def test_a_row_of_a_product_has_one_result_at_any_height(name: str, n: int, k: int, dtype: str) -> None:
    """A row of 4,100 inputs takes several blocks."""
    torch.manual_seed(n)
    x, spec = torch.randn(max(HEIGHTS), k).to(getattr(torch, dtype)), LinearSpec(n, k, dtype)
    with kernels(name):
        ops, linear = bound("linear", spec)
        weight = packed(ops, spec)
        first = linear(x[:1], weight)
        for height in HEIGHTS:
            for place in {0, height // 2, height - 1}:
                moved = x[torch.arange(height).roll(place)]
                assert torch.equal(linear(moved, weight)[place], first[0]), (height, place)


@every_set
@pytest.mark.parametrize("dtype", native.ENTRIES)
def test_a_row_of_a_gated_mlp_has_one_result_at_any_height(name: str, dtype: str) -> None:
    torch.manual_seed(3)
    spec = GatedMLPSpec(LinearSpec(2 * 1088, 130, dtype), GateSpec(1088, dtype), LinearSpec(130, 1088, dtype))
    x = torch.randn(max(HEIGHTS), 130).to(getattr(torch, dtype))
    with kernels(name):
        ops, mlp = bound("gated_mlp", spec)
        weights = packed(ops, spec.gate_up), packed(ops, spec.down)
        rows = [mlp(x[place : place + 1], *weights)[0] for place in range(14)]
        for height in HEIGHTS:
            result = mlp(x[:height], *weights)
            assert all(map(torch.equal, result, rows[:height])), height


@every_set
@pytest.mark.parametrize(("layers", "k", "rank"), [((5,), 7, 1), ((70, 33, 33), 40, 5), ((128, 96), 97, 16)])
def test_a_row_with_an_adapter_has_one_result_beside_any_neighbours(
    name: str, layers: tuple[int, ...], k: int, rank: int
) -> None:
    spec = LoraSpec(layers, k, rank, 3, "bfloat16")
    y, x, a, b, scales, slots = OpInputs(9, seed=4).arguments("lora", spec)
    slots.copy_(torch.tensor([1, 1, 1, 1, 1, 1, 2, 0, 1]))

    def added(rows: slice) -> Tensor:
        result = y[rows].clone()
        lora(result, x[rows], a, b, scales, slots[rows])
        return result

    with kernels(name):
        _, lora = bound("lora", spec)
        together = added(slice(9))
        for row in range(9):
            assert torch.equal(added(slice(row, row + 1))[0], together[row]), row


@every_set
def test_torchs_kernels_do_not_promise_it(name: str) -> None:
    platform = CpuPlatform()
    with kernels(name):
        ops = BoundOps(platform.ops(REFERENCE), platform.open(0), batch_invariant=True)
        specs = {
            "linear": LinearSpec(8, 8, "float16"),
            "gate": GateSpec(8, "float16", "gelu"),
            "lora": LoraSpec((5,), 7, native.MAX_RANK + 1, 3, "bfloat16"),
        }
        for op, spec in specs.items():
            ops.bind(op, spec)
        assert ops.variant.keys() == {*specs.items()}


# ---- whole models ----------------------------------------------------------------------------------------------------

LENGTHS = (1, 1500, 130, 2, 31, 1100, 257, 16, 700, 90)
"""Of prompts. The attention of more than 1,024 keys is split."""
FAMILIES: dict[str, dict[str, Any]] = {
    "groups": {"head_dim": 32, "num_attention_heads": 6, "num_key_value_heads": 2},
    "one head each": {"head_dim": 16, "num_attention_heads": 6, "num_key_value_heads": 6, "intermediate_size": 104},
    "one key head": {"head_dim": 48, "num_attention_heads": 13, "num_key_value_heads": 1},
    "window": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "head_dim": 32,
        "sliding_window": 150,
    },
    "mixture": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "head_dim": 32,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
    },
}


def answered(family: str, alone: bool, **flags: Any) -> Bits:
    """The tokens and log probabilities of requests that are alone, or in one batch."""
    rng = random.Random(5)
    flags = {"max_num_batched_tokens": 2048, "enable_prefix_caching": False, "batch_invariant": True, **flags}
    with TinyRun(
        Target(PLATFORM), "bfloat16", positions=2048, sizes=FAMILIES[family], logprobs=0, check_kv_cache=False,
        kv_cache_memory_bytes=1 << 24, **flags,
    ) as run:  # fmt: skip
        for number, length in enumerate(LENGTHS):
            run.add([rng.randrange(3, 101) for _ in range(length)], 6, number, temperature=float(number % 2))
            if alone:
                run.finish()
        run.finish()
        return list(zip(run.answers, run.logprobs, strict=True))


def differing(found: Bits, expected: Bits) -> list[int]:
    """The lengths of prompts whose answers have other bits."""
    return [length for length, mine, theirs in zip(LENGTHS, found, expected, strict=True) if mine != theirs]


@best_set_first
@pytest.mark.parametrize("family", FAMILIES)
def test_a_request_has_the_bits_that_it_has_alone(name: str, family: str) -> None:
    with kernels(name):
        alone = answered(family, alone=True)
        assert differing(answered(family, alone=False), alone) == []
        assert differing(answered(family, alone=False, max_num_batched_tokens=40), alone) == []


@pytest.mark.parametrize(
    "flags", [{"kv_cache_dtype": "int8"}, {"quantization": "int8"}, {"quantization": "int4"}], ids=str
)
def test_numbers_of_few_bits_are_no_exception(flags: dict[str, Any]) -> None:
    alone = answered("groups", alone=True, **flags)
    assert differing(answered("groups", alone=False, max_num_batched_tokens=100, **flags), alone) == []


def test_adapters_leave_the_bits_of_other_requests_as_they_are(tmp_path: Path) -> None:
    """Also of those without one, although a product with adapters is never fused with the gate after it."""
    with TinyRun(
        Target(PLATFORM), "bfloat16", sizes=FAMILIES["groups"], logprobs=0, batch_invariant=True, enable_lora=True,
        max_loras=2, enable_prefix_caching=False,
    ) as run:  # fmt: skip
        folders = [save_adapter(run.folder, tmp_path / str(seed), seed=seed) for seed in (1, 2)]
        args = [{}, *({"lora": str(folder)} for folder in folders)]
        prompts = prompts_of([5, 40, 17, 33, 1, 70, 20])
        for together in (False, True):
            for number, prompt in enumerate(prompts):
                run.add(prompt, 8, number, feature_args=args[number % 3])
                if not together:
                    run.finish()
            run.finish()
        first = len(prompts)
        assert run.answers[:first] == run.answers[first:]
        assert run.logprobs[:first] == run.logprobs[first:]


def test_more_threads_split_nothing_otherwise() -> None:
    alone = answered("groups", alone=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert differing(answered("groups", alone=False), alone) == []
    finally:
        torch.set_num_threads(threads)


def test_without_the_flag_bits_depend_on_the_batch() -> None:
    """Otherwise the tests above show nothing. Which family shows it depends on the processor."""

    def depends(family: str) -> bool:
        alone = answered(family, alone=True, batch_invariant=False)
        return differing(answered(family, alone=False, batch_invariant=False, max_num_batched_tokens=40), alone) != []

    assert any(map(depends, FAMILIES))


# ---- what is refused -------------------------------------------------------------------------------------------------


def refusal(sizes: dict[str, Any], dtype: str = "bfloat16", **flags: Any) -> str:
    with pytest.raises(RefusedError) as raised:
        TinyRun(Target(PLATFORM), dtype, sizes=sizes, batch_invariant=True, **flags)
    assert "\n" not in raised.value.message
    return raised.value.message


@pytest.mark.parametrize(
    ("sizes", "flags", "reason"),
    [
        (
            {"head_dim": 32},
            {"dtype": "float32"},
            "only products in bfloat16 are summed in one order, not those in float32",
        ),
        (
            {"head_dim": 12},
            {},
            "attention by 'sdpa' (6 heads over 2 of 12, bfloat16): batch invariance is not promised",
        ),
        (
            {"head_dim": 32, "final_logit_softcapping": 30.0},
            {"family": "gemma2"},
            "op 'soft_cap' (n=101, dtype=bfloat16, cap=30.0): batch invariance is not promised",
        ),
    ],
)
def test_what_is_not_promised_is_refused_by_name(sizes: dict[str, Any], flags: dict[str, Any], reason: str) -> None:
    message = refusal(sizes, **flags)
    assert message.startswith("platform 'cpu' does not run this with --batch-invariant: ")
    assert reason in message


def test_without_native_kernels_nothing_is_promised() -> None:
    with kernels("torch"):
        assert "attention by 'sdpa'" in refusal({"head_dim": 32})
