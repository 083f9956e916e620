"""The kernels of products with quantized weights, and of quantizing, compute what is meant, by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch

from tessera.platform import ActSpec, LinearSpec, PackedEmbeddingSpec, QuantizeSpec, QuantSpec, Scheme, TensorSpec
from tessera.testing import REFERENCE, TOLERANCES, OpInputs, assert_same, encoded_scheme, random_blocks, tolerance
from tessera.testing.conformance import Case, ConformanceError, conformance_cases
from tests.platforms.interpreted import Interpreted

# Kernels are interpreted if this is imported before them.
# isort: split
from tessera_triton import blocks
from tessera_triton.blocks import BLOCKS
from tessera_triton.facts import INTERPRETED, TARGETS, Launcher
from tessera_triton.fp8 import in_fnuz, on_device
from tessera_triton.lookup import PackedEmbedding
from tessera_triton.products import Linear, Product, torch_takes
from tessera_triton.quantize import Quantize


class Quantizing(Interpreted):
    """Takes every scheme, so that the conformance kit tries all that kernels support."""

    def scheme(self, scheme: Scheme) -> Scheme:
        return scheme


PLATFORM = f"{__name__}:{Quantizing.__name__}"
CASES = ("op/linear/", "op/quantize/", "op/packed_embedding/", "scheme/", "packed/")
DECLINED = ("scheme/int8-group-", "scheme/int4-group-8-", "packed/fp8-blocks-b", "packed/fp8-blocks-f")
"""Few inputs share a scale in these, or a number that no step divides."""
NOT_QUANTIZED = "weights that are not quantized are looked up by embedding"
EIGHT = "8 inputs share a scale; kernels take multiples of 16"


def cases() -> Iterator[Any]:
    """Those of blocks in bfloat16 each time, the others in turn; Q6_K has the most turns of the loop."""
    encoded = tuple(f"scheme/{name}-" for name in BLOCKS)
    for case in conformance_cases(PLATFORM):
        if case.id.startswith(CASES):
            rare = case.id.startswith(encoded) and (not case.id.endswith("-bfloat16") or "q6_k" in case.id)
            yield pytest.param(case, id=case.id, marks=[pytest.mark.nightly] if rare else [])


@pytest.mark.parametrize("case", [*cases()])
def test_it_conforms(case: Case) -> None:
    verdict = case.run()
    if case.id.startswith("op/packed_embedding/") and verdict.status == "falls back":
        assert verdict.text in (NOT_QUANTIZED, EIGHT)
    else:
        assert verdict.status == ("falls back" if case.id.startswith(DECLINED) else "passed")


# ---- what the kit does not try


TENSORS = {"int8": "int8", "int4": "uint8", "fp8_e4m3": "float8_e4m3fn"}


def scheme(weight: QuantSpec, activation: ActSpec | None = None) -> Scheme:
    """The scheme of a weight, as core stores it."""
    per = (1,) if not weight.group else (1, weight.group)
    element = TensorSpec(TENSORS[weight.dtype], (1, 2) if weight.dtype == "int4" else (1, 1))
    parts = {"weight": element, "scale": TensorSpec(weight.scale_dtype, weight.block or per)}
    if not weight.symmetric:
        parts["zero_point"] = TensorSpec("int8", per)
    if activation is not None and activation.static:
        parts["input_scale"] = TensorSpec("float32")
    return Scheme(weight, activation, parts=parts)


INT8, FP8 = ActSpec("int8", "token"), ActSpec("fp8_e4m3", "token")
INT4 = QuantSpec("int4", "group", 32, scale_dtype="bfloat16")
IN_BLOCKS = QuantSpec("fp8_e4m3", "block", block=(24, 64))
SCHEMES = {
    "w8a8": scheme(QuantSpec("int8", "channel"), INT8),
    "w8a16": scheme(QuantSpec("int8", "channel")),
    "w8a8 in groups": scheme(QuantSpec("int8", "group", 32), INT8),
    "w8a8 static": scheme(QuantSpec("int8", "channel"), replace(INT8, granularity="tensor", static=True)),
    "w4a16": scheme(INT4),
    "w4a16 asymmetric": scheme(replace(INT4, symmetric=False)),
    "w4a16 asymmetric, as GPTQ and AWQ": scheme(replace(INT4, symmetric=False, scale_dtype="float16")),
    "w4a8": scheme(INT4, INT8),
    "fp8": scheme(QuantSpec("fp8_e4m3", "channel"), FP8),
    "fp8, unquantized activations": scheme(QuantSpec("fp8_e4m3", "channel")),
    "fp8 in blocks": scheme(IN_BLOCKS, ActSpec("fp8_e4m3", "group", 64)),
    "fp8 in blocks, unquantized activations": scheme(IN_BLOCKS),
    "w8a16 in groups, asymmetric": scheme(QuantSpec("int8", "group", 32, symmetric=False, scale_dtype="bfloat16")),
}


def inputs(spec: LinearSpec, tokens: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """x, and the parts of a weight."""
    assert spec.scheme is not None
    make = OpInputs(tokens, 0)
    weight = dict(make.weight(spec))
    if not spec.scheme.weight.symmetric:
        most = 8 if spec.scheme.weight.dtype == "int4" else 128
        weight["zero_point"] = make.integers(-most, most, *weight["scale"].shape).to(torch.int8)
    if spec.scheme.activation is not None and spec.scheme.activation.static:
        weight["input_scale"] = torch.tensor(1 / 50)
    return make.normal(tokens, spec.k, dtype=spec.dtype), weight


class Counting(Launcher):
    """names: of the kernels that were launched."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __call__(self, kernel, grid, *arguments, **options) -> None:
        self.names.append(kernel.fn.__name__)
        super().__call__(kernel, grid, *arguments, **options)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", SCHEMES)
