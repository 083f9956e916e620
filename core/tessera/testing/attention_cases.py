"""Which launches attention is tried with: decode, prefill, chunks and mixtures of them, over the head shapes, windows,
caps and gaps that occur."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from tessera.platform.attention import FullAttentionSpec, LayerSpec, SlidingWindowSpec
from tessera.platform.quantization import KV_INT8

Rows = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class AttentionCase:
    """rows: tokens to compute and tokens in the cache after, decoding ones first. stride: tokens between the starts of
    rows, so that padding lies between them; 0: one after the other. padding: rows, and tokens, at the end. shared:
    blocks of their past that all rows have in common. kv_dtype: of the cache; "": as dtype; int8 has scales."""

    rows: Rows
    block_size: int = 16
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 12
    window: int | None = None
    softcap: float | None = None
    stride: int = 0
    padding: int = 0
    shared: int = 0
    dtype: str = "float32"
    kv_dtype: str = ""

    @property
    def kept(self) -> str:
        """The dtype that keys and values are kept in."""
        return self.kv_dtype or self.dtype

    def spec(self) -> LayerSpec:
        quant = KV_INT8 if self.kept == KV_INT8.dtype else None
        cache = FullAttentionSpec(self.kv_heads, self.head_dim, self.kept, quant)
        if self.window is not None:
            cache = SlidingWindowSpec(self.kv_heads, self.head_dim, self.kept, quant, window=self.window)
        return LayerSpec(
            0, "attention", self.heads, self.kv_heads, self.head_dim, self.head_dim**-0.5, self.dtype, cache,
            window=self.window, softcap=self.softcap,
        )  # fmt: skip


VARIANTS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "plain": {},
        "window": {"window": 9},
        "softcap": {"softcap": 0.7},
        "window-softcap": {"window": 23, "softcap": 0.7},
        "all-heads": {"kv_heads": 6, "head_dim": 20},
        "one-kv-head": {"kv_heads": 1},
        "wide-heads": {"heads": 4, "kv_heads": 2, "head_dim": 128},
        "padded": {"padding": 3},
    }
)
"""What is different from the plain case, by name."""


def attention_cases(block_size: int = 16, dtype: str = "float32") -> Iterator[tuple[str, AttentionCase]]:
    """By name: every kind of launch in every variant, with gaps between its rows, and over blocks that rows share."""
    for kind, rows in launches(block_size).items():
        plain = AttentionCase(rows, block_size, dtype=dtype)
        for name, different in VARIANTS.items():
            yield f"{kind}-{name}", replace(plain, **different)  # type: ignore[arg-type]  # counts are whole
        yield f"{kind}-spaced", replace(plain, stride=max(tokens for tokens, _ in rows) + 2, padding=2)
    yield "shared", AttentionCase(_sharing(block_size), block_size, shared=2, dtype=dtype)
    yield "shared-window", AttentionCase(_sharing(block_size), block_size, shared=2, window=9, dtype=dtype)


def launches(block_size: int) -> Mapping[str, Rows]:
    """Rows whose ends lie around the edges of blocks, and far from them."""
    size = block_size
    return {
        "decode": ((1, 1), (1, 40), *((1, length) for length in (size, size + 1, 2 * size))),
        "prefill": ((5, 5), (size, size), (2 * size + 1, 2 * size + 1)),
        "chunks": ((7, 30), (16, 48), (3, size + 3)),
        "mixed": ((1, 50), (1, 3), (1, 1), (19, 19), (4, 36), (size + 2, 2 * size + 2)),
    }


def _sharing(size: int) -> Rows:
    return (1, 2 * size + 1), (1, 3 * size), (5, 2 * size + 5), (size, 4 * size)
