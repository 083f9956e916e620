"""The architectures of GGUF files that are served: for each, transformers' class, its config.json from the file's
settings, and transformers' names of its tensors.

The facts are those of llama.cpp's converters (conversion/) and of its loader (src/llama-model.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from tessera.errors import ModelError, printable
from tessera.gguf.architectures.architecture import GgufArchitecture
from tessera.gguf.architectures.bert import BERT
from tessera.gguf.architectures.experts import EXPERTS, deepseek
from tessera.gguf.architectures.gemma import GEMMA
from tessera.gguf.architectures.gemma_per_layer import GEMMA_PER_LAYER
from tessera.gguf.architectures.granite_experts import GRANITE_EXPERTS, granite_moe
from tessera.gguf.architectures.hybrid import HYBRID
from tessera.gguf.architectures.lfm2 import LFM2
from tessera.gguf.architectures.llama import LLAMA, llama, mistral3, olmo2
from tessera.gguf.architectures.llama4 import LLAMA4
from tessera.gguf.architectures.mamba import MAMBA, mamba
from tessera.gguf.architectures.qwen import QWEN
from tessera.gguf.fields import GgufFields

ARCHITECTURES: Mapping[str, GgufArchitecture] = MappingProxyType(
    {
        **LLAMA,
        **LLAMA4,
        **QWEN,
        **GEMMA,
        **GEMMA_PER_LAYER,
        **EXPERTS,
        **LFM2,
        **GRANITE_EXPERTS,
        **HYBRID,
        **MAMBA,
        **BERT,
    }
)
"""By general.architecture."""

_VARIANTS: Mapping[str, Callable[[GgufFields], GgufArchitecture]] = MappingProxyType(
    {
        "llama": llama,
        "mistral3": mistral3,
        "olmo2": olmo2,
        "granitemoe": granite_moe,
        "deepseek2": deepseek,
        "mamba": mamba,
    }
)
"""What says which of its classes a file of an architecture with several is."""


def architecture_of(fields: GgufFields, path: Path) -> GgufArchitecture:
    """path: of the file, for a message. Raises ModelError for one that is not served, naming it."""
    known = ARCHITECTURES.get(fields.architecture)
    if known is None:
        raise ModelError(
            f"'{printable(path)}' is of the architecture '{printable(fields.architecture, 60)}', which is not "
            f"supported; supported are {', '.join(ARCHITECTURES)}."
        )
    variant = _VARIANTS.get(fields.architecture)
    return known if variant is None else variant(fields)
