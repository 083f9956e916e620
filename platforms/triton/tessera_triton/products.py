"""Products with quantized weights: x W^T + b.

One kernel multiplies tiles. int8 with int8, and fp8 with fp8, go to the matrix instructions as they are; other weights
become numbers of the activations' dtype in the loop over the inputs, each of them exactly, and scales are applied to
float32 sums: once a group of inputs if groups or blocks have scales, else at the end. Those with minimums, or in groups
of 16, get their scales first and are rounded once (forms.py). Of four bits, a byte holds two numbers of the same output
that are STEP inputs apart, so both become tiles without moving elements between threads (cf. Frantar et al., Marlin,
arXiv:2408.11743).

If there are too few tiles for the device, programs share the inputs of a tile, and a second kernel adds their sums in
order, so that results repeat. Products that are not quantized are torch's, and so are those of many tokens in fp8 with
a scale for each token and output, for which vendors have kernels of their own (cuBLASLt, CUTLASS, hipBLASLt)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import gcd
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from tessera.platform import ActSpec, BoundOps, Device, Kernel, LinearSpec, Packed, Quantized, Scheme
from tessera_triton.blocks import BLOCKS, STEP, as_int32
from tessera_triton.emission import why_not_quantized
from tessera_triton.exact import from_eight_bits
from tessera_triton.facts import DeviceFacts, Launcher, power_of_two
from tessera_triton.forms import BRAIN, FLOATS, HALF, Form, high_bits, numbers_of, scale_of, zero_of
from tessera_triton.fp8 import FNUZ, in_fnuz
from tessera_triton.quantize import Quantizer
from tessera_triton.tiles import kind_of, most_sums, warps_of
from tessera_triton.tuned import Tiling, Tilings, checked, measured

_COMPUTE: Mapping[str, Any] = MappingProxyType({"bfloat16": tl.bfloat16, "float16": tl.float16, "float32": tl.float32})
_STORED: Mapping[str, str] = MappingProxyType(
    {"int8": "int8", "int4": "uint8", "fp8_e4m3": "float8_e4m3fn", "fp8_e4m3fnuz": "float8_e4m3fnuz"}
)
"""The dtype of the part "weight", by that of the scheme."""
_SCALED = ("gfx942", "gfx950")
"""Architectures of AMD for whose fp8 hipBLASLt has products with scales of rows."""
_FEW = 64
"""Tokens up to which fp8 is read by our kernel, which shares the inputs of a tile among programs. Not measured."""
_BAND = 8  # tiles of tokens that are computed together, so that they find weights in a cache


# ---- kernels


@triton.jit
def _with_step(
    total, x, x_scale, x_scale_step, place, k, weight, factor, inside_m,
    STEP: tl.constexpr, COMPUTE: tl.constexpr, GROUP: tl.constexpr, X_SCALE: tl.constexpr,
):  # fmt: skip
    """total, and the product of the STEP inputs from `place` on with a weight of [STEP, BLOCK_N]. x, x_scale: pointers
    to where rows start. factor: GROUP: [BLOCK_N], which the product is multiplied with."""
    column = place + tl.arange(0, STEP)
    some = tl.load(x + column[None, :], mask=inside_m[:, None] & (column < k)[None, :], other=0.0)
    if COMPUTE is not None:
        some = from_eight_bits(some, COMPUTE)
    exact: tl.constexpr = 0 if COMPUTE is not None else STEP  # inputs after which sums of fp8 are rounded to float32
    if GROUP:
        part = tl.dot(some, weight, input_precision="ieee", max_num_imprecise_acc=exact)
        part = part * factor[None, :]
        if X_SCALE == 2:
            part *= tl.load(x_scale + place // GROUP * x_scale_step, mask=inside_m & (place < k), other=0.0)[:, None]
        return total + part
    return tl.dot(some, weight, total, input_precision="ieee", max_num_imprecise_acc=exact, out_dtype=total.dtype)


@triton.jit
def _scaled(
    weight, factor, minimum, scale, larger, column, scale_stride, place, scale_step, inside,
    STEP: tl.constexpr, GROUP: tl.constexpr, SCALING: tl.constexpr,
):  # fmt: skip
    """Weights [STEP, BLOCK_N] in float32, with the scales and minimums of the group, or the two, that they are."""
    if GROUP < STEP:
        second, _ = scale_of(scale, larger, column, scale_stride, place // GROUP + 1, scale_step, inside, SCALING)
        first = tl.arange(0, STEP)[:, None] < GROUP
        return weight * tl.where(first, factor[None, :], second[None, :]) + minimum[None, :]
    return weight * factor[None, :] + minimum[None, :]


@triton.jit
def _finished(total, row, column, inside_m, inside_n, x_scale, x_scale_stride, scale, bias, X_SCALE: tl.constexpr,
              GROUP: tl.constexpr, BIAS: tl.constexpr):  # fmt: skip
    """float32: the sums, with the scales of whole rows and columns, and the bias."""
    value = total.to(tl.float32)
    if X_SCALE == 1:
        value *= tl.load(x_scale + row * x_scale_stride, mask=inside_m, other=0.0)[:, None]
    if GROUP == 0:
        value *= tl.load(scale + column, mask=inside_n, other=0.0).to(tl.float32)[None, :]
    if BIAS:
        value += tl.load(bias + column, mask=inside_n, other=0.0).to(tl.float32)[None, :]
    return value


# x, x_stride                               [m, k]; elements from a row to the next
# x_scale, x_scale_stride, x_scale_step     X_SCALE: of x; elements from a row, and from a group, to the next
# weight, weight_stride, weight_step        [n, k], or PAIRS [n, k / 2]; from a row to the next, and from a turn
# high                                      HIGH: int32 [2 * turns, n]
# scale, scale_stride, scale_step           of the weight; elements from an output, and from a group, to the next
# larger                                    what scales are multiples of, if they are; placed as the scales are
# zeros                                     ZEROS: in groups of inputs, int32 [words, n]
# bias                                      BIAS: [n]
# out, out_stride                           [m, n], or SPLIT [parts, m, n]; elements from a row to the next
# m, n, k                                   rows, outputs, inputs
# steps, steps_each                         turns of the loop over the inputs: of all programs, and of one
# BLOCK_M, BLOCK_N, STEP                    rows and outputs of a tile, inputs of a turn (of half a turn of PAIRS)
# BAND                                      tiles of rows that are computed before the next tile of outputs
# COMPUTE, PAIRS, HIGH, SHIFT, LEVELS, ZEROS, SCALING, EARLY, GROUP, ROWS, X_SCALE, BIAS, SPLIT    below
@triton.jit(do_not_specialize=["m", "steps_each"])
def _product(
    x, x_stride, x_scale, x_scale_stride, x_scale_step, weight, weight_stride, weight_step, high, scale, scale_stride,
    scale_step, larger, zeros, bias, out, out_stride, m, n, k, steps, steps_each,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STEP: tl.constexpr, BAND: tl.constexpr, COMPUTE: tl.constexpr,
    PAIRS: tl.constexpr, HIGH: tl.constexpr, SHIFT: tl.constexpr, LEVELS: tl.constexpr, ZEROS: tl.constexpr,
    SCALING: tl.constexpr, EARLY: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, X_SCALE: tl.constexpr,
    BIAS: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """out [m, n], or with SPLIT sums [parts, m, n] of the inputs of each part. COMPUTE: what both operands become; None
    if they are multiplied as they are. PAIRS: weights are codes of four bits, and HIGH more; SHIFT is that of zero;
    LEVELS, SCALING, EARLY: of their form. GROUP: inputs that share a scale of the weight; 0: all. ROWS: outputs that
    share one. X_SCALE: what shares one of x: 1: a token; 2: a group. 0: there are none."""
    tile, part = tl.program_id(0), tl.program_id(1)
    band = BAND * tl.cdiv(n, BLOCK_N)
    first = tile // band * BAND
    height = tl.minimum(tl.cdiv(m, BLOCK_M) - first, BAND)
    row = (first + tile % band % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tile % band // height * BLOCK_N + tl.arange(0, BLOCK_N)
    inside_m, inside_n = row < m, column < n
    x_rows = x + row.to(tl.int64)[:, None] * x_stride
    inputs = tl.arange(0, STEP)
    weights = weight + column.to(tl.int64)[None, :] * weight_stride + inputs[:, None]
    x_scales = x_scale + row * x_scale_stride
    whole: tl.constexpr = COMPUTE is None and GROUP == 0 and weight.dtype.element_ty == tl.int8
    wide: tl.constexpr = tl.float32 if EARLY else COMPUTE
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.int32 if whole else tl.float32)
    begin = part * steps_each
    for step in range(begin, tl.minimum(begin + steps_each, steps)):
        ahead = weights + tl.cast(step, tl.int64) * weight_step
        if PAIRS:
            pairs = tl.load(ahead, mask=inside_n[None, :], other=0).to(tl.int32)
        for half in tl.static_range(2 if PAIRS else 1):
            place = (2 * step + half if PAIRS else step) * STEP
            if PAIRS:
                codes = (pairs >> 4) if half else (pairs & 15)
                if HIGH:
                    codes |= high_bits(high, n, column, inside_n, place, inputs, HIGH)
                shift = tl.full((BLOCK_N,), SHIFT, tl.float32)
                if ZEROS:
                    shift += zero_of(zeros, column, scale_stride, place // GROUP, scale_step, inside_n & (place < k))
                some = numbers_of(codes, shift[None, :], wide, LEVELS)
            else:
                some = tl.load(ahead, mask=inside_n[None, :] & (place + inputs < k)[:, None], other=0.0)
                if COMPUTE is not None:
                    some = from_eight_bits(some, COMPUTE)
                if ZEROS:
                    zero = zero_of(zeros, column, scale_stride, place // GROUP, scale_step, inside_n & (place < k))
                    some = some - zero.to(COMPUTE)[None, :]
            factor = column  # nothing is multiplied with it, unless groups have scales
            if GROUP:
                factor, minimum = scale_of(
                    scale, larger, column // ROWS, scale_stride, place // GROUP, scale_step, inside_n & (place < k),
                    SCALING,
                )  # fmt: skip
            if EARLY:
                some = _scaled(
                    some, factor, minimum, scale, larger, column, scale_stride, place, scale_step,
                    inside_n & (place < k), STEP, GROUP, SCALING,
                ).to(COMPUTE)  # fmt: skip
            total = _with_step(
                total, x_rows, x_scales, x_scale_step, place, k, some, factor, inside_m,
                STEP, COMPUTE, 0 if EARLY else GROUP, X_SCALE,
            )  # fmt: skip
    inside = inside_m[:, None] & inside_n[None, :]
    if SPLIT:
        place = (part * m + row).to(tl.int64)[:, None] * n + column[None, :]
        tl.store(out + place, total, mask=inside)
    else:
        value = _finished(
            total, row, column, inside_m, inside_n, x_scale, x_scale_stride, scale, bias, X_SCALE, GROUP, BIAS
        )
        place = row.to(tl.int64)[:, None] * out_stride + column[None, :]
        tl.store(out + place, value.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["m", "parts"])
def _join(
    sums, x_scale, x_scale_stride, scale, bias, out, out_stride, m, n, parts,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, X_SCALE: tl.constexpr, GROUP: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """out [m, n], from the sums [parts, m, n] of the parts."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside_m, inside_n = row < m, column < n
    inside = inside_m[:, None] & inside_n[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), sums.dtype.element_ty)
    for part in range(parts):
        place = (part * m + row).to(tl.int64)[:, None] * n + column[None, :]
        total += tl.load(sums + place, mask=inside, other=0)
    value = _finished(
        total, row, column, inside_m, inside_n, x_scale, x_scale_stride, scale, bias, X_SCALE, GROUP, BIAS
    )
    place = row.to(tl.int64)[:, None] * out_stride + column[None, :]
    tl.store(out + place, value.to(out.dtype.element_ty), mask=inside)


