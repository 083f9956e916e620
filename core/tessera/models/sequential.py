"""Decoders with layer norms, and their block of attention, then an MLP without a gate, each with a norm before it: that
of Bloom, MPT and some Falcons."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from tessera.layers.attention import AttentionBlock, RotaryTable
from tessera.layers.build import Build
from tessera.layers.embedding import Embedding, PackedEmbedding, vocabulary_ends
from tessera.layers.mlp import MLP
from tessera.layers.norm import AddLayerNorm
from tessera.models.decoder import Block, Decoder, DecoderConfig
from tessera.models.encoder import BlockNames
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch


class LayerNormBlock:
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(
        self,
        attention_norm: AddLayerNorm,
        attention: AttentionBlock,
        mlp_norm: AddLayerNorm,
        mlp: Callable[[Tensor], Tensor],
    ) -> None:
        self.attention_norm, self.attention = attention_norm, attention
        self.mlp_norm, self.mlp = mlp_norm, mlp

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        normed, residual = self.attention_norm(x, residual)
        return self.attention(normed, residual, launch, caches)

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        mixed, residual = states
        normed, residual = self.mlp_norm(self.attention.output(mixed), residual)
        return self.mlp(normed), residual


class SequentialBlock(LayerNormBlock):
    """A decoder's. whole: the block's input is complete on every rank, with no
    residual beside it. mlp: made of the build, the model's configuration and the layer's number; None: one without a
    gate."""

    def __init__(
        self,
        build: Build,
        config: DecoderConfig,
        number: int,
        tables: RotaryTable,
        names: BlockNames,
        *,
        norm_bias: bool = True,
        whole: bool = False,
        mlp: Callable[[Build, DecoderConfig, int], Callable[[Tensor], Tensor]] | None = None,
    ) -> None:
        prefix, size = f"{config.names.layers}.{number}", (config.hidden, config.eps)
        super().__init__(
            AddLayerNorm(build, f"{prefix}.{names.attention_norm}", *size, bias=norm_bias, whole=whole),
            config.layers[number].block(build, f"{prefix}.{names.attention}", None, tables),
            AddLayerNorm(build, f"{prefix}.{names.mlp_norm}", *size, bias=norm_bias),
            plain_mlp(build, config, number, names) if mlp is None else mlp(build, config, number),
        )


def plain_mlp(build: Build, config: DecoderConfig, number: int, names: BlockNames) -> MLP:
    """A layer's MLP without a gate."""
    up, down = (f"{config.names.layers}.{number}.{name}" for name in names.mlp)
    return MLP(build, up, down, config.hidden, config.inner, config.activation, bias=config.mlp_bias)


class NormedEmbedding:
    """An embedding and the norm behind it, which completes a partial sum. name: of the norm in the checkpoint."""

    def __init__(self, build: Build, config: DecoderConfig, embedding: Embedding | PackedEmbedding, name: str) -> None:
        self.embedding = embedding
        self.norm = AddLayerNorm(build, name, config.hidden, config.eps)

    def __call__(self, tokens: Tensor) -> Tensor:
        return self.norm(self.embedding(tokens), None)[0]


def layer_norm_decoder(
    build: Build,
    config: DecoderConfig,
    block: Callable[[int, RotaryTable], Block],
    *,
    embedding_norm: str = "",
    norm_bias: bool = True,
    last_eps: float | None = None,
    decoder: Callable[..., Decoder] = Decoder,
) -> Decoder:
    """block: makes that of a number. embedding_norm: the name of the norm behind the embedding; "": there is none, and
    the first block completes the embedding's partial sum. norm_bias: whether the last norm has a bias. last_eps: of
    that norm; None: as of the others. decoder: makes the whole of its parts."""
    embedding: Callable[[Tensor], Tensor] | None
    names, sizes = config.names, (config.vocab, config.hidden)
    embedding, head = vocabulary_ends(
        build,
        names.embedding,
        *sizes,
        tied=config.tied,
        logits_scale=config.logits_scale,
        head_name=names.head,
        head_bias=config.head_bias,
    )
    if embedding is not None and embedding_norm:
        embedding = NormedEmbedding(build, config, embedding, embedding_norm)
    tables = RotaryTable(build)
    blocks = [block(number, tables) for number in build.layers(len(config.layers))]
    norm = None
    if build.is_last_stage:
        eps = config.eps if last_eps is None else last_eps
        norm = AddLayerNorm(build, names.norm, config.hidden, eps, bias=norm_bias)
    return decoder(build, config, embedding=embedding, blocks=blocks, norm=norm, head=head)
