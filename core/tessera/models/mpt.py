"""MPT: linear biases instead of positions, and no biases in products and norms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tessera.errors import ModelError
from tessera.layers.build import Build
from tessera.layers.qkv import Joined
from tessera.models.alibi import alibi_slopes
from tessera.models.decoder import Decoder, DecoderNames
from tessera.models.encoder import BlockNames
from tessera.models.fields import ACTIVATIONS, Checkpoint, ConfigFields, renamed
from tessera.models.reading import read_attention, read_decoder, read_head_dim, repeated
from tessera.models.sequential import SequentialBlock, layer_norm_decoder

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_MPT: dict[str, Any] = {
    "expansion_ratio": 4,
    "layer_norm_epsilon": 1e-5,
    "no_bias": True,
    "norm_type": "low_precision_layernorm",
    "tie_word_embeddings": True,
}
_ATTENTION: dict[str, Any] = {
    "alibi": True,
    "alibi_bias_max": 8,
    "attn_type": "multihead_attention",
    "prefix_lm": False,
    "qk_ln": False,
}
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "no_bias": (True,),
    "norm_type": ("low_precision_layernorm", "layernorm"),
    "logit_scale": (None,),
}
"""What fields must be: transformers computes nothing else."""
_ONLY_IN_ATTENTION: Mapping[str, tuple[Any, ...]] = {
    name: (_ATTENTION[name],) for name in ("alibi", "attn_type", "prefix_lm", "qk_ln")
}
_FIELDS = {"d_model": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers"}
_NAMES = BlockNames("attn", Joined("Wqkv", "out_proj"), "norm_1", "norm_2", ("ffn.up_proj", "ffn.down_proj"))


def mpt(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """alibi_bias_max means what it does in the family's own code (StoryWriter's is 16); transformers takes it for 8."""
    fields = ConfigFields(renamed(checkpoint, _FIELDS), _MPT)
    attention = ConfigFields(fields.table("attn_config").values, _ATTENTION)
    _refuse_others(fields, _ONLY)
    _refuse_others(attention, _ONLY_IN_ATTENTION, "attn_config.")
    heads = fields.count("num_attention_heads")
    shape = read_attention(
        fields,
        max_model_len,
        rope=None,
        slopes=alibi_slopes(heads, attention.positive("alibi_bias_max")),
        scale=attention.positive("softmax_scale", read_head_dim(fields) ** -0.5),
        clip=attention.positive_or_none("clip_qkv"),
        eps=fields.number("layer_norm_epsilon"),
        layout=_NAMES.layout,
    )
    config = read_decoder(
        fields,
        repeated(fields, shape),
        inner=fields.count("expansion_ratio") * shape.hidden,
        activation=ACTIVATIONS["gelu"],
        names=DecoderNames(embedding="transformer.wte", layers="transformer.blocks", norm="transformer.norm_f"),
    )
    return layer_norm_decoder(
        build,
        config,
        lambda number, tables: SequentialBlock(build, config, number, tables, _NAMES, norm_bias=False),
        norm_bias=False,
    )


def _refuse_others(fields: ConfigFields, only: Mapping[str, tuple[Any, ...]], table: str = "") -> None:
    """only: by field, the values that are supported. table: where the fields are, for the error."""
    for name, values in only.items():
        if fields.get(name) not in values:
            said = " or ".join("null" if value is None else str(value).lower() for value in values)
            raise ModelError(f"{table}{name} must be {said} in config.json; no other is supported for MPT.")
