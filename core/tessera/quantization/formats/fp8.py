"""The format fp8, which DeepSeek and transformers (FineGrainedFP8) write: blocks of a weight have a scale each.

For each linear layer NAME except the head and those that quantization_config.modules_to_not_convert names, the
checkpoint holds
- NAME.weight, fp8 (e4m3) [n, k];
- NAME.weight_scale_inv, float32 [n / 128, k / 128], rounded up, if weight_block_size is [128, 128]: in spite of its
  name, an element's value is the stored number times its scale. The input is rounded to fp8 with a scale for each token
  and 128 of its elements;
- otherwise NAME.weight_scale and, if activation_scheme is static, NAME.input_scale: one number each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations
from typing import Any

from tessera.platform.device import Reason
from tessera.platform.quantization import (
    ActSpec,
    Part,
    QuantSpec,
    Scheme,
    StoredWeight,
    TensorSpec,
    Unpacking,
    WeightFormat,
)
from tessera.quantization.blocks import stored_in_blocks
from tessera.quantization.formats.fields import Fields

_LEFT_OUT = ("modules_to_not_convert", "ignored_layers")
_HEAD = "lm_head"


def fp8(config: Mapping[str, Any]) -> Fp8:
    """config: quantization_config. Raises ModelError, naming the field, for what is not supported."""
    return Fp8(Fields("quantization_config", config))


class Fp8(WeightFormat):
    """A WeightFormat."""

    def __init__(self, config: Fields) -> None:
        config.one_of("fmt", ("e4m3",), "e4m3")
        config.one_of("scale_fmt", ("float", "ue8m0"), "float")
        self._block = None if config.get("weight_block_size") is None else config.block("weight_block_size")
        supported = ("dynamic", "static") if self._block is None else ("dynamic",)
        self._static = config.one_of("activation_scheme", supported, "dynamic") == "static"
        self._left_out = {name: field for field in _LEFT_OUT for name in config.strings(field)}

    def stored(self, weight: Part, module: str, dtype: str) -> StoredWeight | Reason:
        name = weight.name.removesuffix(".weight")
        if module != "Linear" or len(weight.whole) != 2:
            return "this format quantizes the weights of Linear layers only"
        parts = name.split(".")
        if parts[-1] == _HEAD:
            return "this format does not quantize the head"
        within = (".".join(parts[first:last]) for first, last in combinations(range(len(parts) + 1), 2))
        if (found := next((one for one in within if one in self._left_out), None)) is not None:
            return f"quantization_config.{self._left_out[found]} names it"
        if self._block is None:
            return with_one_scale(weight, static=self._static)
        groups = ActSpec("fp8_e4m3", granularity="group", group=self._block[1])
        return stored_in_blocks(weight, "weight_scale_inv", self._block, groups)


def with_one_scale(weight: Part, *, static: bool) -> StoredWeight:
    """A shard of "NAME.weight" in fp8 with one scale. static: the input has one too."""
    rows = weight.shape[0]
    shapes = {"weight": TensorSpec("float8_e4m3fn", (1, 1)), "scale": TensorSpec("float32", (1,))}
    repeated = Unpacking(lambda scale: scale.expand(rows), rows)
    fill = 1 / (448 * math.sqrt(weight.whole[1]))
    parts = {
        "weight": Part(weight.name, weight.whole, weight.rows, weight.columns, None, weight.also, "float8_e4m3fn"),
        "scale": _number(weight, ("weight_scale", "weight_scale_inv"), repeated, fill),
    }
    activation = ActSpec("fp8_e4m3", granularity="token")
    if static:
        activation = ActSpec("fp8_e4m3", granularity="tensor", static=True)
        shapes["input_scale"] = TensorSpec("float32")
        same = Unpacking(lambda scale: scale, 1)
        parts["input_scale"] = _number(weight, ("input_scale", "activation_scale"), same, 1 / 32)
    return StoredWeight(Scheme(QuantSpec("fp8_e4m3", "channel"), activation, parts=shapes), parts)


def _number(weight: Part, suffixes: tuple[str, ...], unpacking: Unpacking, fill: float) -> Part:
    """A single number that belongs to a weight. suffixes: the ends of the names that it may have."""
    stems = [name.removesuffix(".weight") for name in (weight.name, *weight.also)]
    name, *also = (f"{stem}.{suffix}" for suffix in suffixes for stem in stems)
    return Part(name, (1,), None, None, fill, tuple(also), "float32", unpacking)
