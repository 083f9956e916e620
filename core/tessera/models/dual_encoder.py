"""The text half of dual encoders, whose vectors of texts are compared with a tower's of images: CLIP (Radford et al.
2021, arXiv:2103.00020) and SigLIP (Zhai et al. 2023, arXiv:2303.15343). Embeddings of words and positions are summed
without a norm, blocks have norms before attention and MLP, and what is behind the last norm is projected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tessera.layers.attention import Attention, AttentionShape, RotaryTable
from tessera.layers.build import Build
from tessera.layers.embedding import Embedding, PositionEmbedding
from tessera.layers.mlp import MLP
from tessera.layers.norm import AddLayerNorm
from tessera.layers.pooling import Dense
from tessera.layers.qkv import Apart
from tessera.models.encoder import Encoder, EncoderConfig, SummedEmbeddings, read_encoder
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.sequential import LayerNormBlock
from tessera.platform.model import Hidden

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_CLIP: Mapping[str, Any] = {
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "layer_norm_eps": 1e-5,
}
_SIGLIP: Mapping[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 64,
    "layer_norm_eps": 1e-6,
}
_TEXT = "text_model"
_QKV = Apart("out_proj")


class DualText(Encoder):
    """projection: of the states that are its vectors."""

    def __init__(self, projection: Dense, build: Build, config: EncoderConfig, **parts: Any) -> None:
        super().__init__(build, config, heads={}, **parts)
        self.projection = projection

    def finish(self, hidden: Hidden) -> Tensor:
        """[rows, numbers of a vector]"""
        rows = super().finish(hidden)
        return self.projection(rows.float()).to(rows.dtype)


def clip(build: Build, checkpoint: Checkpoint, max_model_len: int) -> DualText:
    """A token sees those before it, and the last one's state is the text's."""
    fields = ConfigFields(checkpoint, _CLIP)
    activation = fields.activation("hidden_act", "quick_gelu", gated=False)
    return _text(build, fields, max_model_len, activation, "text_projection", bias=False, causal=True)


def siglip(build: Build, checkpoint: Checkpoint, max_model_len: int) -> DualText:
    """Each token sees all others, and padding too, whose last state is the text's."""
    fields = ConfigFields(checkpoint, _SIGLIP)
    activation = fields.activation("hidden_act", "gelu_pytorch_tanh", gated=False)
    return _text(build, fields, max_model_len, activation, f"{_TEXT}.head", bias=True, causal=False)


def _text(
    build: Build,
    fields: ConfigFields,
    max_model_len: int,
    activation: str,
    projection: str,
    *,
    bias: bool,
    causal: bool,
) -> DualText:
    config = read_encoder(fields, max_model_len, activation=activation, attention={"causal": causal, "layout": _QKV})
    assert build.pooler is not None, "it does nothing else"
    tables, embeddings = RotaryTable(build), f"{_TEXT}.embeddings"
    parts: dict[str, Any] = {
        "embeddings": SummedEmbeddings(
            Embedding(build, f"{embeddings}.token_embedding", config.vocab, config.hidden),
            PositionEmbedding(build, f"{embeddings}.position_embedding", config.positions, 0, config.hidden),
        ),
        "blocks": [
            _block(build, config, shape, f"{_TEXT}.encoder.layers.{number}", tables)
            for number, shape in enumerate(config.layers)
        ],
        "norm": AddLayerNorm(build, f"{_TEXT}.final_layer_norm", config.hidden, config.eps),
    }
    dense = Dense(build, projection, config.hidden, build.pooler.dimensions, bias=bias)
    return DualText(dense, build, config, **parts, causal=causal)


def _block(
    build: Build, config: EncoderConfig, shape: AttentionShape, prefix: str, tables: RotaryTable
) -> LayerNormBlock:
    names = f"{prefix}.mlp.fc1", f"{prefix}.mlp.fc2"
    return LayerNormBlock(
        AddLayerNorm(build, f"{prefix}.layer_norm1", config.hidden, config.eps),
        Attention(build, f"{prefix}.self_attn", None, shape, tables),
        AddLayerNorm(build, f"{prefix}.layer_norm2", config.hidden, config.eps),
        MLP(build, *names, config.hidden, config.inner, config.activation, bias=True),
    )