def test_programs_that_share_inputs_add_up(name: str, dtype: str) -> None:
    """Inputs long enough to be divided, and neither they nor outputs divide evenly into tiles."""
    spec = LinearSpec(72, 1184, dtype, SCHEMES[name], bias=True)
    launch = Counting()
    kernel = Linear(INTERPRETED, launch)
    assert kernel.supports(spec) is None
    x, raw = inputs(spec, 5)
    expected = REFERENCE["linear"].reference(spec, x, raw)
    packed = kernel.prepare(spec, raw)
    found = kernel.bind(spec, None, None)(x, packed)
    assert "_join" in launch.names
    assert_same(found, expected, TOLERANCES[dtype])
    assert kernel.packed_bytes(spec) in (None, sum(part.nbytes for part in packed.values()))


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("name", SCHEMES)
def test_rows_are_looked_up_as_they_are_packed(name: str, sharded: bool) -> None:
    linear = LinearSpec(72, 1120, "bfloat16", SCHEMES[name])
    spec = PackedEmbeddingSpec(linear, 72 if sharded else 0, sharded, 6.3125)
    raw = inputs(linear, 1)[1]
    tokens = torch.tensor([71, 0, 33, 72, 143, 150, 100]) if sharded else torch.tensor([71, 0, 33])
    found = PackedEmbedding(INTERPRETED, Launcher()).bind(spec, None, None)(
        tokens.int(), Linear(INTERPRETED, Launcher()).prepare(linear, raw)
    )
    expected = REFERENCE["packed_embedding"].reference(spec, tokens.int(), raw)
    assert_same(found, expected, tolerance("packed_embedding", "bfloat16"))


@pytest.mark.parametrize("name", ["w8a8", "w8a8 in groups", "w4a8", "fp8", "fp8 in blocks"])
def test_a_product_takes_what_it_wants(name: str) -> None:
    """A quantized input gives the same as the plain one."""
    spec = LinearSpec(40, 192, "bfloat16", SCHEMES[name])
    launch = Counting()
    kernel = Linear(INTERPRETED, launch)
    wanted = kernel.wants(spec)
    assert wanted == SCHEMES[name].activation
    x, raw = inputs(spec, 19)
    call, packed = kernel.bind(spec, None, None), kernel.prepare(spec, raw)
    given = REFERENCE["quantize"].reference(QuantizeSpec(spec.k, spec.dtype, wanted), x)
    found = call(given, packed)
    assert launch.names == ["_product"]
    assert_same(found, call(x, packed), 0.0)


