"""The weights of a GGUF file: in the blocks that they are stored in, or decoded when they are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tessera.gguf.tensors import GgufWeight
from tessera.platform.device import Reason
from tessera.platform.quantization import Part, StoredWeight, WeightFormat
from tessera.quantization.encodings import scheme_of


class GgufBlocks(WeightFormat):
    """A WeightFormat, of a file instead of a quantization_config. weights: by transformers' name."""

    def __init__(self, weights: Mapping[str, GgufWeight]) -> None:
        self._weights = weights

    def stored(self, weight: Part, module: str, dtype: str) -> StoredWeight | Part | Reason:
        named = next((self._weights[name] for name in (weight.name, *weight.also) if name in self._weights), None)
        if named is None or len(weight.whole) != 2:
            return "it is no matrix of the file"
        block, (n, k) = named.block, weight.whole
        if block is None:
            return "it has another form in the file"
        if block.elements == 1:
            return f"it is stored in {block.name}"
        first, last = weight.columns or (0, k)
        if first % block.elements or last % block.elements:
            return f"it is stored in {block.name}, and the shard cuts blocks of {block.elements} inputs"
        scheme = scheme_of(block)
        blocks = replace(
            weight,
            whole=(n, k // block.elements, block.bytes),
            columns=None if weight.columns is None else (first // block.elements, last // block.elements),
            dtype="uint8",
            encoding=scheme.weight.encoding,
        )
        return StoredWeight(scheme, {"weight": blocks}, decoded=weight)
