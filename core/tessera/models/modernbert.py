"""ModernBERT: norms before attention and MLP, rotary embedding, windows in most layers, a gate in the MLP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from tessera.errors import ModelError
from tessera.layers.attention import Attention, AttentionShape, RotaryTable
from tessera.layers.build import Build
from tessera.layers.classification import HeadConfig, classification_heads
from tessera.layers.mlp import GatedMLP, GatedNames
from tessera.layers.norm import AddLayerNorm
from tessera.layers.qkv import Joined
from tessera.models.encoder import Embeddings, Encoder, EncoderConfig, read_encoder
from tessera.models.fields import ACTIVATIONS, Checkpoint, ConfigFields
from tessera.models.reading import FULL, SLIDING, layer_kinds, read_head_dim
from tessera.models.rope import RopeReader
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_MODERNBERT: Mapping[str, Any] = {
    "vocab_size": 50368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "max_position_embeddings": 8192,
    "norm_eps": 1e-5,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "classifier_pooling": "cls",
}
_QKV = Joined("Wqkv", "Wo")
_MLP = GatedNames(joined="Wi", down="Wo")
_POOLINGS = ("cls", "mean")


class ModernBlock:
    """x + attention(norm(x)), then x + mlp(norm(x)). The first block has no norm before attention."""

    def __init__(
        self,
        build: Build,
        config: EncoderConfig,
        shape: AttentionShape,
        prefix: str,
        tables: RotaryTable,
        *,
        first: bool,
        norm_bias: bool,
    ) -> None:
        size = config.hidden, config.eps
        self.attention_norm = None if first else AddLayerNorm(build, f"{prefix}.attn_norm", *size, bias=norm_bias)
        self.attention = Attention(build, f"{prefix}.attn", None, replace(shape, layout=_QKV), tables)
        self.mlp_norm = AddLayerNorm(build, f"{prefix}.mlp_norm", *size, bias=norm_bias)
        sizes = config.hidden, config.inner, config.activation
        self.mlp = GatedMLP(build, f"{prefix}.mlp", *sizes, bias=config.mlp_bias, names=_MLP)

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        if self.attention_norm is not None:
            x, residual = self.attention_norm(x, residual)
        return self.attention(x, residual, launch, caches)

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        mixed, residual = states
        x, residual = self.mlp_norm(self.attention.output(mixed), residual)
        return self.mlp(x), residual


def modernbert(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Encoder:
    fields = ConfigFields({"layer_norm_eps": checkpoint.get("norm_eps", 1e-5), **checkpoint}, _MODERNBERT)
    norm_bias = fields.flag("norm_bias")
    config = _config(fields, max_model_len)
    base = build.base(["model", "text_model"], "embeddings.tok_embeddings.weight")
    embeddings = Embeddings(
        build, config, f"{base}embeddings", f"{base}embeddings.norm", word="tok_embeddings", norm_bias=norm_bias
    )
    tables = RotaryTable(build)
    blocks = [
        ModernBlock(build, config, shape, f"{base}layers.{number}", tables, first=number == 0, norm_bias=norm_bias)
        for number, shape in enumerate(config.layers)
    ]
    head = _head(fields, config, norm_bias=norm_bias)
    return Encoder(
        build,
        config,
        embeddings=embeddings,
        blocks=blocks,
        norm=AddLayerNorm(build, f"{base}final_norm", config.hidden, config.eps, bias=norm_bias),
        heads=classification_heads(build, config.hidden, head, head),
    )


def _config(fields: ConfigFields, max_model_len: int) -> EncoderConfig:
    every, number = fields.count("global_attn_every_n_layers"), fields.count("num_hidden_layers")
    kinds = layer_kinds(fields, [SLIDING if layer % every else FULL for layer in range(number)])
    reader, said = RopeReader(fields, read_head_dim(fields), max_model_len), fields.table("rope_parameters")
    thetas = {FULL: fields.positive("global_rope_theta"), SLIDING: fields.positive("local_rope_theta")}
    ropes = {kind: reader.read_rope(said.table(kind), theta) for kind, theta in thetas.items()}
    windows = {FULL: None, SLIDING: fields.count("local_attention") // 2 + 1}
    bias = fields.flag("attention_bias")
    config = read_encoder(
        fields,
        max_model_len,
        first_position=None,
        activation=fields.activation("hidden_activation", "gelu"),
        mlp_bias=fields.flag("mlp_bias"),
        attention={"bias": bias, "output_bias": bias},
    )
    shape = config.layers[0]
    return replace(config, layers=tuple(replace(shape, rope=ropes[kind], window=windows[kind]) for kind in kinds))


def _head(fields: ConfigFields, config: EncoderConfig, *, norm_bias: bool) -> HeadConfig:
    pooling, activation = fields.get("classifier_pooling"), fields.activation("classifier_activation", "gelu")
    if pooling not in _POOLINGS:
        raise ModelError(f"classifier_pooling must be {' or '.join(_POOLINGS)} in config.json.")
    if activation != ACTIVATIONS["gelu"]:
        raise ModelError("classifier_activation must be gelu in config.json.")
    return HeadConfig(
        dense="head.dense",
        dense_bias=fields.flag("classifier_bias"),
        activation="gelu",
        norm="head.norm",
        norm_bias=norm_bias,
        eps=config.eps,
        pooling=str(pooling),
    )