def test_many_tokens_are_computed_in_bands() -> None:
    """More tiles of tokens than a band has, the last band partial."""
    spec = LinearSpec(136, 64, "bfloat16", SCHEMES["w8a8"])
    kernel = Linear(INTERPRETED, Launcher())
    x, raw = inputs(spec, 1200)
    given = REFERENCE["quantize"].reference(QuantizeSpec(spec.k, spec.dtype, INT8), x)
    found = kernel.bind(spec, None, None)(given, kernel.prepare(spec, raw))
    assert_same(found, REFERENCE["linear"].reference(spec, x, raw), TOLERANCES["bfloat16"])


@pytest.mark.parametrize("tokens", [64, 65])
def test_fp8_of_many_tokens_goes_to_torch(tokens: int) -> None:
    spec = LinearSpec(48, 208, "bfloat16", SCHEMES["fp8"], bias=True)
    launch = Counting()
    kernel = Linear(INTERPRETED, launch)
    x, raw = inputs(spec, tokens)
    given = REFERENCE["quantize"].reference(QuantizeSpec(spec.k, spec.dtype, FP8), x)
    found = kernel.bind(spec, None, None)(given, kernel.prepare(spec, raw))
    assert bool(launch.names) == (tokens <= 64)
    assert_same(found, REFERENCE["linear"].reference(spec, x, raw), TOLERANCES["bfloat16"])


