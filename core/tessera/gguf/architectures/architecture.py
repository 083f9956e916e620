"""What there is to know of an architecture of GGUF files, and the names that most of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tessera.gguf.fields import GgufFields
from tessera.gguf.file import GgufFile
from tessera.gguf.rope import rope_settings
from tessera.gguf.tensors import GgufWeight, NamedTensor

Settings = dict[str, Any]
"""Fields of config.json."""
Names = Mapping[str, str]
"""transformers' name of each tensor of a layer, by GGUF's, both without the layer. GGUF's name has no ending where
transformers' has the same. {}: the expert."""

ENDS: Names = MappingProxyType(
    {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
)
"""Those that are of no layer."""
ATTENTION: Names = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
    }
)
MLP: Names = MappingProxyType({"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"})
DENSE: Names = MappingProxyType({**ATTENTION, "ffn_norm": "post_attention_layernorm", **MLP})
HEAD_NORMS: Names = MappingProxyType({"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"})


def expert_names(
    router: str, experts: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj"
) -> Names:
    """Of a layer's experts: where they are, and what their matrices are called."""
    return {
        "ffn_gate_inp": router,
        "ffn_gate_exps": f"{experts}.{{}}.{gate}",
        "ffn_up_exps": f"{experts}.{{}}.{up}",
        "ffn_down_exps": f"{experts}.{{}}.{down}",
    }


def shared_expert_names(shared: str) -> Names:
    return {f"ffn_{part}_shexp": f"{shared}.{part}_proj" for part in ("gate", "up", "down")}


def attention_sizes(fields: GgufFields, file: GgufFile) -> Settings:
    """Those of a decoder whose layers that attend are all of one size, and its rotary embedding. Raises ModelError."""
    hidden, heads = fields.count("embedding_length"), fields.count("attention.head_count")
    return {
        "intermediate_size": fields.largest("feed_forward_length", fields.get("expert_feed_forward_length")),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.largest("attention.head_count_kv", heads),
        "head_dim": fields.count("attention.key_length", hidden // heads),
        **rope_settings(fields, file),
    }


@dataclass(frozen=True)
class Join:
    """A weight that a file has in several tensors."""

    # GGUF's names, without layer and ending
    parts: tuple[str, ...]
    # makes it of them
    make: Callable[..., GgufWeight]


@dataclass(frozen=True)
class GgufArchitecture:
    """How a GGUF file holds the models of one class of transformers."""

    # transformers' class
    name: str
    model_type: str
    tensors: Names
    # the fields of config.json that not all architectures have
    settings: Callable[[GgufFields, GgufFile], Settings] = lambda fields, file: {}
    # the fields of config.json that most of them share
    sizes: Callable[[GgufFields, GgufFile], Settings] = attention_sizes
    # the rows of q and k are stored in pairs, as llama.cpp rotates them
    paired_rows: bool = False
    # what the file's norms have more than transformers'
    norm_offset: float = 0.0
    # makes transformers' weights of tensors of a layer, by GGUF's names without endings; they get no norm_offset
    changes: Callable[[GgufFields], Mapping[str, Callable[[NamedTensor], GgufWeight]]] = lambda fields: {}
    # of a layer, by transformers' name
    joins: Callable[[GgufFields], Mapping[str, Join]] = lambda fields: {}
    ends: Names = field(default_factory=lambda: ENDS)
    # what transformers' names of the tensors of a layer begin with, before its number
    layers: str = "model.layers"
    # whether it makes vectors of texts, as the file says
    embeds: bool = False
