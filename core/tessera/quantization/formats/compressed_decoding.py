"""Weights of compressed-tensors that are decoded at load, because no Scheme has them: what is read for a shard.

For a weight "NAME.weight" [n, k] the checkpoint holds, beside what compressed_tensors.py says,
- nvfp4-pack-quantized: NAME.weight_packed, uint8 [n, k / 2], the first of two elements in the low half;
  NAME.weight_scale, fp8 [n, k / 16]; NAME.weight_global_scale [1], by which the scales are divided;
- mxfp4-pack-quantized: the same with NAME.weight_scale, uint8 [n, k / 32], powers of two, and no global scale;
- mxfp8-quantized: NAME.weight, fp8 [n, k], with scales as mxfp4 has them;
- with `actorder: group`, NAME.weight_g_idx, int32 [k]: the group of each input. With -1 in it, inputs are in order.
An element is (stored - zero point) * scale in float32, where the library has scales in their own dtype: rounded to that
dtype, the results are equal. What the config says of activations is not done: they are not rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tessera.errors import ModelError
from tessera.platform.device import Tensor
from tessera.platform.quantization import Decoding, Part
from tessera.quantization.formats.compressed_groups import FP4_GROUPS, MXFP8, ModuleGroup
from tessera.quantization.formats.decoded import bounds_of, finite, groups_of_inputs, part_of, span, unpack, words
from tessera.quantization.formats.small_floats import fp4, powers

_WEIGHT, _SCALE, _ZERO, _GLOBAL, _ORDER = (
    "weight", "weight_scale", "weight_zero_point", "weight_global_scale", "weight_g_idx",
)  # fmt: skip


@dataclass(frozen=True)
class _Bounds:
    """Of a shard along a dimension: elements from first to last, of which `each` share a scale."""

    first: int
    last: int
    each: int

    @property
    def scales(self) -> tuple[int, int]:
        return self.first // self.each, -(-self.last // self.each)

    def places(self, like: Tensor) -> Tensor:
        """Of an element's scale among those of the shard, int64 [last - first]."""
        import torch

        return torch.arange(self.first, self.last, device=like.device) // self.each - self.first // self.each


