"""The format mxfp4, in which OpenAI publishes gpt-oss: experts in MXFP4, all else in bfloat16.

The model's code has all experts of a layer in one parameter NAME [experts, k, n] ("...experts.gate_up_proj" or
"...experts.down_proj"). The checkpoint holds
- NAME_blocks, uint8 [experts, n, k / 32, 16]: codes of E2M1, two in a byte, the first in the low half;
- NAME_scales, uint8 [experts, n, k / 32]: the power of two (E8M0) of each 32 inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from tessera.errors import ModelError, printable
from tessera.platform.device import Reason, Tensor
from tessera.platform.quantization import Decoding, Part, WeightFormat
from tessera.quantization.formats.fields import Fields
from tessera.quantization.formats.small_floats import fp4, powers

_GROUP = 32
_NAMES = (".experts.gate_up_proj", ".experts.down_proj")


def mxfp4(config: Mapping[str, Any]) -> Mxfp4:
    """config: quantization_config. Raises ModelError, naming the field, for what is not supported."""
    # Of what modules_to_not_convert names, experts are never part; transformers reads it for nothing else.
    Fields("quantization_config", config).strings("modules_to_not_convert")
    return Mxfp4()


class Mxfp4(WeightFormat):
    """A WeightFormat."""

    def stored(self, weight: Part, module: str, dtype: str) -> Part | Reason:
        if module != "Parameter" or len(weight.whole) != 3 or not weight.name.endswith(_NAMES):
            return "this format quantizes experts only"
        experts, k, n = weight.whole
        if k % _GROUP:
            raise ModelError(f"'{printable(weight.name)}' has {k} inputs, which groups of {_GROUP} do not divide.")
        blocks = _beside(weight, "blocks", (experts, n, k // _GROUP, _GROUP // 2))
        scales = _beside(weight, "scales", (experts, n, k // _GROUP), fill=127)
        return replace(weight, decoding=Decoding((blocks, scales), partial(_decode, weight.name), "mxfp4"))


def _beside(weight: Part, suffix: str, whole: tuple[int, ...], fill: float | None = None) -> Part:
    name, *also = (f"{one}_{suffix}" for one in (weight.name, *weight.also))
    return Part(name, whole, weight.rows, fill=fill, also=tuple(also), dtype="uint8")


def _decode(name: str, blocks: Tensor, scales: Tensor) -> Tensor:
    """[experts, k, n] in float32."""
    values = fp4(blocks) * powers(scales, f"{name}_scales").unsqueeze(-1)  # [experts, n, groups, 32]
    return values.flatten(-2).transpose(-1, -2)
