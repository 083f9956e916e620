"""Mamba and Falcon Mamba: every layer is a Mamba alone. Falcon Mamba norms dt, B and C, without weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tessera.errors import ModelError
from tessera.layers.build import Build
from tessera.layers.mamba import MambaShape, SelectionNorms
from tessera.models.decoder import Decoder
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.nemotron_h import single_decoder

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_MAMBA: dict[str, Any] = {
    "state_size": 16,
    "layer_norm_epsilon": 1e-5,
    "expand": 2,
    "conv_kernel": 4,
    "use_conv_bias": True,
    "time_step_rank": "auto",
    "tie_word_embeddings": True,
}
_FALCON_MAMBA: dict[str, Any] = {**_MAMBA, "mixer_rms_eps": 1e-6}


def mamba(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _MAMBA)
    return _decoder(build, fields, _shape(fields, max_model_len))


def falcon_mamba(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _FALCON_MAMBA)
    norms = SelectionNorms(fields.number("mixer_rms_eps"), weighted=False)
    return _decoder(build, fields, replace(_shape(fields, max_model_len), norms=norms))


def _decoder(build: Build, fields: ConfigFields, shape: MambaShape) -> Decoder:
    return single_decoder(build, fields, [shape] * fields.count("num_hidden_layers"))


def _shape(fields: ConfigFields, max_model_len: int) -> MambaShape:
    check_activation(fields)
    hidden = fields.count("hidden_size")
    return MambaShape(
        hidden=hidden,
        inner=fields.count("intermediate_size", fields.count("expand") * hidden),
        rank=read_rank(fields, "time_step_rank", hidden),
        state_dim=fields.count("state_size"),
        kernel=fields.count("conv_kernel", least=2),
        eps=fields.number("layer_norm_epsilon"),
        max_positions=max_model_len,
        bias=fields.flag("use_bias"),
        conv_bias=fields.flag("use_conv_bias"),
    )


def read_rank(fields: ConfigFields, name: str, hidden: int) -> int:
    """MambaShape.rank, which config.json may leave to the hidden size."""
    return -(-hidden // 16) if fields.get(name) == "auto" else fields.count(name)


def check_activation(fields: ConfigFields) -> None:
    """Raises ModelError for one that Mamba is not defined with here."""
    if fields.activation("hidden_act", "silu") != "silu":
        raise ModelError("a hidden_act other than silu is not supported with mamba.")
