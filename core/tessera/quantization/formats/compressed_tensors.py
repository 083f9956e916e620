"""The format compressed-tensors, which llm-compressor writes: integers and floats of 2 to 8 bits.

quantization_config puts modules into groups and says how the weights and activations of each group are quantized. For
a weight "NAME.weight" [n, k] of a group, the checkpoint holds
- NAME.weight, int8 or fp8 [n, k]; or NAME.weight_packed, int32 [n, k * bits / 32], rounded up: the first element in
  the lowest bits, with 2^(bits - 1) added to every element;
- NAME.weight_scale: [1], [n, 1], [n, k / group_size] or, for blocks, [n / outputs, k / inputs], rounded up;
- NAME.weight_zero_point, if the weight is asymmetric: packed, int32 [n * bits / 32, k / group_size], packed along n;
  otherwise int8, in the shape of the scales;
- NAME.input_scale [1], if the activations are static.
compressed_decoding.py has the tensors of weights that are decoded at load.
If kv_cache_scheme says that keys and values are in fp8, each attention layer has k_scale and v_scale [1]; older files
have k_proj.output_scale and v_proj.output_scale in their place.
It also holds NAME.weight_shape, [n, k], which is not read: config.json implies it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tessera.errors import ModelError
from tessera.platform.device import Reason, Tensor
from tessera.platform.quantization import (
    KV_FP8,
    Part,
    QuantSpec,
    Scheme,
    StoredWeight,
    TensorSpec,
    Unpacking,
    WeightFormat,
)
from tessera.quantization.blocks import stored_in_blocks
from tessera.quantization.formats.compressed_decoding import decoding
from tessera.quantization.formats.compressed_groups import FORMATS, ModuleGroup, group, targets
from tessera.quantization.formats.fields import Fields
from tessera.quantization.formats.integers import InputGroups, integer_scheme
from tessera.quantization.formats.kv_scales import kv_scale
from tessera.quantization.formats.patterns import NamePatterns

MAX_GROUPS = 1000

_WORD = 32  # bits of an int32, into which weights are packed


def compressed_tensors(config: Mapping[str, Any]) -> CompressedTensors:
    """config: quantization_config. Raises ModelError, naming the field, for what is not supported."""
    return CompressedTensors(Fields("quantization_config", config))


class CompressedTensors(WeightFormat):
    """A WeightFormat."""

    def __init__(self, config: Fields) -> None:
        config.refuse("transform_config", "moe_sparsity_config")
        self._kv = None if config.get("kv_cache_scheme") is None else _kv(config.table("kv_cache_scheme"))
        if config.get("sparsity_config") is not None:
            config.table("sparsity_config").one_of("format", ("dense",), "dense")
        form = config.one_of("format", FORMATS)
        groups = config.table("config_groups")
        if not 1 <= len(groups.values) <= MAX_GROUPS:
            number = f"{len(groups.values):,} groups, not 1 to {MAX_GROUPS:,}"
            raise ModelError(f"{groups.where} in config.json has {number}.")
        patterns = NamePatterns()
        self._ignore = targets(config, "ignore", patterns)
        self._groups = [group(groups.table(str(name)), form, patterns) for name in groups.values]

    def stored(self, weight: Part, module: str, dtype: str) -> StoredWeight | Part | Reason:
        name = weight.name.removesuffix(".weight")
        if module != "Linear" or len(weight.whole) != 2:
            return "this format quantizes the weights of Linear layers only"
        if self._ignore.rank(name, module) is not None:
            return "quantization_config.ignore names it"
        ranked = [
            (rank, number)
            for number, one in enumerate(self._groups)
            if (rank := one.targets.rank(name, module)) is not None
        ]
        if not ranked:
            return "no targets in quantization_config.config_groups name it"
        chosen = self._groups[min(ranked)[1]]
        if chosen.decoded:
            return replace(weight, decoding=decoding(chosen, weight, name))
        if chosen.block is None:
            return _Shard(chosen, weight, name, dtype).stored()
        return stored_in_blocks(weight, "weight_scale", chosen.block, chosen.activation)

    @property
    def kv(self) -> QuantSpec | None:
        return self._kv

    def kv_scales(self, attention: str) -> Mapping[str, Part]:
        return {} if self._kv is None else {f"{one}_scale": _kv_scale(attention, one) for one in "kv"}


def _kv(config: Fields) -> QuantSpec:
    config.one_of("type", ("float",), "int")
    config.one_of("num_bits", (8,), 8)
    config.one_of("symmetric", (True,), True)
    config.one_of("dynamic", (False,), False)
    config.one_of("strategy", ("tensor",), "tensor")
    return KV_FP8


def _kv_scale(attention: str, letter: str) -> Part:
    """letter: "k" or "v"."""
    return kv_scale(f"{attention}.{letter}_scale", f"{attention}.{letter}_proj.output_scale")


# ---- one weight


class _Shard:
    """A shard of a weight [n, k]: `rows` of its outputs, and the `width` inputs from first to last. size: inputs that
    share a scale in the checkpoint; group: in the shard, whose ends may cut groups, so that all of its groups have one
    size. Both are 0 for weights without groups."""

    def __init__(self, config: ModuleGroup, weight: Part, name: str, dtype: str) -> None:
        self.config, self.part, self.name, self.dtype = config, weight, name, dtype
        (self.n, self.k), (self.rows, self.width) = weight.whole, weight.shape
        self.first, self.last = weight.columns or (0, self.k)
        in_groups = config.strategy == "channel" and (config.bits == 4 or not config.symmetric)
        self.size = self.k if in_groups else min(config.size, self.k)
        if self.size and self.k % self.size:
            raise ModelError(
                f"{config.where}.weights.group_size ({self.size}) does not divide the {self.k} inputs of '{name}'."
            )
        self.groups = InputGroups(self.first, self.last, self.size)
        self.group = self.groups.inner if self.size else 0
        if config.bits == 4 and self.group % 2:
            advice = "" if weight.columns is None else "; use another --tensor-parallel-size"
            raise ModelError(
                f"'{name}' has a 4-bit scale for {self.group} of {self.width} inputs; only even numbers of inputs are "
                f"supported{advice}."
            )

    def stored(self) -> StoredWeight:
        config, group = self.config, self.group
        scale = self.dtype if group else "float32"
        scheme = integer_scheme(config.bits, group, scale, symmetric=config.symmetric) if group else self._by_row()
        parts = {"weight": self._packed() if config.packed else self._elements(), "scale": self._scale(scale)}
        if not config.symmetric:
            parts["zero_point"] = self._zero_points()
        if config.activation is not None and config.activation.static:
            scheme = replace(scheme, parts={**scheme.parts, "input_scale": TensorSpec("float32")})
            same = Unpacking(lambda scale: scale, 1)
            parts["input_scale"] = self._read("input_scale", (1,), None, None, "float32", unpacking=same, fill=1 / 32)
        return StoredWeight(replace(scheme, activation=config.activation), parts)

    def _by_row(self) -> Scheme:
        kind, dtype = ("fp8_e4m3", "float8_e4m3fn") if self.config.float else ("int8", "int8")
        return Scheme(
            QuantSpec(kind, "channel"),
            parts={"weight": TensorSpec(dtype, (1, 1)), "scale": TensorSpec("float32", (1,))},
        )

    def _read(
        self,
        suffix: str,
        whole: tuple[int, ...],
        rows: tuple[int, int] | None,
        columns: tuple[int, int] | None,
        dtype: str,
        *,
        unpacking: Unpacking | None = None,
        fill: float | None = None,
    ) -> Part:
        also = tuple(f"{name.removesuffix('.weight')}.{suffix}" for name in self.part.also)
        return Part(f"{self.name}.{suffix}", whole, rows, columns, fill, also, dtype, unpacking)

    def _elements(self) -> Part:
        dtype = "float8_e4m3fn" if self.config.float else "int8"
        return self._read("weight", self.part.whole, self.part.rows, self.part.columns, dtype)

    def _packed(self) -> Part:
        """Read as bytes, in which the elements of an int32 are in order; 4-bit elements stay two to a byte, as in a
        Scheme."""
        each, bits = _WORD // self.config.bits, self.config.bits
        columns = None if self.part.columns is None else (self.first // each, -(-self.last // each))
        begin, count = self.first % each * bits // 8, self.width * bits // 8

        def call(words: Tensor) -> Tensor:
            import torch

            elements = words.view(torch.uint8)[:, begin : begin + count]
            return elements if bits == 4 else (elements ^ 128).view(torch.int8)

        unpacking = Unpacking(call, self.rows, self.rows * self.width)
        whole = self.n, -(-self.k // each)
        return self._read("weight_packed", whole, self.part.rows, columns, "int32", unpacking=unpacking)

    def _scale(self, dtype: str) -> Part:
        largest = 448.0 if self.config.float else float(1 << self.config.bits - 1)
        fill = 1 / (largest * math.sqrt(self.k))
        if self.config.strategy == "tensor":
            repeated = Unpacking(lambda scale: scale.expand(self.rows), self.rows)
            return self._read("weight_scale", (1,), None, None, dtype, unpacking=repeated, fill=fill)
        if not self.group:
            flat = Unpacking(lambda scale: scale[:, 0], self.rows)
            return self._read("weight_scale", (self.n, 1), self.part.rows, None, dtype, unpacking=flat, fill=fill)
        unpacking, columns = Unpacking(self.groups.spread, self.rows), self.groups.bounds
        whole = self.n, self.k // self.size
        return self._read("weight_scale", whole, self.part.rows, columns, dtype, unpacking=unpacking, fill=fill)

    def _zero_points(self) -> Part:
        bits, each = self.config.bits, _WORD // self.config.bits
        first, last = self.part.rows or (0, self.n)

        def call(words: Tensor) -> Tensor:
            import torch

            shifts = torch.arange(0, _WORD, bits, dtype=torch.int32, device=words.device)
            apart = (words[:, None, :] >> shifts[:, None]) & ((1 << bits) - 1)
            points = apart.flatten(0, 1)[first % each :][: self.rows] - (1 << bits - 1)
            return self.groups.spread(points.to(torch.int8))

        unpacking = Unpacking(call, self.rows)
        whole, rows = (-(-self.n // each), self.k // self.size), (first // each, -(-last // each))
        return self._read("weight_zero_point", whole, rows, self.groups.bounds, "int32", unpacking=unpacking)
