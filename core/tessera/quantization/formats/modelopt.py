"""The format modelopt, which Model Optimizer writes: fp8 with one scale, and 4-bit floats in groups of 16.

The config is quantization_config in config.json or, in older files, `quantization` in hf_quant_config.json. For a
quantized "NAME.weight" [n, k] the checkpoint holds, by quant_algo,
- FP8: NAME.weight, fp8 (e4m3) [n, k], NAME.weight_scale and NAME.input_scale, one number each;
- NVFP4: NAME.weight, uint8 [n, k / 2], the first of two elements in the low half; NAME.weight_scale, fp8 [n, k / 16];
  NAME.weight_scale_2, one number, with which the scales are multiplied. NAME.input_scale is not used: activations are
  not rounded;
- MIXED_PRECISION: either, by layer, as quantized_layers says.
If keys and values are in fp8, each attention layer has k_proj.k_scale and v_proj.v_scale.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from tessera.errors import ModelError
from tessera.platform.device import Reason, Tensor
from tessera.platform.quantization import KV_FP8, Decoding, Part, QuantSpec, StoredWeight, WeightFormat
from tessera.quantization.formats.decoded import bounds_of, finite, part_of
from tessera.quantization.formats.fields import Fields
from tessera.quantization.formats.fp8 import with_one_scale
from tessera.quantization.formats.kv_scales import kv_scale
from tessera.quantization.formats.patterns import NamePatterns
from tessera.quantization.formats.small_floats import fp4

_GROUP = 16  # inputs that share a scale
_ALGORITHMS = ("FP8", "NVFP4", "W4A16_NVFP4")
_MIXED = "MIXED_PRECISION"
_LEFT_OUT = ("exclude_modules", "ignore")


def modelopt(config: Mapping[str, Any]) -> ModelOpt:
    """config: quantization_config. Raises ModelError, naming the field, for what is not supported."""
    return ModelOpt(Fields("quantization_config", config))


class ModelOpt(WeightFormat):
    """A WeightFormat."""

    def __init__(self, config: Fields) -> None:
        self._where, self._patterns = config.where, NamePatterns()
        self._algorithm = _algorithm(config, (*_ALGORITHMS, _MIXED))
        self._layers: Mapping[str, str] | None = None
        if self._algorithm == _MIXED:
            layers = config.table("quantized_layers")
            self._layers = {name: _algorithm(layers.table(str(name)), _ALGORITHMS) for name in layers.values}
        config.one_of("kv_cache_quant_algo", (None, "FP8"))
        scheme = None if config.get("kv_cache_scheme") is None else config.table("kv_cache_scheme")
        if scheme is not None:
            scheme.one_of("num_bits", (8,))
            scheme.one_of("type", ("float",))
        self._kv = KV_FP8 if scheme is not None or config.get("kv_cache_quant_algo") else None
        self._left_out = [
            (field, name, self._patterns.compiled(fnmatch.translate(name), f"{config.where}.{field}"))
            for field in _LEFT_OUT
            for name in config.strings(field)
        ]

    def stored(self, weight: Part, module: str, dtype: str) -> StoredWeight | Part | Reason:
        name = weight.name.removesuffix(".weight")
        if module != "Linear" or len(weight.whole) != 2:
            return "this format quantizes the weights of Linear layers only"
        for field, text, pattern in self._left_out:
            where = f"{self._where}.{field}"
            if name.startswith(f"{text}.") or self._patterns.matches(pattern, name, where):
                return f"{where} names it"
        algorithm: str | None = self._algorithm if self._layers is None else self._layers.get(name)
        if algorithm is None:
            return f"{self._where}.quantized_layers does not name it"
        if algorithm == "FP8":
            return with_one_scale(weight, static=True)
        return replace(weight, decoding=_decoding(weight, name))

    @property
    def kv(self) -> QuantSpec | None:
        return self._kv

    def kv_scales(self, attention: str) -> Mapping[str, Part]:
        if self._kv is None:
            return {}
        names = {f"{one}_scale": f"{attention}.{one}_proj.{one}_scale" for one in "kv"}
        return {scale: kv_scale(name, f"{attention}.{scale}") for scale, name in names.items()}


def _algorithm(config: Fields, supported: tuple[str, ...]) -> str:
    algorithm: str = config.one_of("quant_algo", supported)
    if "NVFP4" in algorithm:
        config.one_of("group_size", (_GROUP,), _GROUP)
    return algorithm


def _decoding(weight: Part, name: str) -> Decoding:
    (n, k), (rows, (first, last)) = weight.whole, bounds_of(weight)
    if k % _GROUP:
        raise ModelError(f"'{name}' has {k} inputs, which groups of {_GROUP} do not divide.")
    halves, groups = (first // 2, -(-last // 2)), (first // _GROUP, -(-last // _GROUP))
    parts = (
        part_of(weight, "weight", (n, k // 2), rows=rows, columns=halves, dtype="uint8"),
        part_of(weight, "weight_scale", (n, k // _GROUP), rows=rows, columns=groups, dtype="float8_e4m3fn"),
        part_of(weight, "weight_scale_2", (1,), dtype="float32", fill=1.0),
    )
    return Decoding(parts, partial(_decode, name, first, last), f"nvfp4 in groups of {_GROUP}")


def _decode(name: str, first: int, last: int, codes: Tensor, scales: Tensor, common: Tensor) -> Tensor:
    """A shard of the inputs first to last in float32."""
    import torch

    scales = finite(scales.float(), f"{name}.weight_scale") * finite(common, f"{name}.weight_scale_2")
    of_input = torch.arange(first, last, device=scales.device) // _GROUP - first // _GROUP
    return fp4(codes)[:, first % 2 : first % 2 + last - first] * scales[:, of_input]
