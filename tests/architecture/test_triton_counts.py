"""Counts that differ from launch to launch compile nothing: they are numbers to the kernels, not constants, and not
known to be 1 or divisible by 16 either."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

pytest.importorskip("triton")

from torch._subclasses.fake_tensor import FakeTensorMode

from tessera.ops import REFERENCE
from tessera.platform import ExpertsSpec, GateSpec, LinearSpec, LoraSpec
from tessera.platform.collectives import Alone
from tessera.platform.ops import BoundOps, replace
from tessera.testing.reference import host_device
from tessera_triton import TARGETS, TritonAttention, TritonEncoderAttention, kernels, state_mixers
from tessera_triton.fp8 import on_device
from tessera_triton.served import SCHEMES, AttentionPlace, served, served_attention, served_encoders, served_states
from tools.triton_launches import Inputs, Recorder, _attend, _encode, _mix

FACTS = TARGETS["sm_90"]


def compiled_for(op: str, spec: object, tokens: Iterable[int]) -> Counter[str]:
    """How many kinds of launches an op makes of each kernel, for so many tokens."""
    launch = Recorder(FACTS)
    table = replace(REFERENCE, **kernels(FACTS, launch))
    for number in tokens:
        ops = BoundOps(table, host_device(), {"tensor": Alone()})
        with FakeTensorMode(allow_non_fake_inputs=True):
            arguments = Inputs(number, 0, ops, "bfloat16").arguments(table[op], spec)
            ops.bind(op, spec)(*arguments)
    return Counter(recorded.kernel.__name__ for recorded in launch.launches.values())


@pytest.mark.parametrize("scheme", ["W8A8", "W4A16", "fp8 in blocks"])
def test_tokens_of_products(scheme: str) -> None:
    """Of few tokens, whose inputs are divided among programs, and of many."""
    spec = LinearSpec(4096, 4096, "bfloat16", on_device(SCHEMES[scheme], FACTS))
    few, many = compiled_for("linear", spec, (1, 3, 16)), compiled_for("linear", spec, (1030, 1600, 2048))
    assert (few["_product"], few["_join"], many["_product"]) == (1, 1, 1)


def test_tokens_of_experts() -> None:
    experts = ExpertsSpec(
        LinearSpec(2 * 512, 1024, "bfloat16", experts=8), GateSpec(512, "bfloat16"),
        LinearSpec(1024, 512, "bfloat16", experts=8), 2,
    )  # fmt: skip
    found = compiled_for("experts", experts, (1, 5, 16, 33))
    assert found == {"_count": 1, "_place": 1, "_expert_rows": 2, "_sum_of_experts": 1}


def test_tokens_of_adapters() -> None:
    found = compiled_for("lora", LoraSpec((1024, 512), 1024, 16, 8, "bfloat16"), (1, 7, 16, 200))
    assert found == {"_count": 1, "_place": 1, "_shrink": 1, "_expand": 1}


@pytest.mark.parametrize("op", sorted({place.op for place in served(FACTS)} - {"linear", "experts", "lora", "route"}))
def test_rows_of_other_ops(op: str) -> None:
    spec = next(place.spec for place in served(FACTS) if place.op == op)
    assert set(compiled_for(op, spec, (1, 3, 16, 100)).values()) == {1}


def test_rows_and_keys_of_attention() -> None:
    """Decode of few and many rows, long and short ones, alone and beside a prompt."""
    plain = next(served_attention())
    launch = Recorder(FACTS)
    for rows in ([(1, 9)], [(1, 16)] * 16, [(1, 9000), *[(1, 7)] * 30], [(1, 40), (1, 3), (70, 100)], [(2, 9), (1, 4)]):
        launch.place = "attention"
        _attend(AttentionPlace("attention", plain.layer, tuple(rows)), TritonAttention(FACTS, launch), launch)
    found = Counter(recorded.kernel.__name__ for recorded in launch.launches.values())
    assert (found["decode_rows"], found["combine_parts"], found["prefill_tiles"]) == (1, 1, 1)


def test_tokens_of_whole_texts() -> None:
    """Of any number of texts; a tile has 32, 64 or 128 queries, as the longest text needs."""
    plain = next(served_encoders())
    launch = Recorder(FACTS)
    for rows in ([1], [16] * 16, [1, 32, 7], [33], [64] * 5, [1, 65], [16] * 40 + [300], [1024, 128]):
        launch.place = "encoder"
        _encode(plain._replace(rows=tuple((tokens, tokens) for tokens in rows)), TritonEncoderAttention(FACTS, launch))
    assert sorted(recorded.constant("BLOCK_M") for recorded in launch.launches.values()) == [32, 64, 128]


def test_rows_of_states() -> None:
    """That decode, alone and beside prompts, and prompts of few and many tokens."""
    launch = Recorder(FACTS)
    mixers = {mixer.kind: mixer for mixer in state_mixers(FACTS, launch)}
    places = {place.layer.kind: place for place in served_states() if "decode" in place.name}
    for rows in ([1], [1] * 16, [3], [16], [1, 1, 70], [200, 1, 9]):
        for place in places.values():
            launch.place = place.name
            _mix(place._replace(rows=tuple((tokens, tokens) for tokens in rows)), mixers[place.layer.kind], launch)
    found = Counter(recorded.place.partition(",")[0] for recorded in launch.launches.values())
    once = {
        f"{kernel} of {kind}": 1
        for kind, names in {
            "gated delta net": ("norm_and_gate", "delta_steps", "delta_chunks", "delta_rows"),
            "mamba2": ("norm_and_gate", "space_steps", "space_rows"),
        }.items()
        for kernel in names
    }
    of_one_and_of_several = {f"convolve of {kind}": 2 for kind in ("gated delta net", "mamba2", "short convolution")}
    assert found == once | of_one_and_of_several
