"""The format gptq, which AutoGPTQ, GPTQModel, optimum and auto-round write: integers of 2, 3, 4 or 8 bits.

For a quantized "NAME.weight" [n, k] the checkpoint holds
- NAME.qweight, int32 [k * bits / 32, n]: packed along the inputs, the first in the lowest bits; 3-bit values may lie in
  two words;
- NAME.scales, float16 [groups, n];
- NAME.qzeros, int32 [groups, n * bits / 32]: zero points, packed along the outputs, each less 1 unless
  checkpoint_format is "gptq_v2";
- NAME.g_idx, int32 [k]: the group of each input, if desc_act is set; without it, inputs are in the order of groups.
An element is (stored - zero point) * scale. If `sym` is set the zero point is 2^(bits - 1) whatever qzeros holds, since
files exist that hold the values of one version under the name of the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tessera.errors import ModelError
from tessera.platform.device import Reason, Tensor
from tessera.platform.quantization import Decoding, Part, StoredWeight, WeightFormat
from tessera.quantization.formats.decoded import (
    bounds_of,
    finite,
    group_size,
    groups_of_inputs,
    matches_name,
    part_of,
    read_group_size,
    span,
    unpack,
    words,
)
from tessera.quantization.formats.fields import Fields
from tessera.quantization.formats.integers import stored_integers
from tessera.quantization.formats.patterns import NamePatterns

_BITS = (2, 3, 4, 8)
_HEAD = "lm_head"
_SKIP, _CHANGE = "-:", "+:"


def gptq(config: Mapping[str, Any]) -> Gptq:
    """config: quantization_config. Raises ModelError, naming the field, for what is not supported."""
    return Gptq(Fields("quantization_config", config))


@dataclass(frozen=True)
class _Settings:
    """How a weight is stored."""

    bits: int
    # Inputs that share a scale; -1 for all.
    group: int
    symmetric: bool
    # Each input has the number of its group.
    permuted: bool


class Gptq(WeightFormat):
    """A WeightFormat."""

    def __init__(self, config: Fields) -> None:
        self._config = config
        config.one_of("checkpoint_format", ("gptq", "gptq_v2"), "gptq")
        self._offset = int(config.get("checkpoint_format", "gptq") == "gptq")
        self._head = config.one_of("lm_head", (True, False), False)
        self._usual = _settings(config, None)
        self._modules = _flat(config, "modules_in_block_to_quantize")
        patterns, dynamic = NamePatterns(), config.get("dynamic") or {}
        if not isinstance(dynamic, Mapping):
            raise config.unsupported("dynamic", "it can be an object of patterns", dynamic)
        self._patterns = patterns
        self._dynamic = [
            (patterns.compiled(_pattern(text), f"{config.where}.dynamic"), self._changed(text)) for text in dynamic
        ]

    def stored(self, weight: Part, module: str, dtype: str) -> StoredWeight | Part | Reason:
        name = weight.name.removesuffix(".weight")
        if module != "Linear" or len(weight.whole) != 2:
            return "this format quantizes the weights of Linear layers only"
        if name.rpartition(".")[2] == _HEAD and not self._head:
            return "this format does not quantize the head"
        if self._modules and not any(matches_name(one, name) for one in self._modules):
            return "quantization_config.modules_in_block_to_quantize does not name it"
        settings: _Settings | None = self._usual
        for pattern, changed in self._dynamic:
            if self._patterns.matches(pattern, name, f"{self._config.where}.dynamic"):
                settings = changed
                break
        if settings is None:
            return "quantization_config.dynamic leaves it out"
        return self._shard(weight, name, settings)

    def _shard(self, weight: Part, name: str, settings: _Settings) -> StoredWeight | Part:
        (n, k), bits = weight.whole, settings.bits
        (start, stop), (first, last) = bounds_of(weight)
        size = group_size(self._config, k, name, settings.group)
        groups = k // size
        inputs, before = span((first, last), bits)
        outputs, left = span((start, stop), bits)
        if (k * bits) % 32 or (n * bits) % 32:
            raise ModelError(f"'{name}' has {n} x {k} elements of {bits} bits, which do not fill words of 32.")
        # Inputs in the order of groups need the scales of their own groups only.
        of_shard = None if settings.permuted else (first // size, -(-last // size))
        elements = part_of(weight, "qweight", (words(k, bits), n), rows=inputs, columns=(start, stop), dtype="int32")
        points = part_of(weight, "qzeros", (groups, words(n, bits)), rows=of_shard, columns=outputs, dtype="int32")
        parts = [elements]
        parts.append(part_of(weight, "scales", (groups, n), rows=of_shard, columns=(start, stop), dtype="float32"))
        if not settings.symmetric:
            parts.append(points)
        if settings.permuted:
            parts.append(part_of(weight, "g_idx", (k,), dtype="int32", fill=0))
        shape = stop - start, last - first
        point_of = partial(_zero_points, bits=bits, skip=left, n=shape[0], offset=self._offset)
        call = partial(
            _decode, settings, before=before, shape=shape, size=size, first=first, groups=groups, point_of=point_of,
            name=name,
        )  # fmt: skip
        kind = "one group" if groups == 1 else f"groups of {size}"
        decoded = replace(weight, decoding=Decoding(tuple(parts), call, f"gptq int{bits} in {kind}"))
        if settings.permuted:
            return decoded
        read = partial(_bytes_of, begin=before * bits // 8, count=shape[1] * bits // 8)
        zero = None if settings.symmetric else (points, point_of)
        return stored_integers(decoded, bits, size, (elements, read), zero)

    def _changed(self, text: str) -> _Settings | None:
        """What an entry of `dynamic` says of the weights that its pattern names; None if they are not quantized."""
        if text.startswith(_SKIP):
            return None
        return _settings(self._config.table("dynamic").table(text), self._usual)


def _settings(config: Fields, usual: _Settings | None) -> _Settings:
    """usual: what holds for a field that is left out."""
    bits = config.one_of("bits", _BITS, None if usual is None else usual.bits)
    group = read_group_size(config) if usual is None or config.get("group_size") is not None else usual.group
    symmetric = config.one_of("sym", (True, False), True if usual is None else usual.symmetric)
    permuted = config.one_of("desc_act", (True, False), False if usual is None else usual.permuted)
    return _Settings(bits, group, symmetric, permuted)


def _decode(
    settings: _Settings,
    qweight: Tensor,
    scales: Tensor,
    *further: Tensor,
    before: int,
    shape: tuple[int, int],
    size: int,
    first: int,
    groups: int,
    point_of: Callable[[Tensor], Tensor],
    name: str,
) -> Tensor:
    """A shard of `shape` [n, k] in float32. before: inputs in the first words before it. first: its first input. size:
    inputs of a group. point_of: makes the zero points of what the file has."""
    import torch

    k, bits = shape[1], settings.bits
    finite(scales, f"{name}.scales")
    values = unpack(qweight, bits, 0)[before : before + k]
    zeros: Any = 1 << (bits - 1) if settings.symmetric else point_of(further[0]).float()
    if settings.permuted:
        of_input = _groups_of_inputs(further[-1], groups, size, name)[first : first + k]
    else:
        of_input = (torch.arange(first, first + k, device=scales.device) // size) - first // size
    points = zeros if settings.symmetric else zeros[of_input]
    return ((values.float() - points) * scales[of_input]).T.contiguous()


def _zero_points(packed: Tensor, *, bits: int, skip: int, n: int, offset: int) -> Tensor:
    """uint8 [groups, n], from words that hold `skip` others before."""
    import torch

    fields = unpack(packed, bits, 1)[:, skip : skip + n].to(torch.int16)
    return (fields + offset & (1 << bits) - 1).to(torch.uint8)


def _bytes_of(packed: Tensor, *, begin: int, count: int) -> Tensor:
    """Words int32 [words, n], in whose bytes the values of 4 or 8 bits are in order -> uint8 [n, count]."""
    import torch

    in_order = packed.T.clone(memory_format=torch.contiguous_format)  # contiguous() leaves the strides of single words
    return in_order.view(torch.uint8)[:, begin : begin + count]


def _groups_of_inputs(g_idx: Tensor, groups: int, size: int, name: str) -> Tensor:
    """Of all inputs, since a shard does not show whether the file was filled: if it has zeros alone it was not, and
    inputs are in order. Raises ModelError for a group that is not there."""
    import torch

    if groups > 1 and not g_idx.is_meta and not g_idx.any():
        return torch.arange(len(g_idx), device=g_idx.device) // size
    return groups_of_inputs(g_idx, groups, f"{name}.g_idx")


def _pattern(text: str) -> str:
    return re.sub(f"^({re.escape(_SKIP)}|{re.escape(_CHANGE)})", "", str(text))


def _flat(config: Fields, name: str) -> list[str]:
    """Names in a list, or in a list of lists."""
    value = config.get(name, [])
    entries: list[Any] = value if isinstance(value, list) else [None]
    flat: list[str] = [one for entry in entries for one in (entry if isinstance(entry, list) else [entry])]
    if not all(isinstance(one, str) for one in flat):
        raise ModelError(f"{config.where}.{name} in config.json is not a list of names.")
    return flat
