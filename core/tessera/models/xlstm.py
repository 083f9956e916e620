"""xLSTM: every layer is an mLSTM, then a gated MLP."""

from __future__ import annotations

from typing import Any

from tessera.errors import ModelError
from tessera.layers.build import Build
from tessera.layers.mlp import GatedNames
from tessera.layers.mlstm import MLSTMShape
from tessera.models.decoder import Decoder, DecoderNames, build_decoder
from tessera.models.fields import Checkpoint, ConfigFields, renamed
from tessera.models.reading import read_decoder

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_XLSTM: dict[str, Any] = {
    "num_heads": 8,
    "norm_eps": 1e-6,
    "eps": 1e-6,
    "qk_dim_factor": 0.5,
    "v_dim_factor": 1.0,
    "ffn_proj_factor": 2.667,
    "ffn_round_up_to_multiple_of": 64,
    "gate_soft_cap": 15.0,
    "output_logit_soft_cap": 30.0,
    "weight_mode": "single",
}
_OWN_NAMES = {"embedding_dim": "hidden_size", "num_blocks": "num_hidden_layers"}
_NAMES = DecoderNames(
    embedding="backbone.embeddings",
    layers="backbone.blocks",
    attention_norm="norm_mlstm",
    mlp_norm="norm_ffn",
    mlp="ffn",
    gated=GatedNames("proj_up_gate", "proj_up", "proj_down"),
    norm="backbone.out_norm",
)


def xlstm(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    said = {name: value for name, value in checkpoint.items() if name not in _OWN_NAMES or value is not None}
    fields = ConfigFields(renamed(said, _OWN_NAMES), _XLSTM)
    if fields.get("weight_mode") != "single":
        raise ModelError("a weight_mode other than single is not supported.")
    if fields.flag("use_bias"):
        raise ModelError("use_bias is not supported for xLSTM: its norms would have biases.")
    config = read_decoder(
        fields,
        [_shape(fields, max_model_len)] * fields.count("num_hidden_layers"),
        inner=_inner(fields),
        activation="silu",
        names=_NAMES,
        logits_cap=fields.positive("output_logit_soft_cap"),
    )
    return build_decoder(build, config)


def _shape(fields: ConfigFields, max_model_len: int) -> MLSTMShape:
    hidden, heads = fields.count("hidden_size"), fields.count("num_heads")
    sizes = {name: int(hidden * fields.positive(name)) for name in ("qk_dim_factor", "v_dim_factor")}
    for name, size in sizes.items():
        if size < heads or size % heads:
            raise ModelError(f"{name} of hidden_size is {size} elements, which num_heads ({heads}) does not divide.")
    return MLSTMShape(
        hidden=hidden,
        heads=heads,
        key_dim=sizes["qk_dim_factor"] // heads,
        head_dim=sizes["v_dim_factor"] // heads,
        cap=fields.positive("gate_soft_cap"),
        eps=fields.number("norm_eps"),
        state_eps=fields.number("eps"),
        max_positions=max_model_len,
    )


def _inner(fields: ConfigFields) -> int:
    """The inner size of an MLP: a share of the hidden size, up to the next multiple."""
    multiple = fields.count("ffn_round_up_to_multiple_of")
    return int((fields.count("hidden_size") * fields.positive("ffn_proj_factor") + multiple - 1) // multiple) * multiple
