"""Text encoders: models without a cache in which every token sees every other of its text. The embeddings of words,
positions and token types are summed and normed, then come the blocks: here the one of BERT and its many relatives, with
a norm after attention and after the MLP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from tessera import text_pair
from tessera.layers.attention import Attention, AttentionShape, RotaryTable
from tessera.layers.build import Build
from tessera.layers.embedding import Embedding, PositionEmbedding, SegmentEmbedding
from tessera.layers.linear import Linear
from tessera.layers.mlp import MLP, GatedMLP, GatedNames
from tessera.layers.norm import AddLayerNorm
from tessera.layers.pooling import embedding_heads
from tessera.layers.qkv import QKVLayout
from tessera.layers.weights import Parameter
from tessera.models.decoder import Block
from tessera.models.fields import ConfigFields
from tessera.ops import AddSpec
from tessera.platform.attention import Caches
from tessera.platform.feature import Column
from tessera.platform.launch import Launch
from tessera.platform.model import Hidden, ModelFacts, PoolingHead, SamplingHead

TYPE_BOUNDARY = Column(text_pair.TYPE_BOUNDARY, "int32", default=2**31 - 1, each="token")
"""Of the input batch: the position from which on a text's tokens have the type 1, as those of the second text of a pair
have."""


@dataclass(frozen=True)
class EncoderConfig:
    """What distinguishes the families, besides their names of tensors."""

    architecture: str
    vocab: int
    hidden: int
    inner: int
    layers: tuple[AttentionShape, ...]  # the attention of each layer
    activation: str
    eps: float
    max_positions: int
    # Elements of the embeddings, which a product maps to hidden states if they are not as many.
    embedded: int
    # Rows of the table of positions that come before a text's first token; None: there is no table.
    first_position: int | None = 0
    # Rows of that table.
    positions: int = 0
    # Types of tokens that have an embedding.
    types: int = 0
    mlp_bias: bool = True
    down_bias: bool = True


class Embeddings:
    """The sum of a token's embeddings, normed. norm: its name in the checkpoint. With several ranks the embedding of
    words is a partial sum, which the norm completes."""

    def __init__(
        self,
        build: Build,
        config: EncoderConfig,
        prefix: str,
        norm: str,
        *,
        word: str = "word_embeddings",
        norm_bias: bool = True,
    ) -> None:
        n = config.embedded
        self.word = Embedding(build, f"{prefix}.{word}", config.vocab, n)
        self.position = self.segment = None
        if config.first_position is not None:
            rows = config.positions, config.first_position
            self.position = PositionEmbedding(build, f"{prefix}.position_embeddings", *rows, n)
        if config.types > 1:
            build.columns.append(TYPE_BOUNDARY)
        if config.types:
            self.segment = SegmentEmbedding(build, f"{prefix}.token_type_embeddings", config.types, n)
        self.add = build.ops.bind("add", AddSpec(n, build.dtype))
        self.norm = AddLayerNorm(build, norm, n, config.eps, bias=norm_bias)

    def __call__(self, words: Tensor, launch: Launch) -> tuple[Tensor, None]:
        """words [T, n] -> [T, n], and no residual"""
        return self.norm(words, self._beside(launch))[0], None

    def _beside(self, launch: Launch) -> Tensor | None:
        """What is added to the embeddings of words: [T, n]."""
        at = launch.positions
        if self.segment is None:
            return None if self.position is None else self.position(at)
        segment = self.segment(at, launch.columns.get(TYPE_BOUNDARY.name))
        if self.position is None:
            return segment
        both: Tensor = self.add(segment, self.position(at))
        return both


class SummedEmbeddings:
    """Those of words and positions, which the norm of the first block adds."""

    def __init__(self, word: Embedding, position: PositionEmbedding) -> None:
        self.word, self.position = word, position

    def __call__(self, words: Tensor, launch: Launch) -> tuple[Tensor, Tensor]:
        """words [T, n] -> the same, and the residual beside them [T, n]"""
        return words, self.position(launch.positions)


class Encoder:
    """Create it after all of its parts: it reads `build` for what they registered."""

    def __init__(
        self,
        build: Build,
        config: EncoderConfig,
        *,
        embeddings: Embeddings | SummedEmbeddings,
        blocks: Sequence[Block],
        heads: Mapping[str, PoolingHead],
        project: Linear | None = None,
        norm: AddLayerNorm | None = None,
        causal: bool = False,
    ) -> None:
        """heads: of classification. project: maps embeddings to hidden states, if they have other sizes. norm: after
        the last block, if there is one. causal: whether a token sees those before it alone, so that keys and values are
        kept from step to step."""
        self.config = config
        self.embeddings, self.project, self.blocks, self.norm = embeddings, project, blocks, norm
        self.pooling: Mapping[str, PoolingHead] = {**embedding_heads(build), **heads}
        self.facts = ModelFacts(
            architecture=config.architecture,
            vocab_size=config.vocab,
            hidden_size=config.hidden,
            num_layers=len(config.layers),
            max_positions=config.max_positions,
            dtype=build.dtype,
            caches=build.caches if causal else (),
            chunkable=causal,
            prefix_cacheable=causal,
            notes=tuple(build.notes),
            generates=False,
        )

    @property
    def head(self) -> SamplingHead:
        raise AssertionError("an encoder generates nothing")

    def embed(self, tokens: Tensor) -> Tensor:
        """[T, config.embedded]: of the words alone. forward() knows the positions."""
        return self.embeddings.word(tokens)

    def forward(self, x: Tensor, launch: Launch, caches: Caches, residual: Tensor | None = None) -> Hidden:
        x, residual = self.embeddings(x, launch)
        if self.project is not None:
            x = self.project(x)
        for block in self.blocks[:-1]:
            x, residual = block.transform(block.attend(x, residual, launch, caches))
        last = self.blocks[-1]
        states = last.attend(x, residual, launch, caches)
        return Hidden(*last.transform([launch.select_logits(state) for state in states]))

    def finish(self, hidden: Hidden) -> Tensor:
        return hidden.last if self.norm is None else self.norm(hidden.last, hidden.residual)[0]

    def logits(self, rows: Tensor) -> Tensor:
        raise AssertionError("an encoder generates nothing")


@dataclass(frozen=True)
class BlockNames:
    """What a checkpoint calls the parts of a block, behind the block's own name."""

    attention: str
    # of its projections
    layout: QKVLayout
    attention_norm: str
    mlp_norm: str
    # of an MLP without a gate: up and down
    mlp: tuple[str, str] = ("intermediate.dense", "output.dense")
    # of one with a gate, instead: its prefix and its parts
    gated: tuple[str, GatedNames] | None = None


