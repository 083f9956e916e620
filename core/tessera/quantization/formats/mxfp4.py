"""The format mxfp4, in which OpenAI publishes gpt-oss: experts in MXFP4, all else in bfloat16.

The checkpoint has those of all experts of a layer together. The loader takes them apart (loader/stacked_experts.py), so
that instead of an expert's NAME.weight [n, k] there are
- NAME.weight_blocks, uint8 [n, k / 32, 16]: codes of E2M1, two in a byte, the first in the low half;
- NAME.weight_scales, uint8 [n, k / 32]: the power of two (E8M0) of each 32 inputs.
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


def mxfp4(config: Mapping[str, Any]) -> Mxfp4:
    """config: quantization_config. Raises ModelError, naming the field, for what is not supported."""
    # Of what modules_to_not_convert names, experts are never part; transformers reads it for nothing else.
    Fields("quantization_config", config).strings("modules_to_not_convert")
    return Mxfp4()


class Mxfp4(WeightFormat):
    """A WeightFormat."""

    def stored(self, weight: Part, module: str, dtype: str) -> Part | Reason:
        if module != "Linear" or ".experts." not in weight.name:
            return "this format quantizes experts only"
        n, k = weight.whole
        if any(edge % _GROUP for edge in (k, *(weight.columns or ()))):
            raise ModelError(f"'{printable(weight.name)}' has inputs that cannot be divided into groups of {_GROUP}.")
        groups = None if weight.columns is None else (weight.columns[0] // _GROUP, weight.columns[1] // _GROUP)
        beside = partial(Part, rows=weight.rows, columns=groups, dtype="uint8")
        blocks = beside(f"{weight.name}_blocks", (n, k // _GROUP, _GROUP // 2))
        scales = beside(f"{weight.name}_scales", (n, k // _GROUP), fill=127)
        return replace(weight, decoding=Decoding((blocks, scales), partial(_decode, weight.name), "mxfp4"))


def _decode(name: str, blocks: Tensor, scales: Tensor) -> Tensor:
    """[n, k] in float32."""
    values = fp4(blocks) * powers(scales, f"{name}_scales").unsqueeze(-1)  # [n, groups, 32]
    return values.flatten(-2)
