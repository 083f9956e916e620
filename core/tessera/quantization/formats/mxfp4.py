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
from tessera.platform.quantization import Decoding, Part, StoredWeight, WeightFormat
from tessera.quantization.encodings import encoded_scheme
from tessera.quantization.formats.fields import Fields
from tessera.quantization.formats.small_floats import fp4, powers, refuse_nan

_GROUP = 32


def mxfp4(config: Mapping[str, Any]) -> Mxfp4:
    """config: quantization_config. Raises ModelError, naming the field, for what is not supported."""
    # Of what modules_to_not_convert names, experts are never part; transformers reads it for nothing else.
    Fields("quantization_config", config).strings("modules_to_not_convert")
    return Mxfp4()


class Mxfp4(WeightFormat):
    """A WeightFormat."""

    def stored(self, weight: Part, module: str, dtype: str) -> StoredWeight | Part | Reason:
        """In GGUF's blocks, which have the same codes and powers in another order; decoded where a shard cuts them."""
        if module != "Linear" or ".experts." not in weight.name:
            return "this format quantizes experts only"
        n, k = weight.whole
        if k % _GROUP:
            raise ModelError(f"'{printable(weight.name)}' has inputs that cannot be divided into groups of {_GROUP}.")
        first, last = weight.columns or (0, k)
        groups = None if weight.columns is None else (first // _GROUP, -(-last // _GROUP))
        beside = partial(Part, rows=weight.rows, columns=groups, dtype="uint8")
        codes = beside(f"{weight.name}_blocks", (n, k // _GROUP, _GROUP // 2))
        scales = beside(f"{weight.name}_scales", (n, k // _GROUP), fill=127)
        cut = first % _GROUP or last % _GROUP
        call = partial(_decode, f"{weight.name}_scales", slice(first % _GROUP, first % _GROUP + last - first))
        kind = f"mxfp4 in groups of {_GROUP} that the shard cuts" if cut else "mxfp4"
        decoded = replace(weight, decoding=Decoding((codes, scales), call, kind))
        if cut:
            return decoded
        scheme = encoded_scheme("mxfp4")
        encoding = scheme.weight.encoding
        assert encoding is not None
        blocks = replace(
            weight,
            whole=(n, k // _GROUP, encoding.bytes),
            columns=groups,
            dtype="uint8",
            encoding=encoding,
            decoding=Decoding((codes, scales), partial(_in_blocks, f"{weight.name}_scales"), kind),
        )
        return StoredWeight(scheme, {"weight": blocks}, decoded)


def _decode(name: str, inputs: slice, codes: Tensor, scales: Tensor) -> Tensor:
    """[n, k] in float32. name: of the scales. inputs: those of the shard among those of its groups."""
    values = fp4(codes) * powers(scales, name).unsqueeze(-1)  # [n, groups, 32]
    return values.flatten(-2)[:, inputs]


def _in_blocks(name: str, codes: Tensor, scales: Tensor) -> Tensor:
    """GGUF's blocks, uint8 [n, groups, 17]: the scale, then the codes of the first 16 inputs in low halves and those of
    the others in high ones. name: of the scales."""
    import torch

    refuse_nan(scales, name)
    first, second = codes.split(_GROUP // 4, dim=-1)  # two neighbours in a byte
    low, high = first & 15 | second << 4, first >> 4 | second & 0xF0
    return torch.cat((scales.unsqueeze(-1), torch.stack((low, high), dim=-1).flatten(-2)), dim=-1)