@pytest.mark.parametrize(("name", "fast"), [("sm_89", False), ("sm_90", True), ("sm_100", False), ("gfx950", False)])
def test_fp8_is_summed_fast_where_the_peers_do_it(name: str, fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[bool] = []
    original = torch.nn.functional.scaled_mm

    def scaled_mm(*arguments: Any, use_fast_accum: bool, **options: Any) -> torch.Tensor:
        said.append(use_fast_accum)
        return original(*arguments, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_mm", scaled_mm)
    spec = LinearSpec(48, 208, "bfloat16", SCHEMES["fp8"])
    x, raw = inputs(spec, 65)
    product = Product(TARGETS[name], Launcher(), spec, SCHEMES["fp8"], by_torch=True)
    product(REFERENCE["quantize"].reference(QuantizeSpec(spec.k, spec.dtype, FP8), x), raw)
    assert said == [fast]


def test_torch_takes_what_its_products_do() -> None:
    spec, blocks = LinearSpec(48, 208, "bfloat16"), SCHEMES["fp8 in blocks"]
    own = {name: on_device(SCHEMES["fp8"], facts) for name, facts in TARGETS.items()}
    able = [name for name, one in own.items() if isinstance(one, Scheme) and torch_takes(spec, one, TARGETS[name])]
    assert able == ["sm_89", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950"]
    for other, one in (
        (spec, blocks),
        (replace(spec, n=40), SCHEMES["fp8"]),
        (replace(spec, dtype="float16"), SCHEMES["fp8"]),
    ):
        assert not torch_takes(other, one, INTERPRETED)


# ---- blocks of GGUF files


def of_blocks(kind: str, n: int, whole: int, dtype: str = "float32") -> tuple[LinearSpec, dict[str, torch.Tensor]]:
    """A place with so many blocks, and random ones."""
    own = encoded_scheme(kind)
    spec = LinearSpec(n, whole * own.granule(1), dtype, own)
    return spec, {"weight": random_blocks(own, (spec.n, spec.k), torch.Generator().manual_seed(n))}


def meant(spec: LinearSpec, raw: dict[str, torch.Tensor]) -> torch.Tensor:
    assert spec.scheme is not None
    assert spec.scheme.weight.encoding is not None
    return spec.scheme.weight.encoding.dequantize(raw)


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_mean_what_decoding_gives(kind: str) -> None:
    """Products whose inputs are divided among programs and do not fill the last turn, and rows that are looked up,
    each number exactly."""
    spec, raw = of_blocks(kind, 37, 3 if BLOCKS[kind].elements > 64 else 21)
    launch = Counting()
    kernel = Linear(INTERPRETED, launch)
    assert kernel.supports(spec) is None
    packed = kernel.prepare(spec, raw)
    assert kernel.packed_bytes(spec) == sum(part.nbytes for part in packed.values())
    weight, x = meant(spec, raw), OpInputs(3).normal(3, spec.k)
    assert_same(kernel.bind(spec, None, None)(x, packed), (x.double() @ weight.double().T).float(), 1e-5)
    assert "_join" in launch.names
    tokens = torch.tensor([36, 0, 20, 36], dtype=torch.int32)
    found = PackedEmbedding(INTERPRETED, launch).bind(PackedEmbeddingSpec(spec, scale=6.3125), None, None)
    assert torch.equal(found(tokens, packed), weight[tokens] * 6.3125)


@pytest.mark.filterwarnings("ignore:overflow")  # the largest are infinite
@pytest.mark.parametrize("kind", ["mxfp4", "nvfp4"])
def test_every_scale_of_a_byte_is_read(kind: str) -> None:
    """Also those whose products are no normal floats."""
    spec, raw = of_blocks(kind, 256, 1)
    raw["weight"][..., : 4 if kind == "nvfp4" else 1] = torch.arange(256, dtype=torch.uint8)[:, None, None]
    packed = Linear(INTERPRETED, Launcher()).prepare(spec, raw)
    found = PackedEmbedding(INTERPRETED, Launcher()).bind(PackedEmbeddingSpec(spec), None, None)
    assert torch.equal(found(torch.arange(256, dtype=torch.int32), packed), meant(spec, raw))


def _without_minimums(block: blocks.Block) -> blocks.Block:
    return replace(block, scale=lambda stored: block.scale(stored) & 255)


def _neighbours(block: blocks.Block) -> blocks.Block:
    """As of formats in which a byte has two inputs that are neighbours."""
    return replace(block, codes=lambda stored: block.codes(stored).unflatten(1, (-1, 2, 16)).mT.flatten(1))


def _four_bits(block: blocks.Block) -> blocks.Block:
    return replace(block, codes=lambda stored: block.codes(stored) & 15)


def _another_zero(block: blocks.Block) -> blocks.Block:
    return replace(block, form=replace(block.form, zero=block.form.zero - 1))


FAULTS = {"q4_k": _without_minimums, "q4_0": _neighbours, "q5_1": _four_bits, "q5_0": _another_zero}


@pytest.mark.parametrize("kind", FAULTS)
def test_the_kit_finds_faults(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: Callable[[blocks.Block], blocks.Block] = FAULTS[kind]
    monkeypatch.setattr("tessera_triton.products.BLOCKS", MappingProxyType({**BLOCKS, kind: wrong(BLOCKS[kind])}))
    (case,) = (case for case in conformance_cases(PLATFORM) if case.id == f"scheme/{kind}-bfloat16")
    with pytest.raises(ConformanceError, match="elements differ"):
        case.run()


def test_other_blocks_are_declined() -> None:
    spec, _ = of_blocks("q2_k", 8, 1)
    assert Linear(INTERPRETED, Launcher()).supports(spec) == "no products with blocks of q2_k"
    other = replace(encoded_scheme("q4_k"), activation=INT8)
    reason = "blocks are multiplied with activations as they are"
    assert Linear(INTERPRETED, Launcher()).supports(replace(spec, scheme=other)) == reason


# ---- the kinds of fp8


@pytest.mark.parametrize("name", ["fp8", "fp8, unquantized activations", "fp8 in blocks"])
def test_fnuz_means_the_same_numbers(name: str) -> None:
    """Every byte, and products of random ones."""
    facts = replace(INTERPRETED, backend="hip", arch="gfx942", fp8="float8_e4m3fnuz")
    own = on_device(SCHEMES[name], facts)
    assert own.weight.dtype == "fp8_e4m3fnuz"
    spec = LinearSpec(33, 192, "bfloat16", own)
    kernel = Linear(facts, Launcher())
    assert kernel.supports(spec) is None
    every = {"weight": torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn), "scale": torch.tensor([0.75])}
    meant = in_fnuz(every)
    assert torch.equal(
        (meant["weight"].float() * meant["scale"]).nan_to_num(9e9), (every["weight"].float() * 0.75).nan_to_num(9e9)
    )
    offered = replace(spec, scheme=SCHEMES[name])
    x, raw = inputs(offered, 5)
    found = kernel.bind(spec, None, None)(x, kernel.prepare(spec, raw))
    assert_same(found, REFERENCE["linear"].reference(spec, x, in_fnuz(raw)), TOLERANCES["bfloat16"])
    if own.activation is None:
        assert_same(found, REFERENCE["linear"].reference(offered, x, raw), TOLERANCES["bfloat16"])


def test_a_scheme_is_taken_as_the_device_multiplies_it() -> None:
    assert on_device(SCHEMES["fp8"], TARGETS["gfx90a"]) == "gfx90a has no 8-bit floats"
    assert on_device(SCHEMES["fp8"], TARGETS["sm_90"]) is SCHEMES["fp8"]
    assert on_device(SCHEMES["w8a8"], TARGETS["gfx90a"]) is SCHEMES["w8a8"]
    static = replace(FP8, granularity="tensor", static=True)
    own = on_device(scheme(QuantSpec("fp8_e4m3", "channel"), static), TARGETS["gfx942"])
    assert own.activation == replace(static, dtype="fp8_e4m3fnuz")
    assert own.parts["weight"].dtype == "float8_e4m3fnuz"
    assert own.parts["input_scale"] == TensorSpec("float32")


def test_prepared_weights_are_overwritten_in_place() -> None:
    spec = LinearSpec(40, 192, "bfloat16", SCHEMES["w4a16 asymmetric"])
    kernel = Linear(INTERPRETED, Launcher())
    first = kernel.prepare(spec, {name: torch.zeros_like(part) for name, part in inputs(spec, 1)[1].items()})
    places = {name: part.data_ptr() for name, part in first.items()}
    x, raw = inputs(spec, 3)
    again = kernel.prepare(spec, raw, first)
    assert {name: part.data_ptr() for name, part in again.items()} == places
    assert_same(kernel.bind(spec, None, None)(x, again), REFERENCE["linear"].reference(spec, x, raw), 3e-2)


@pytest.mark.parametrize(
    "emit", [ActSpec("fp8_e4m3", "token"), ActSpec("int8", "group", 128), ActSpec("fp8_e4m3", "group", 128)], ids=str
)
def test_long_rows_are_quantized(emit: ActSpec) -> None:
    """Longer than what a program holds."""
    spec = QuantizeSpec(8200, "bfloat16", emit)
    x = OpInputs(3).normal(3, spec.n, dtype=spec.dtype)
    found = Quantize(INTERPRETED, Launcher()).bind(spec, None, None)(x)
    expected = REFERENCE["quantize"].reference(spec, x)
    assert_same(found.scale, expected.scale, 1e-6)
    assert_same(found.data.float(), expected.data.float(), 0.0)


def test_what_a_device_lacks_is_declined() -> None:
    place = LinearSpec(64, 128, "bfloat16")
    declined = {
        "sm_80 has no float8_e4m3fn": (TARGETS["sm_80"], SCHEMES["fp8"]),
        "gfx942 has no float8_e4m3fn": (TARGETS["gfx942"], SCHEMES["fp8 in blocks"]),
        EIGHT: (INTERPRETED, scheme(replace(INT4, group=8))),
        "activations of int8 with weights of fp8_e4m3": (INTERPRETED, scheme(QuantSpec("fp8_e4m3", "channel"), INT8)),
    }
    for reason, (facts, one) in declined.items():
        assert Linear(facts, Launcher()).supports(replace(place, scheme=one)) == reason
    experts = replace(place, scheme=SCHEMES["w8a8"], experts=4)
    assert Linear(INTERPRETED, Launcher()).supports(experts) == "no quantized experts"
    assert Linear(INTERPRETED, Launcher()).supports(replace(place, experts=4)) is None