class BertBlock:
    """norm(x + attention(x)), then norm(x + mlp(x))."""

    def __init__(
        self,
        build: Build,
        config: EncoderConfig,
        shape: AttentionShape,
        prefix: str,
        names: BlockNames,
        tables: RotaryTable,
        relative_bias: Parameter | None = None,
    ) -> None:
        attention = f"{prefix}.{names.attention}"
        shape = replace(shape, layout=names.layout)
        self.attention = Attention(build, attention, None, shape, tables, relative_bias)
        self.attention_norm = AddLayerNorm(build, f"{prefix}.{names.attention_norm}", config.hidden, config.eps)
        self.mlp = mlp_of(build, config, prefix, names)
        self.mlp_norm = AddLayerNorm(build, f"{prefix}.{names.mlp_norm}", config.hidden, config.eps)

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        return self.attention(x, None, launch, caches)

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        mixed, x = states
        x, _ = self.attention_norm(self.attention.output(mixed), x)
        x, _ = self.mlp_norm(self.mlp(x), x)
        return x, None


def mlp_of(build: Build, config: EncoderConfig, prefix: str, names: BlockNames) -> MLP | GatedMLP:
    sizes = config.hidden, config.inner, config.activation
    if names.gated is None:
        up, down = names.mlp
        return MLP(build, f"{prefix}.{up}", f"{prefix}.{down}", *sizes, bias=config.mlp_bias)
    mlp, gated = names.gated
    return GatedMLP(build, f"{prefix}.{mlp}", *sizes, bias=config.mlp_bias, down_bias=config.down_bias, names=gated)


def bert_blocks(
    build: Build, config: EncoderConfig, prefix: str, names: BlockNames, relative_bias: Parameter | None = None
) -> list[BertBlock]:
    """prefix: of a block in the checkpoint; {} stands for its number. relative_bias: as of Attention."""
    tables = RotaryTable(build)
    return [
        BertBlock(build, config, shape, prefix.format(number), names, tables, relative_bias)
        for number, shape in enumerate(config.layers)
    ]


def read_encoder(fields: ConfigFields, max_model_len: int, **differs: Any) -> EncoderConfig:
    """What BERT's relatives have in common. differs: fields of EncoderConfig to override, and those of AttentionShape,
    in `attention`. Raises ModelError for a missing or invalid field."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    head_dim = fields.count("head_dim", hidden // heads)
    eps = fields.number("layer_norm_eps")
    attention = {
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": head_dim,
        "scale": head_dim**-0.5,
        "rope": None,
        "max_positions": max_model_len,
        "eps": eps,
        "bias": True,
        "output_bias": True,
        "causal": False,
    }
    shape = AttentionShape(**{**attention, **differs.pop("attention", {})})
    values: dict[str, Any] = {
        "architecture": str((fields.get("architectures") or ["?"])[0]),
        "vocab": fields.count("vocab_size"),
        "hidden": hidden,
        "inner": fields.count("intermediate_size"),
        "layers": (shape,) * fields.count("num_hidden_layers"),
        "activation": differs.pop("activation", None) or fields.activation("hidden_act", "gelu"),
        "eps": eps,
        "max_positions": max_model_len,
        "embedded": hidden,
        "positions": fields.count("max_position_embeddings"),
        "types": fields.count("type_vocab_size", 0, least=0),
    }
    return EncoderConfig(**{**values, **differs})