# ---- sizes of tiles


_WIDEST_STEP: Mapping[int, int] = MappingProxyType({1: 128, 2: 64, 4: 32})
"""Inputs that a program multiplies at a time, by the bytes of an operand: 128 bytes of each row."""
_LONGEST_SPLIT = 8
_STEPS_OF_A_PART = 4  # fewer would not hide the time that the first takes to arrive


def tiling(
    facts: DeviceFacts, tokens: int, n: int, steps: int, size: int, *, grouped: bool = False, pairs: bool = False
) -> Tiling:
    """size: bytes of an element as it is multiplied. grouped: groups have scales, which takes a second tile of sums.
    pairs: of int4. Shapes alone decide, so that a captured launch stays right."""
    most = most_sums(facts, two=grouped, unpacking=pairs)
    m = min(max(power_of_two(tokens), 16), 128 if size < 4 else 64, most // 64)
    # Of codes, a wide tile of few tokens reads each token's inputs half as often.
    light = pairs and m <= 32 and n // 128 * _LONGEST_SPLIT >= facts.processors and "twice" not in kind_of(facts)
    wide = 128 if (light or m >= (128 if pairs else 64)) and size < 4 and 128 * m <= most else 64
    tiles = -(-tokens // m) * -(-n // wide)
    wanted = 2 * facts.processors // tiles
    parts = max(min(wanted, steps // _STEPS_OF_A_PART, _LONGEST_SPLIT), 1) if tokens <= 64 else 1
    stages = 2 if facts.backend == "hip" else 4 if m <= 64 and facts.shared_bytes > 100 << 10 else 3
    return Tiling(m, wide, warps_of(facts, m * wide, two=grouped, unpacking=pairs), stages, parts)


# ---- places


def step_of(spec: LinearSpec, scheme: Scheme) -> int:
    """The inputs that are multiplied at a time; all of them share a scale, but in blocks, where halves may have their
    own. 0: there are too few that do."""
    if scheme.weight.encoding is not None:
        return STEP
    size = 1 if _as_it_is(scheme) else torch.finfo(getattr(torch, spec.dtype)).bits // 8
    step = _WIDEST_STEP[size]
    shared = shared_inputs(scheme)
    found = gcd(step, shared) if shared else step
    return found if found >= (32 if size == 1 else 16) else 0


def shared_inputs(scheme: Scheme) -> int:
    """Inputs that share a scale of the weight; 0: all."""
    return form_of(scheme).group


def form_of(scheme: Scheme) -> Form:
    """How kernels read a weight of a scheme that is supported."""
    weight = scheme.weight
    if weight.encoding is not None:
        return BLOCKS[weight.dtype].form
    bits, zero = (4, 8) if weight.dtype == "int4" else (0, 0)
    if weight.block is not None:
        return Form(group=weight.block[1])
    scaling = {"float16": HALF, "bfloat16": BRAIN}.get(weight.scale_dtype if weight.group else "", FLOATS)
    return Form(bits, zero, weight.group, scaling.value)


class Places(NamedTuple):
    """Where the numbers of a packed weight are: elements from an output to the next, and from a turn of the loop over
    the inputs (of STEP inputs, or 2 * STEP of pairs); and the same of its scales, by output (or block) and group."""

    stride: int
    step: int
    scale_stride: int
    scale_step: int


def places_of(weight: Packed, scheme: Scheme, step: int) -> Places:
    """step: inputs that are multiplied at a time."""
    stored, scale = weight["weight"], weight["scale"]
    if scheme.weight.encoding is not None:
        return Places(step, stored.stride(0), 1, scale.stride(0))
    across, along = strides_of(scale, scheme)
    return Places(stored.stride(0), step, across, along)


def strides_of(scale: Tensor, scheme: Scheme) -> tuple[int, int]:
    """The strides of a packed weight's scales, and zero points, from output (or block) to output and from group to
    group."""
    if not shared_inputs(scheme):
        return 1, 0
    across, along = scale.stride()
    return (across, along) if scheme.weight.block is not None else (along, across)


def _as_it_is(scheme: Scheme) -> bool:
    """Whether weights and activations are multiplied in the dtype that they are stored in."""
    return scheme.activation is not None and scheme.activation.dtype == scheme.weight.dtype


def _why_no_weight(spec: LinearSpec, scheme: Scheme, facts: DeviceFacts) -> str | None:
    weight, stored = scheme.weight, _STORED.get(scheme.weight.dtype)
    if weight.encoding is not None:
        return None if weight.dtype in BLOCKS else f"no products with blocks of {weight.dtype}"
    if stored is None or stored != scheme.parts["weight"].dtype:
        return f"weights of {weight.dtype}"
    if weight.dtype.startswith("fp8") and stored != facts.fp8:
        return f"{facts.name} has no {stored}"
    if weight.dtype == "int4" and weight.granularity != "group":
        return "int4 has scales of groups"
    if weight.granularity not in ("channel", "group", "block"):
        return "weights have scales of outputs, groups or blocks"
    if not weight.symmetric and (weight.dtype not in ("int4", "int8") or not weight.group or _as_it_is(scheme)):
        return "zero points are those of groups of int4, or of int8 whose activations are not"
    if not step_of(spec, scheme):
        return (
            f"{shared_inputs(scheme)} inputs share a scale; kernels take multiples of {32 if _as_it_is(scheme) else 16}"
        )
    return None


def _why_no_activation(scheme: Scheme, facts: DeviceFacts) -> str | None:
    given, weight = scheme.activation, scheme.weight
    if given is None:
        return None
    if weight.encoding is not None:
        return "blocks are multiplied with activations as they are"
    if given.dtype != weight.dtype and (given.dtype, weight.dtype) != ("int8", "int4"):
        return f"activations of {given.dtype} with weights of {weight.dtype}"
    if given.granularity == "group" and given.group != shared_inputs(scheme):
        return "groups of activations differ from those of weights"
    return why_not_quantized(given, facts)


@dataclass(frozen=True)
class Linear(Kernel[LinearSpec]):
    """x W^T + b, also with quantized weights; those of experts only as they are, for the kernels of experts."""

    facts: DeviceFacts
    launch: Launcher

    def supports(self, spec: LinearSpec) -> str | None:
        if spec.scheme is None:
            return None
        if spec.experts:
            return "no quantized experts"
        return _why_no_weight(spec, spec.scheme, self.facts) or _why_no_activation(spec.scheme, self.facts)

    def wants(self, spec: LinearSpec) -> ActSpec | None:
        given = spec.scheme.activation if spec.scheme is not None else None
        return None if given is None or given.static else given

    def prepare(self, spec: LinearSpec, raw: Packed, into: Packed | None = None) -> Packed:
        packed: dict[str, Tensor] = dict(raw)
        if spec.scheme is not None and spec.scheme.weight.encoding is not None:
            packed |= BLOCKS[spec.scheme.weight.dtype].packed(raw["weight"])
        if spec.scheme is not None and spec.scheme.weight.dtype == FNUZ and raw["weight"].dtype is torch.float8_e4m3fn:
            packed = dict(in_fnuz(raw))
        if spec.scheme is not None and spec.scheme.weight.granularity == "group":
            # Programs read the scales of neighbouring outputs together, and copy words ahead.
            for name in ("scale", "zero_point"):
                if name in raw:
                    packed[name] = as_int32(raw[name]) if raw[name].itemsize < 4 else raw[name].T.contiguous()
            if spec.scheme.weight.dtype == "int4":
                packed["weight"] = apart(raw["weight"], step_of(spec, spec.scheme))
        return super().prepare(spec, packed, into)

    def packed_bytes(self, spec: LinearSpec) -> int | None:
        if spec.scheme is None:
            return None
        weight, step = spec.scheme.weight, step_of(spec, spec.scheme)
        bias = spec.n * getattr(torch, spec.dtype).itemsize if spec.bias else 0
        if weight.encoding is not None:
            return BLOCKS[weight.dtype].packed_bytes(spec.n, spec.k) + bias
        if weight.granularity != "group":
            return None
        groups = spec.k // weight.group
        scales = -(-groups * getattr(torch, weight.scale_dtype).itemsize // 4) * 4
        zeros = 0 if weight.symmetric else -(-groups // 4) * 4
        codes = step * -(-spec.k // (2 * step)) if weight.dtype == "int4" else spec.k
        static = 4 if spec.scheme.activation is not None and spec.scheme.activation.static else 0
        return spec.n * (codes + scales + zeros) + bias + static

    def bind(self, spec: LinearSpec, ops: BoundOps, device: Device) -> Callable[..., Any]:
        if spec.scheme is None:
            return _plain
        by_torch = torch_takes(spec, spec.scheme, self.facts)
        product = Product(self.facts, self.launch, spec, spec.scheme, by_torch)
        tilings = measured(self.facts, triton.__version__, spec)
        if not tilings:
            return product
        define = ops.ops["linear"].reference
        assert define is not None, "linear is no composite"
        return replace(product, tilings=checked(spec, tilings, define, self.prepare, product.tiled, device.target))


def _plain(x: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
    result = F.linear(x, weight["weight"], weight.get("bias"))
    return result if out is None else out.copy_(result)


def apart(pairs: Tensor, step: int) -> Tensor:
    """int4 [n, k / 2], neighbours in a byte -> [n, ceil(k / (2 * step)) * step]: the low halves of each `step` bytes
    are that many inputs, the high halves those after them. What is beyond k multiplies zeros."""
    n, bytes_of_row = pairs.shape
    numbers = torch.stack((pairs & 15, pairs >> 4), dim=-1).view(n, 2 * bytes_of_row)
    halves = F.pad(numbers, (0, -2 * bytes_of_row % (2 * step))).view(n, -1, 2, step)
    return (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(1)


@dataclass(frozen=True)
class Product:
    """The hot call of linear with a quantized weight. by_torch: torch multiplies many tokens. tilings: that were
    measured; they come before torch."""

    facts: DeviceFacts
    launch: Launcher
    spec: LinearSpec
    scheme: Scheme
    by_torch: bool
    tilings: Tilings = field(default_factory=dict)

    def __call__(self, x: Tensor | Quantized, weight: Packed, *, out: Tensor | None = None) -> Tensor:
        spec, (data, x_scale) = self.spec, self._operand(x, weight)
        tokens = len(data)
        dtype, tiling = getattr(torch, spec.dtype), self.tilings.get(power_of_two(tokens))
        if self.by_torch and tokens > _FEW and tiling is None:
            product = _by_torch(data, x_scale, weight, dtype, fast=self.facts.name == "sm_90")
            return product if out is None else out.copy_(product)
        fits = out is not None and out.stride(-1) == 1
        made = out if fits and out is not None else torch.empty(tokens, spec.n, dtype=dtype, device=data.device)
        if tokens:
            self._run(data, x_scale, weight, made, tiling)
        return made if out is None or made is out else out.copy_(made)

    def tiled(self, x: Tensor, weight: Packed, tiling: Tiling) -> Tensor:
        """x W^T + b with tiles of these sizes, whatever the device would choose."""
        return replace(self, tilings={power_of_two(len(x)): tiling})(x, weight)

    def _operand(self, x: Tensor | Quantized, weight: Packed) -> tuple[Tensor, Tensor | None]:
        """x as it is multiplied, and its scales if the scheme says that it is quantized."""
        activation = self.scheme.activation
        if activation is not None and not isinstance(x, Quantized):
            scale = weight["input_scale"] if activation.static else None
            x = Quantizer(self.launch, self.spec.k, activation)(x, scale)
        return (_rows_apart(x.data), x.scale) if isinstance(x, Quantized) else (_rows_apart(x), None)

    def _run(self, data: Tensor, x_scale: Tensor | None, weight: Packed, out: Tensor, tiles: Tiling | None) -> None:
        spec, scheme, m, n, k = self.spec, self.scheme, len(data), self.spec.n, self.spec.k
        as_it_is, form, step = _as_it_is(scheme), form_of(scheme), step_of(spec, scheme)
        pairs, shared = form.bits > 0, form.group
        steps = -(-k // (2 * step if pairs else step))
        size = 1 if as_it_is else out.element_size()
        if tiles is None:
            tiles = tiling(self.facts, m, n, steps, size, grouped=shared > 0 and not form.early, pairs=pairs)
        stored, scale, bias = weight["weight"], weight["scale"], weight.get("bias")
        places = places_of(weight, scheme, step)
        grouped = scheme.activation is not None and scheme.activation.group > 0
        x_scales = scale if x_scale is None else x_scale
        x_scale_stride, x_scale_step = x_scales.stride() if x_scale is not None and x_scale.dim() > 1 else (0, 0)
        options = {
            "X_SCALE": 0 if x_scale is None else 2 if grouped else 1, "GROUP": shared, "BIAS": bias is not None
        }  # fmt: skip
        sums, split = out, tiles.parts > 1
        if split:
            kind = torch.int32 if data.dtype is torch.int8 and as_it_is and not shared else torch.float32
            sums = torch.empty(tiles.parts, m, n, dtype=kind, device=out.device)
        self.launch(
            _product, (-(-m // tiles.m) * -(-n // tiles.n), tiles.parts), data, data.stride(0), x_scales,
            x_scale_stride, x_scale_step, stored, places.stride, places.step, weight.get("high", stored), scale,
            places.scale_stride, places.scale_step, weight.get("larger", scale), weight.get("zero_point", scale),
            out if bias is None else bias, sums, out.stride(0), m, n, k, steps, -(-steps // tiles.parts),
            BLOCK_M=tiles.m, BLOCK_N=tiles.n, STEP=step, BAND=_BAND, COMPUTE=None if as_it_is else _COMPUTE[spec.dtype],
            PAIRS=pairs, HIGH=max(form.bits - 4, 0), SHIFT=form.zero, LEVELS=form.levels,
            ZEROS=not scheme.weight.symmetric, SCALING=form.scaling, EARLY=form.early,
            ROWS=scheme.weight.block[0] if scheme.weight.block else 1, SPLIT=split, num_warps=tiles.warps,
            num_stages=tiles.stages, **options,
        )  # fmt: skip
        if split:
            self.launch(
                _join, (-(-m // 16), -(-n // 128)), sums, x_scales, x_scale_stride, scale,
                out if bias is None else bias, out, out.stride(0), m, n, tiles.parts,
                BLOCK_M=16, BLOCK_N=128, num_warps=4, **options,
            )  # fmt: skip


def torch_takes(spec: LinearSpec, scheme: Scheme, facts: DeviceFacts) -> bool:
    """Whether torch multiplies these numbers with scales of tokens and outputs."""
    weight, activation = scheme.weight, scheme.activation
    by_row = weight.granularity == "channel" and activation is not None and activation.granularity == "token"
    whole = spec.n % 16 == spec.k % 16 == 0 and spec.dtype == "bfloat16"
    able = facts.arch in _SCALED or (facts.backend == "cuda" and int(facts.arch) >= 89)
    return weight.dtype.startswith("fp8") and _as_it_is(scheme) and by_row and whole and able


def _by_torch(x: Tensor, x_scale: Tensor | None, weight: Packed, dtype: torch.dtype, *, fast: bool) -> Tensor:
    """x [m, k], x_scale [m, 1], weight [n, k] with a scale [n] -> [m, n]. fast: Hopper's tensor cores add fp8 products
    with fewer bits than float32 has, and moving the sums into float32 on the way costs time, which vLLM and SGLang do
    not spend either."""
    assert x_scale is not None, "activations are quantized"
    return F.scaled_mm(
        x, weight["weight"].T, x_scale, F.ScalingType.RowWise, weight["scale"][None], F.ScalingType.RowWise,
        bias=weight.get("bias"), output_dtype=dtype, use_fast_accum=fast,
    )  # fmt: skip


def _rows_apart(x: Tensor) -> Tensor:
    """x with contiguous elements in each row; rows may have any stride."""
    return x if x.stride(-1) == 1 else x.contiguous()
