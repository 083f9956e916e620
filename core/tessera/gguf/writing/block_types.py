"""Which type of block each tensor of a file gets, by the kind of file that is asked for, as llama.cpp has them
(src/llama-quant.cpp).

A kind with M or S after it gives more bits to what rounding harms most: the head, values and what an MLP ends with, M
in some layers and S in the first ones. A type whose blocks of 256 do not divide the inputs is replaced by one of 32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

_SMALLER: Mapping[str, str] = MappingProxyType({"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"})
"""What replaces a type where 256 does not divide the inputs."""
_UNDIVIDED = "F16"
"""Where 32 does not."""
_BLOCK = 32
_SUPER_BLOCK = 256


@dataclass(frozen=True)
class FileKind:
    """What is asked for, such as Q4_K_M."""

    # general.file_type
    number: int
    # of most matrices
    type: str
    # of some, by the tensor's name within its layer: of a layer, and of how many
    others: Callable[[str, int, int], str | None] = lambda module, layer, layers: None
    # of the head, and of an embedding that is the head too; None: as the others
    head: str | None = "Q6_K"


def _more_bits(layer: int, layers: int) -> bool:
    """The first and the last eighth of all layers, and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _medium(joined: str) -> Callable[[str, int, int], str | None]:
    """joined: of queries, keys and values in one matrix."""

    def other(module: str, layer: int, layers: int) -> str | None:
        if module == "attn_qkv":
            return joined
        return "Q6_K" if module in ("attn_v", "ffn_down", "ffn_down_exps") and _more_bits(layer, layers) else None

    return other


def _small_four(module: str, layer: int, layers: int) -> str | None:
    first = 4 if module == "attn_v" else layers // 8
    return "Q5_K" if module in ("attn_v", "ffn_down", "ffn_down_exps") and layer < first else None


KINDS: Mapping[str, FileKind] = MappingProxyType(
    {
        "Q4_K_M": FileKind(15, "Q4_K", _medium("Q5_K")),
        "Q4_K_S": FileKind(14, "Q4_K", _small_four),
        "Q5_K_M": FileKind(17, "Q5_K", _medium("Q6_K")),
        "Q5_K_S": FileKind(16, "Q5_K"),
        "Q6_K": FileKind(18, "Q6_K"),
        "Q8_0": FileKind(7, "Q8_0", head=None),
        "Q4_0": FileKind(2, "Q4_0"),
        "Q4_1": FileKind(3, "Q4_1"),
        "Q5_0": FileKind(8, "Q5_0"),
        "Q5_1": FileKind(9, "Q5_1"),
        "BF16": FileKind(32, "BF16", head=None),
        "F16": FileKind(1, "F16", head=None),
        "F32": FileKind(0, "F32", head=None),
    }
)
"""By the name that files of the kind have."""

_PLAIN = ("F32", "F16", "BF16")
_ROUTERS = ("ffn_gate_inp", "ffn_gate_inp_shexp")


def block_type(kind: FileKind, name: str, shape: Sequence[int], layers: int, *, tied: bool) -> str:
    """Of a tensor. name: GGUF's. shape: as torch has it. tied: the embedding is the head too."""
    module = name.removesuffix(".weight").rpartition(".")[2]
    if len(shape) < 2 or module in _ROUTERS or module.endswith("norm"):
        return "F32"
    if name == "output.weight" or (tied and name == "token_embd.weight"):
        wanted = kind.head or kind.type
    else:
        layer = name.split(".")[1]
        wanted = (kind.others(module, int(layer), layers) if layer.isdecimal() else None) or kind.type
    if wanted in _PLAIN:
        return wanted
    if wanted in _SMALLER and shape[-1] % _SUPER_BLOCK:
        wanted = _SMALLER[wanted]
    return _UNDIVIDED if shape[-1] % _BLOCK else wanted
