"""The format awq, as AutoAWQ and auto-round write it ("gemm"): integers of 4 bits in groups, with zero points.

For a quantized "NAME.weight" [n, k] the checkpoint holds
- NAME.qweight, int32 [k, n / 8]: packed along the outputs; of eight outputs, the fields from the lowest bits on hold
  the outputs 0, 2, 4, 6, 1, 3, 5, 7;
- NAME.qzeros, int32 [k / group_size, n / 8]: packed in the same way;
- NAME.scales, float16 [k / group_size, n].
An element is (stored - zero point) * scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from tessera.errors import ModelError
from tessera.platform.device import Reason, Tensor
from tessera.platform.quantization import Decoding, Part, WeightFormat
from tessera.quantization.formats.decoded import (
    bounds_of,
    finite,
    group_size,
    part_of,
    read_group_size,
    span,
    unpack,
    words,
)
from tessera.quantization.formats.fields import Fields

_BITS = 4
_PER_WORD = 8
_FIELD_OF_OUTPUT = (0, 4, 1, 5, 2, 6, 3, 7)
"""Which field of a word holds each of its outputs."""
_HEAD = "lm_head"


def awq(config: Mapping[str, Any]) -> Awq:
    """config: quantization_config. Raises ModelError, naming the field, for what is not supported."""
    return Awq(Fields("quantization_config", config))


class Awq(WeightFormat):
    """A WeightFormat."""

    def __init__(self, config: Fields) -> None:
        self._config = config
        config.one_of("bits", (_BITS,), config.get("w_bit", _BITS))
        version = config.get("version", "gemm")
        if not isinstance(version, str) or version.lower() != "gemm":
            raise config.unsupported("version", "it can be gemm", version)
        config.one_of("zero_point", (True, False), True)
        self._symmetric = config.get("zero_point", True) is False
        named = "group_size" if config.get("q_group_size") is None else "q_group_size"
        self._group = read_group_size(config, named)
        self._left_out = config.strings("modules_to_not_convert")

    def stored(self, weight: Part, module: str, dtype: str) -> Part | Reason:
        name = weight.name.removesuffix(".weight")
        if module != "Linear" or len(weight.whole) != 2:
            return "this format quantizes the weights of Linear layers only"
        if name.rpartition(".")[2] == _HEAD:
            return "this format does not quantize the head"
        if any(one in name for one in self._left_out):  # anywhere in it, as AutoAWQ has it
            return "quantization_config.modules_to_not_convert names it"
        return replace(weight, decoding=self._decoding(weight, name))

    def _decoding(self, weight: Part, name: str) -> Decoding:
        n, k = weight.whole
        (start, stop), (first, last) = bounds_of(weight)
        size = group_size(self._config, k, name, self._group)
        if n % _PER_WORD:
            raise ModelError(f"'{name}' has {n} outputs, which do not fill words of {_PER_WORD}.")
        outputs, skip = span((start, stop), _BITS)
        groups, packed = (first // size, -(-last // size)), words(n, _BITS)
        parts = [
            part_of(weight, "qweight", (k, packed), rows=(first, last), columns=outputs, dtype="int32"),
            part_of(weight, "scales", (k // size, n), rows=groups, columns=(start, stop), dtype="float32"),
        ]
        if not self._symmetric:
            parts.append(part_of(weight, "qzeros", (k // size, packed), rows=groups, columns=outputs, dtype="int32"))
        call = partial(_decode, skip=skip, shape=(stop - start, last - first), size=size, first=first, name=name)
        return Decoding(tuple(parts), call, f"awq int{_BITS} in groups of {size}")


def _decode(
    qweight: Tensor,
    scales: Tensor,
    *zeros: Tensor,
    skip: int,
    shape: tuple[int, int],
    size: int,
    first: int,
    name: str,
) -> Tensor:
    """A shard of `shape` [n, k] in float32. skip: outputs in the first word before it. first: its first input. size:
    inputs of a group."""
    import torch

    n, k = shape
    finite(scales, f"{name}.scales")
    of_input = torch.arange(first, first + k, device=scales.device) // size - first // size
    values = _outputs(qweight)[:, skip : skip + n].float()
    points = _outputs(zeros[0])[:, skip : skip + n].float()[of_input] if zeros else float(1 << (_BITS - 1))
    return ((values - points) * scales[of_input]).T.contiguous()


def _outputs(packed: Tensor) -> Tensor:
    """int32 [rows, words] -> uint8 [rows, outputs]"""
    fields = unpack(packed, _BITS, 1)
    return fields.unflatten(1, (-1, _PER_WORD))[:, :, list(_FIELD_OF_OUTPUT)].flatten(1)
