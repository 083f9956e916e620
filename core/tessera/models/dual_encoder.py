"""The text half of dual encoders, whose vectors of texts are compared with a tower's of images: CLIP (Radford et al.
2021, arXiv:2103.00020) and SigLIP (Zhai et al. 2023, arXiv:2303.15343). Embeddings of words and positions are summed
without a norm, blocks have norms before attention and MLP, and what is behind the last norm is projected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tessera.layers.attention import Attention, AttentionShape, RotaryTable
from tessera.layers.build import Build
from tessera.layers.embedding import Embedding, PositionEmbedding
from tessera.layers.linear import Linear, WeightShard
from tessera.layers.mlp import MLP
from tessera.layers.norm import AddLayerNorm
from tessera.layers.pooling import Dense, embedding_heads
from tessera.layers.qkv import Apart
from tessera.models.encoder import EncoderConfig, read_encoder
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch
from tessera.platform.model import Hidden, ModelFacts, PoolingHead, SamplingHead

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
_QUICK = "quick_gelu"
_QUICK_SCALE = 1.702
"""The sigmoid of so many times x is near the share of x that GELU keeps (Hendrycks and Gimpel, arXiv:1606.08415)."""


class QuickMLP:
    """down(x * sigmoid(1.702 x)) of x = up(x)."""

    def __init__(self, build: Build, up: str, down: str, hidden: int, inner: int) -> None:
        part = build.shard(inner, "the inner size of the MLP")
        self.up = Linear(build, [WeightShard(up, inner, hidden, part)], bias=True)
        self.down = Linear(build, [WeightShard(down, hidden, inner, columns=part)], bias=True)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.up(x)
        return self.down(x * torch.sigmoid(_QUICK_SCALE * x))


class DualBlock:
    """x + attention(norm(x)), then x + mlp(norm(x)). activation: None for the MLP of CLIP."""

    def __init__(
        self,
        build: Build,
        config: EncoderConfig,
        shape: AttentionShape,
        prefix: str,
        tables: RotaryTable,
        activation: str | None,
    ) -> None:
        size, inner = config.hidden, config.inner
        self.attention_norm = AddLayerNorm(build, f"{prefix}.layer_norm1", size, config.eps)
        self.attention = Attention(build, f"{prefix}.self_attn", None, shape, tables)
        self.mlp_norm = AddLayerNorm(build, f"{prefix}.layer_norm2", size, config.eps)
        names = f"{prefix}.mlp.fc1", f"{prefix}.mlp.fc2"
        self.mlp: MLP | QuickMLP
        if activation is None:
            self.mlp = QuickMLP(build, *names, size, inner)
        else:
            self.mlp = MLP(build, *names, size, inner, activation, bias=True)

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        x, residual = self.attention_norm(x, residual)
        return self.attention(x, residual, launch, caches)

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        mixed, residual = states
        x, residual = self.mlp_norm(self.attention.output(mixed), residual)
        return self.mlp(x), residual


class DualText:
    """Create it after all of its parts: it reads `build` for what they registered. causal: whether a token sees those
    before it alone, so that keys and values are kept from step to step."""

    def __init__(
        self,
        build: Build,
        config: EncoderConfig,
        *,
        words: Embedding,
        positions: PositionEmbedding,
        blocks: Sequence[DualBlock],
        norm: AddLayerNorm,
        projection: Dense,
        causal: bool,
    ) -> None:
        self.words, self.positions, self.blocks = words, positions, blocks
        self.norm, self.projection = norm, projection
        self.pooling: Mapping[str, PoolingHead] = embedding_heads(build)
        self.facts = ModelFacts(
            architecture=config.architecture,
            vocab_size=config.vocab,
            hidden_size=config.hidden,
            num_layers=len(config.layers),
            max_positions=config.max_positions,
            dtype=build.dtype,
            caches=build.caches,
            chunkable=causal,
            prefix_cacheable=causal,
            notes=tuple(build.notes),
            generates=False,
        )

    @property
    def head(self) -> SamplingHead:
        raise AssertionError("a dual encoder generates nothing")

    def embed(self, tokens: Tensor) -> Tensor:
        """[T, hidden]: of the words alone, with several ranks a partial sum. forward() knows the positions."""
        return self.words(tokens)

    def forward(self, x: Tensor, launch: Launch, caches: Caches, residual: Tensor | None = None) -> Hidden:
        residual = self.positions(launch.positions)
        for block in self.blocks[:-1]:
            x, residual = block.transform(block.attend(x, residual, launch, caches))
        last = self.blocks[-1]
        states = last.attend(x, residual, launch, caches)
        return Hidden(*last.transform([launch.select_logits(state) for state in states]))

    def finish(self, hidden: Hidden) -> Tensor:
        """[rows, numbers of a vector]"""
        rows = self.norm(hidden.last, hidden.residual)[0]
        return self.projection(rows.float()).to(rows.dtype)

    def logits(self, rows: Tensor) -> Tensor:
        raise AssertionError("a dual encoder generates nothing")


def clip(build: Build, checkpoint: Checkpoint, max_model_len: int) -> DualText:
    """A token sees those before it, and the last one's state is the text's."""
    quick = checkpoint.get("hidden_act", _QUICK) == _QUICK
    fields = ConfigFields({**checkpoint, "hidden_act": "gelu"} if quick else checkpoint, _CLIP)
    activation = None if quick else fields.activation("hidden_act", "")
    return _text(build, fields, max_model_len, activation, "text_projection", bias=False, causal=True)


def siglip(build: Build, checkpoint: Checkpoint, max_model_len: int) -> DualText:
    """Each token sees all others, and padding too, whose last state is the text's."""
    fields = ConfigFields(checkpoint, _SIGLIP)
    activation = fields.activation("hidden_act", "gelu_pytorch_tanh")
    return _text(build, fields, max_model_len, activation, f"{_TEXT}.head", bias=True, causal=False)


def _text(
    build: Build,
    fields: ConfigFields,
    max_model_len: int,
    activation: str | None,
    projection: str,
    *,
    bias: bool,
    causal: bool,
) -> DualText:
    config = read_encoder(
        fields, max_model_len, activation=activation or _QUICK, attention={"causal": causal, "layout": _QKV}
    )
    assert build.pooler is not None, "it does nothing else"
    tables = RotaryTable(build)
    return DualText(
        build,
        config,
        words=Embedding(build, f"{_TEXT}.embeddings.token_embedding", config.vocab, config.hidden),
        positions=PositionEmbedding(
            build, f"{_TEXT}.embeddings.position_embedding", config.positions, 0, config.hidden
        ),
        blocks=[
            DualBlock(build, config, shape, f"{_TEXT}.encoder.layers.{number}", tables, activation)
            for number, shape in enumerate(config.layers)
        ],
        norm=AddLayerNorm(build, f"{_TEXT}.final_layer_norm", config.hidden, config.eps),
        projection=Dense(build, projection, config.hidden, build.pooler.dimensions, bias=bias),
        causal=causal,
    )
