"""The format bitsandbytes, as it and transformers write it: 4-bit codes in blocks (nf4, fp4), and int8 by rows.

For a quantized "NAME.weight" [n, k] the checkpoint holds, with load_in_4bit,
- NAME.weight, uint8 [n * k / 2, 1], rounded up: the codes of all elements, row after row, the first of two in the high
  half;
- NAME.weight.quant_map, float32 [16]: what the codes stand for;
- NAME.weight.absmax: a scale for each 64 elements, which may lie in two rows. It is float32 or, with
  bnb_4bit_use_double_quant, uint8: codes of NAME.weight.nested_quant_map, float32 [256], to be multiplied with
  NAME.weight.nested_absmax, float32, one for each 256 scales; nested_offset is added;
- NAME.weight.quant_state.bitsandbytes__nf4 (or __fp4), uint8: JSON with nested_offset and the sizes;
with load_in_8bit,
- NAME.weight, int8 [n, k];
- NAME.SCB, float32 [n]: the largest magnitude of each row, which 127 stands for;
- NAME.weight_format, uint8: 0, the only layout that is stored any more.
The activations of int8, which bitsandbytes rounds too, are not rounded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from tessera.errors import ModelError, printable
from tessera.platform.device import Reason, Tensor
from tessera.platform.quantization import Decoding, Part, WeightFormat
from tessera.quantization.formats.decoded import bounds_of, finite, part_of
from tessera.quantization.formats.fields import Fields
from tessera.quantization.formats.patterns import NamePatterns
from tessera.quantization.formats.small_floats import nibbles

_BLOCK = 64  # elements that share a scale
_NESTED = 256  # scales that share one
_STATE = "quant_state.bitsandbytes__"
_HEAD = "lm_head"
_SKIPPED = "llm_int8_skip_modules"
_BOUNDARY = r"(?:(?<=\.)|(?=\.|$))"


def bitsandbytes(config: Mapping[str, Any]) -> BitsAndBytes:
    """config: quantization_config. Raises ModelError, naming the field, for what is not supported."""
    return BitsAndBytes(Fields("quantization_config", config))


class BitsAndBytes(WeightFormat):
    """A WeightFormat."""

    def __init__(self, config: Fields) -> None:
        self._eight = config.one_of("load_in_8bit", (True, False), False)
        if config.one_of("load_in_4bit", (True, False), False) == self._eight:
            raise config.unsupported("load_in_4bit", "it or load_in_8bit has to be true", config.get("load_in_4bit"))
        self._kind = "" if self._eight else config.one_of("bnb_4bit_quant_type", ("nf4", "fp4"), "fp4")
        config.one_of("bnb_4bit_quant_storage", ("uint8",), "uint8")
        self._nested = config.one_of("bnb_4bit_use_double_quant", (True, False), False)
        self._skipped = [_HEAD] if config.get(_SKIPPED) is None else config.strings(_SKIPPED)
        self._where, self._patterns = f"{config.where}.{_SKIPPED}", NamePatterns()
        self._compiled = [self._patterns.compiled(f"(?:{name}){_BOUNDARY}", self._where) for name in self._skipped]

    def stored(self, weight: Part, module: str, dtype: str) -> Part | Reason:
        name = weight.name.removesuffix(".weight")
        if module != "Linear" or len(weight.whole) != 2:
            return "this format quantizes the weights of Linear layers only"
        # As transformers has it: the beginning of the name, a pattern, or its end.
        if any(name.endswith(one) for one in self._skipped) or any(
            self._patterns.matches(pattern, name, self._where) for pattern in self._compiled
        ):
            return f"{self._where} names it"
        return replace(weight, decoding=self._rows(weight, name) if self._eight else self._codes(weight, name))

    def _rows(self, weight: Part, name: str) -> Decoding:
        rows, columns = bounds_of(weight)
        parts = (
            part_of(weight, "weight", weight.whole, rows=rows, columns=columns, dtype="int8"),
            part_of(weight, "SCB", weight.whole[:1], rows=rows, dtype="float32", fill=1.0),
            part_of(weight, "weight_format", (), dtype="uint8", fill=0),
        )
        return Decoding(parts, partial(_decode_rows, name), "bitsandbytes int8 with one scale per row")

    def _codes(self, weight: Part, name: str) -> Decoding:
        (n, k), ((start, stop), columns) = weight.whole, bounds_of(weight)
        first, last, blocks = start * k, stop * k, -(-n * k // _BLOCK)
        scales = first // _BLOCK, -(-last // _BLOCK)
        halves = first // 2, -(-last // 2)
        parts = [
            part_of(weight, "weight", (-(-n * k // 2), 1), rows=halves, dtype="uint8"),
            part_of(weight, "weight.quant_map", (16,), dtype="float32"),
            part_of(weight, f"weight.{_STATE}{self._kind}", (-1,), dtype="uint8"),
            part_of(weight, "weight.absmax", (blocks,), rows=scales, dtype="uint8" if self._nested else "float32"),
        ]
        if self._nested:
            outer = scales[0] // _NESTED, -(-scales[1] // _NESTED)
            parts.append(part_of(weight, "weight.nested_quant_map", (256,), dtype="float32"))
            parts.append(part_of(weight, "weight.nested_absmax", (-(-blocks // _NESTED),), rows=outer, dtype="float32"))
        call = partial(_decode_codes, name, self._kind, (n, k), (first, last), columns)
        return Decoding(tuple(parts), call, f"bitsandbytes {self._kind} in blocks of {_BLOCK}")


def _decode_rows(name: str, values: Tensor, largest: Tensor, layout: Tensor) -> Tensor:
    """A shard of int8 in float32."""
    if not layout.is_meta and int(layout):
        raise ModelError(f"'{printable(name)}.weight_format' is {int(layout)}, and only 0 is supported.")
    scales = finite(largest, f"{name}.SCB")[:, None]
    return values.float() * scales * (1 / 127)


def _decode_codes(
    name: str, kind: str, whole: tuple[int, int], bounds: tuple[int, int], columns: tuple[int, int],
    codes: Tensor, levels: Tensor, state: Tensor, absmax: Tensor, *nested: Tensor,
) -> Tensor:  # fmt: skip
    """The rows of a shard from the elements first to last (bounds), cut to its columns, in float32."""
    import torch

    (first, last), k = bounds, whole[1]
    offset = _offset(state, name, kind, whole, nested=bool(nested))
    before = first // _BLOCK  # the scales before those that were read
    if nested:
        values, outer = (finite(one, f"{name}.weight.nested") for one in nested)
        of_scale = torch.arange(before, before + len(absmax), device=absmax.device) // _NESTED - before // _NESTED
        absmax = values[absmax.long()] * outer[of_scale] + offset
    finite(absmax, f"{name}.weight.absmax")
    finite(levels, f"{name}.weight.quant_map")
    swapped = nibbles(codes[:, 0] >> 4 | codes[:, 0] << 4)  # the first is in the high half
    elements = levels[swapped[first % 2 :][: last - first]]
    of_element = torch.arange(first, last, device=absmax.device) // _BLOCK - before
    return (elements * absmax[of_element]).view(-1, k)[:, slice(*columns)]


def _offset(state: Tensor, name: str, kind: str, whole: tuple[int, int], *, nested: bool) -> float:
    """nested_offset. Raises ModelError if the state does not describe the weight; random weights have none."""
    if state.is_meta or not state.numel():
        return 0.0
    said = _object(bytes(state.tolist()))
    expected = {"quant_type": kind, "blocksize": _BLOCK, "shape": list(whole)}
    expected |= {"nested_blocksize": _NESTED} if nested else {}
    label = f"'{printable(name)}.weight.{_STATE}{kind}'"
    for field, value in expected.items():
        if said.get(field) != value:
            is_now, needed = (printable(json.dumps(one), 60) for one in (said.get(field), value))
            raise ModelError(f"{label} has {field} {is_now}, and only {needed} is supported; use another copy.")
    offset = said.get("nested_offset", 0.0)
    if type(offset) not in (float, int) or not math.isfinite(offset):
        raise ModelError(f"{label} has a nested_offset that is not a number; use another copy.")
    return float(offset)


def _object(text: bytes) -> Mapping[str, Any]:
    """Empty for what is no object in JSON."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