def decoding(group: ModuleGroup, weight: Part, name: str) -> Decoding:
    """Raises ModelError if the weight does not fit the group's format."""
    (n, k), (rows, columns) = weight.whole, bounds_of(weight)
    size = min(group.size, k)
    if size and k % size:
        raise ModelError(f"{group.where}.weights.group_size ({size}) does not divide the {k} inputs of '{name}'.")
    if group.form in FP4_GROUPS and k % 2:
        raise ModelError(f"'{name}' has {k} inputs, an odd number, where two make a byte.")
    shared = group.block or {"tensor": (n, k), "channel": (1, k)}.get(group.strategy, (1, size))
    outputs, inputs = _Bounds(*rows, min(shared[0], n)), _Bounds(*columns, min(shared[1], k))
    elements, skip = _elements(group, weight, rows, columns)
    parts = {_WEIGHT: elements, _SCALE: _scale(group, weight, outputs, inputs)}
    first_point = 0
    if not group.symmetric:
        parts[_ZERO], first_point = _zero_points(group, weight, outputs, inputs)
    if group.form == "nvfp4-pack-quantized":
        parts[_GLOBAL] = part_of(weight, _GLOBAL, (1,), dtype="float32", fill=1.0)
    if group.permuted:
        parts[_ORDER] = part_of(weight, _ORDER, (k,), dtype="int32", fill=-1)
    call = partial(_decode, group, tuple(parts), outputs, inputs, name, (skip, first_point), -(-k // inputs.each))
    return Decoding(tuple(parts.values()), call, _described(group, shared))


def _elements(group: ModuleGroup, weight: Part, rows: tuple[int, int], columns: tuple[int, int]) -> tuple[Part, int]:
    """What is read of the elements, and how many of a row are read before those of the shard."""
    n, k = weight.whole
    if group.packed:
        bounds, skip = span(columns, group.bits)
        part = part_of(weight, "weight_packed", (n, words(k, group.bits)), rows=rows, columns=bounds, dtype="int32")
        return part, skip
    if group.form in FP4_GROUPS:
        bounds = columns[0] // 2, -(-columns[1] // 2)
        return part_of(weight, "weight_packed", (n, k // 2), rows=rows, columns=bounds, dtype="uint8"), columns[0] % 2
    dtype = "float8_e4m3fn" if group.float else "int8"
    return part_of(weight, _WEIGHT, (n, k), rows=rows, columns=columns, dtype=dtype), 0


def _scale(group: ModuleGroup, weight: Part, outputs: _Bounds, inputs: _Bounds) -> Part:
    n, k = weight.whole
    dtype = "float8_e4m3fn" if group.form == "nvfp4-pack-quantized" else "float32"
    if group.form in ("mxfp4-pack-quantized", MXFP8):
        dtype = "uint8"
    if group.strategy == "tensor":
        return part_of(weight, _SCALE, (1,), dtype=dtype)
    whole = -(-n // outputs.each), -(-k // inputs.each)
    columns = None if group.permuted else inputs.scales
    return part_of(weight, _SCALE, whole, rows=outputs.scales, columns=columns, dtype=dtype)


def _zero_points(group: ModuleGroup, weight: Part, outputs: _Bounds, inputs: _Bounds) -> tuple[Part, int]:
    """What is read of the zero points, and how many of a column are read before those of the shard."""
    n, k = weight.whole
    if not group.packed:
        scale = _scale(group, weight, outputs, inputs)
        return part_of(weight, _ZERO, scale.whole, rows=scale.rows, columns=scale.columns, dtype="int8"), 0
    rows, skip = span((outputs.first, outputs.last), group.bits)
    whole, columns = (words(n, group.bits), -(-k // inputs.each)), None if group.permuted else inputs.scales
    return part_of(weight, _ZERO, whole, rows=rows, columns=columns, dtype="int32"), skip


def _decode(
    group: ModuleGroup, names: Sequence[str], outputs: _Bounds, inputs: _Bounds, name: str, skip: tuple[int, int],
    groups: int, *tensors: Tensor,
) -> Tensor:  # fmt: skip
    """A shard in float32. names: of the tensors. skip: elements of a row, and zero points of a column, before those of
    the shard. groups: of the whole weight."""
    read = dict(zip(names, tensors, strict=True))
    stored, scale = read[_WEIGHT], read[_SCALE]
    width = inputs.last - inputs.first
    if group.packed:
        values = unpack(stored, group.bits, 1)[:, skip[0] : skip[0] + width].float() - (1 << group.bits - 1)
    elif group.form in FP4_GROUPS:
        values = fp4(stored)[:, skip[0] : skip[0] + width]
    else:
        values = stored.float()
    label = f"{name}.{_SCALE}"
    scale = finite(scale.float(), label) if scale.dtype.is_floating_point else powers(scale, label)
    if _GLOBAL in read:
        scale = scale / finite(read[_GLOBAL], f"{name}.{_GLOBAL}", zero=False)
    of_input = inputs.places(scale)
    if _ORDER in read and (read[_ORDER].is_meta or int(read[_ORDER].min()) >= 0):
        of_input = groups_of_inputs(read[_ORDER], groups, f"{name}.{_ORDER}")[inputs.first : inputs.last]
    elif _ORDER in read:
        of_input = of_input + inputs.scales[0]

    def spread(shared: Tensor) -> Tensor:
        if shared.dim() == 1:
            return shared
        if outputs.each > 1:
            shared = shared[outputs.places(shared)]
        return shared if shared.shape[1] == 1 else shared[:, of_input]

    if _ZERO in read:
        points = read[_ZERO].float()
        if group.packed:
            fields = unpack(read[_ZERO], group.bits, 0)[skip[1] : skip[1] + outputs.last - outputs.first]
            points = fields.float() - (1 << group.bits - 1)
        values = values - spread(points)
    return values * spread(scale)


def _described(group: ModuleGroup, shared: tuple[int, int]) -> str:
    if group.form in FP4_GROUPS or group.form == MXFP8:
        return group.form.partition("-")[0]
    kind = "fp8" if group.float else f"int{group.bits}"
    each = {
        "tensor": "with one scale",
        "channel": "with one scale per row",
        "block": f"in blocks of {shared[0]} x {shared[1]}",
    }
    return f"{kind} {each.get(group.strategy, f'in groups of {shared[1]}')}"
