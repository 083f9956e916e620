"""The schemes of weights that stay in the blocks of a GGUF file: each type of block is an encoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tessera.gguf.blocks import BLOCK_TYPES, BlockType
from tessera.platform.device import Tensor
from tessera.platform.quantization import Encoding, QuantSpec, Scheme, TensorSpec


def encoded_scheme(name: str) -> Scheme:
    """The scheme of a type of block by its name, such as "q4_k", with activations as they are. Raises KeyError for
    another name."""
    return scheme_of({one.name.lower(): one for one in BLOCK_TYPES.values() if one.elements > 1}[name])


def scheme_of(block: BlockType) -> Scheme:
    """The scheme whose only part, "weight", is uint8 [n, k / elements, bytes]."""
    encoding = Encoding(block.elements, block.bytes, _Dequantize(block))
    parts = {"weight": TensorSpec("uint8", (1, block.elements), (block.bytes,))}
    return Scheme(QuantSpec(block.name.lower(), "encoding", encoding=encoding), parts=parts)


@dataclass(frozen=True)
class _Dequantize:
    """As the gguf package does it, in NumPy, on the host."""

    block: BlockType

    def __call__(self, parts: Mapping[str, Tensor]) -> Tensor:
        import torch  # not before it is called: formats are also read where there is no torch

        stored = parts["weight"]
        shape = *stored.shape[:-2], stored.shape[-2] * self.block.elements
        if stored.is_meta:
            return stored.new_empty(shape, dtype=torch.float32)
        blocks = stored.cpu().contiguous().numpy().reshape(-1, self.block.bytes)
        return torch.from_numpy(self.block.dequantize(blocks)).view(shape).to(stored.device)
