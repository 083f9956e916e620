"""The format awq, as AutoAWQ and auto-round write it ("gemm"): integers of 4 bits in groups, with zero points.

For a quantized "NAME.weight" [n, k] the checkpoint holds
- NAME.qweight, int32 [k, n / 8]: packed along the outputs; of eight outputs, the fields from the lowest bits on hold
  the outputs 0, 2, 4, 6, 1, 3, 5, 7;
- NAME.qzeros, int32 [k / group_size, n / 8]: packed in the same way;
- NAME.scales, float16 [k / group_size, n].
An element is (stored - zero point) * scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from tessera.errors import ModelError
from tessera.platform.device import Reason, Tensor
from tessera.platform.quantization import Decoding, Part, StoredWeight, WeightFormat
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
from tessera.quantization.formats.integers import stored_integers

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

    def stored(self, weight: Part, module: str, dtype: str) -> StoredWeight | Part | Reason:
        name = weight.name.removesuffix(".weight")
        if module != "Linear" or len(weight.whole) != 2:
            return "this format quantizes the weights of Linear layers only"
        if name.rpartition(".")[2] == _HEAD:
            return "this format does not quantize the head"
        if any(one in name for one in self._left_out):  # anywhere in it, as AutoAWQ has it
            return "quantization_config.modules_to_not_convert names it"
        return self._shard(weight, name)

    def _shard(self, weight: Part, name: str) -> StoredWeight | Part:
        n, k = weight.whole
        (start, stop), (first, last) = bounds_of(weight)
        size = group_size(self._config, k, name, self._group)
        if n % _PER_WORD:
            raise ModelError(f"'{name}' has {n} outputs, which do not fill words of {_PER_WORD}.")
        outputs, skip = span((start, stop), _BITS)
        groups, packed = (first // size, -(-last // size)), words(n, _BITS)
        elements = part_of(weight, "qweight", (k, packed), rows=(first, last), columns=outputs, dtype="int32")
        scales = part_of(weight, "scales", (k // size, n), rows=groups, columns=(start, stop), dtype="float32")
        points = part_of(weight, "qzeros", (k // size, packed), rows=groups, columns=outputs, dtype="int32")
        parts = (elements, scales) if self._symmetric else (elements, scales, points)
        outputs_of = partial(_outputs, skip=skip, n=stop - start)
        call = partial(_decode, outputs_of=outputs_of, inputs=(first, last), size=size, name=name)
        decoded = replace(weight, decoding=Decoding(parts, call, f"awq int{_BITS} in groups of {size}"))
        zero = None if self._symmetric else (points, outputs_of)
        return stored_integers(decoded, _BITS, size, (elements, lambda words: _pairs(outputs_of(words))), zero)


def _decode(
    qweight: Tensor,
    scales: Tensor,
    *zeros: Tensor,
    outputs_of: Callable[[Tensor], Tensor],
    inputs: tuple[int, int],
    size: int,
    name: str,
) -> Tensor:
    """A shard [n, k] in float32. outputs_of: makes values of its outputs of words. inputs: (start, stop). size: inputs
    of a group."""
    import torch

    finite(scales, f"{name}.scales")
    of_input = torch.arange(*inputs, device=scales.device) // size - inputs[0] // size
    points = outputs_of(zeros[0]).float()[of_input] if zeros else float(1 << (_BITS - 1))
    return ((outputs_of(qweight).float() - points) * scales[of_input]).T.contiguous()


def _outputs(packed: Tensor, *, skip: int, n: int) -> Tensor:
    """int32 [rows, words] -> uint8 [rows, n], those after the first `skip`"""
    fields = unpack(packed, _BITS, 1)
    return fields.unflatten(1, (-1, _PER_WORD))[:, :, list(_FIELD_OF_OUTPUT)].flatten(1)[:, skip : skip + n]


def _pairs(values: Tensor) -> Tensor:
    """uint8 [k, n] of 4 bits -> [n, k / 2], the first in the low half"""
    return (values[0::2] | values[1::2] << 4).T
