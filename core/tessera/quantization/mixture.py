"""Which types of block --quantization int4 rounds a weight to, where a platform multiplies with blocks.

Rounding costs more in some weights than in others of their size: the head, values and what an MLP ends with. They get
more bits in every layer, and all others four; llama.cpp's Q4_K_M has the same types, but gives some layers more than
others. A type of 256 inputs is replaced by one of 32 where 256 does not divide the inputs, as llama.cpp does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType

from tessera.platform.quantization import Part, Scheme
from tessera.quantization.encodings import encoded_scheme

_FOUR_BITS, _FIVE_BITS, _SIX_BITS = ("q4_k", "q5_0"), ("q5_k", "q5_1"), ("q6_k", "q8_0")
"""Types of block, preferred ones first."""

_BY_NAME: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        **dict.fromkeys(("lm_head", "embed_tokens", "embed_in", "embed_out", "wte", "word_embeddings"), _SIX_BITS),
        **dict.fromkeys(("v_proj", "value"), _SIX_BITS),
        **dict.fromkeys(("qkv_proj", "query_key_value", "Wqkv", "c_attn"), _FIVE_BITS),
        **dict.fromkeys(("down_proj", "fc2", "fc_out", "dense_4h_to_h", "w2", "c_proj"), _FIVE_BITS),
    }
)
"""By the last part of a weight's name in the checkpoint."""


def block_schemes(weight: Part, k: int) -> Sequence[Scheme]:
    """The schemes for a weight with k inputs, preferred ones first; empty if no block divides k."""
    names = _BY_NAME.get(weight.name.removesuffix(".weight").rpartition(".")[2], _FOUR_BITS)
    schemes = (_scheme(name) for name in names)
    return [scheme for scheme in schemes if k % scheme.granule(1) == 0]


_scheme = cache(encoded_scheme)
