"""The decoder (embedding, blocks, norm, head) and the pre-norm block of the Llama-like families: rotary attention, then
a gated MLP or a mixture of experts, each with a norm before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from tessera.layers.attention import BlockShape, RotaryTable
from tessera.layers.build import Build, TokenPredictor
from tessera.layers.classification import HeadConfig, TokenLogits, check_head, classification_heads, token_heads
from tessera.layers.embedding import HEAD, Head, vocabulary_ends
from tessera.layers.mlp import GATED, Experts, GatedMLP, GatedNames, MixtureOfExperts
from tessera.layers.mlp_block import ExpertsShape
from tessera.layers.norm import AddNorm, Norm
from tessera.layers.pooling import embedding_heads
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch
from tessera.platform.model import Hidden, ModelFacts, PoolingHead

SCORE = HeadConfig("score", classifier_bias=False, pooling="last")
TOKEN_SCORE = HeadConfig("score")


@dataclass(frozen=True)
class DecoderNames:
    """What a checkpoint calls the parts of a decoder: in most, what Llama's calls them."""

    embedding: str = "model.embed_tokens"
    layers: str = "model.layers"  # in front of a layer's number
    attention_norm: str = "input_layernorm"  # before attention, or what mixes tokens instead, behind the layer's name
    mixer: str = ""  # what mixes tokens, behind the layer's name; "": as its BlockShape.name
    mlp_norm: str = "post_attention_layernorm"  # before the MLP, behind the layer's name
    after_attention: str = ""  # a norm behind attention, or what mixes tokens instead, behind the layer's name
    after_mlp: str = ""  # a norm behind the MLP, behind the layer's name
    mlp: str = "mlp"  # a layer's MLP, behind the layer's name
    gated: GatedNames = GATED  # its weights
    norm: str = "model.norm"  # behind the last layer
    head: str = HEAD


NAMES = DecoderNames()


@dataclass(frozen=True)
class DecoderConfig:
    """Everything that distinguishes the families."""

    architecture: str
    vocab: int
    hidden: int
    inner: int
    layers: tuple[BlockShape, ...]  # how each layer mixes tokens, or what else it begins with
    activation: str
    eps: float
    max_positions: int
    tied: bool  # the head uses the embedding's weight
    mlp_bias: bool = False
    experts: Experts | None = None
    dense_layers: frozenset[int] = frozenset()  # layers with an MLP in a model of experts
    names: DecoderNames = NAMES
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    residual_multiplier: float = 1.0  # scales what a block adds
    head_bias: bool = False
    unwritten: int = 0  # how many of the last tokens have an embedding and no row in the head
    logits_scale: float = 1.0
    logits_cap: float = 0.0
    text_head: HeadConfig = SCORE  # of a classifier of texts
    token_head: HeadConfig = TOKEN_SCORE  # and of one of tokens

    @property
    def num_experts(self) -> int:
        """Of a layer; 0 if no layer has any."""
        mixtures = [layer.experts for layer in self.layers if isinstance(layer, ExpertsShape)]
        if self.experts is not None and len(self.dense_layers) < len(self.layers):
            mixtures.append(self.experts)
        return max((mixture.route.experts for mixture in mixtures), default=0)


class Block(Protocol):
    """A block in two halves. In the last block, only the tokens whose logits are needed run the second half: one per
    prompt. x and residual are passed separately: a block may return its contribution, which the next norm adds (and
    sums over the ranks), or the sum and no residual."""

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        """Attention, the part where tokens interact. Returns the inputs of transform(), [T, ...] each."""

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """The rest, in which each token is computed on its own."""


class FinalNorm(Protocol):
    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]: ...


class Decoder:
    """Create it after all of its parts: it reads `build` for what they registered. Only the first pipeline stage needs
    an embedding, only the last one a norm and, if the model generates, a head. joined: a block returns the sum, and no
    residual."""

    def __init__(
        self,
        build: Build,
        config: DecoderConfig,
        *,
        embedding: Callable[[Tensor], Tensor] | None,
        blocks: Sequence[Block],
        norm: FinalNorm | None,
        head: Head | None,
        joined: bool = False,
    ) -> None:
        self.config = config
        self.embedding, self.blocks, self.norm, self._head = embedding, blocks, norm, head
        self.is_last_stage = build.is_last_stage
        self.pooling: Mapping[str, PoolingHead] = _pooling_heads(build, config)
        causal = all(layer.causal for layer in config.layers)
        self.facts = ModelFacts(
            architecture=config.architecture,
            vocab_size=config.vocab,
            hidden_size=config.hidden,
            num_layers=len(config.layers),
            max_positions=config.max_positions,
            dtype=build.dtype,
            caches=build.caches,
            notes=(*_notes(config.layers), *build.notes),
            stage_tensors=1 if joined else 2,
            chunkable=causal and not build.prefix,
            prefix_cacheable=causal,
            generates=build.generates,
            num_experts=config.num_experts,
        )

    @property
    def head(self) -> Head:
        assert self._head is not None, "the last stage of a model that generates has it"
        return self._head

    def embed(self, tokens: Tensor) -> Tensor:
        assert self.embedding is not None, "the first stage has it"
        return self.embedding(tokens)

    def forward(self, x: Tensor, launch: Launch, caches: Caches, residual: Tensor | None = None) -> Hidden:
        for block in self.blocks[:-1]:
            x, residual = block.transform(block.attend(x, residual, launch, caches))
        return self.end(x, residual, launch, caches)

    def end(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> Hidden:
        """The last block of this stage."""
        last = self.blocks[-1]
        states = last.attend(x, residual, launch, caches)
        if not self.is_last_stage:
            return Hidden(*last.transform(states))
        return Hidden(*last.transform([launch.select_logits(state) for state in states]))

    def finish(self, hidden: Hidden) -> Tensor:
        assert self.norm is not None, "the last stage has it"
        return self.norm(hidden.last, hidden.residual)[0]

    def logits(self, rows: Tensor) -> Tensor:
        return self.head(rows)


def _pooling_heads(build: Build, config: DecoderConfig) -> dict[str, PoolingHead]:
    def logits_of(tokens: Sequence[int]) -> TokenLogits:
        sizes, tied = (config.vocab, config.hidden), f"{config.names.embedding}.weight" if config.tied else None
        scale, cap, bias = config.logits_scale, config.logits_cap, config.head_bias
        return TokenLogits(build, tokens, *sizes, tied=tied, bias=bias, scale=scale, cap=cap)

    heads = token_heads(build, logits_of)
    if not heads:
        check_head(build, config.architecture, config.text_head)
        converted = build.pooler is not None and build.pooler.converted
        token_head = config.text_head if converted else config.token_head
        heads = classification_heads(build, config.hidden, config.text_head, token_head)
    return {**embedding_heads(build), **heads}


class PreNormBlock:
    def __init__(self, build: Build, config: DecoderConfig, number: int, tables: RotaryTable) -> None:
        prefix = f"{config.names.layers}.{number}"
        norm = Norm(config.eps, config.norm_offset, config.residual_multiplier)
        named_norm = f"{prefix}.{config.names.attention_norm}", norm
        shape = config.layers[number]
        self.attention = shape.block(build, f"{prefix}.{config.names.mixer or shape.name}", named_norm, tables)
        self.mlp = mlp_of(build, config, number)
        self.norm = AddNorm(build, f"{prefix}.{config.names.mlp_norm}", config.hidden, norm, emit=self.mlp.wants)

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        return self.attention(x, residual, launch, caches)

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        mixed, residual = states
        x, residual = self.norm(self.attention.output(mixed), residual)
        return self.mlp(x), residual


def build_decoder(
    build: Build,
    config: DecoderConfig,
    block: Callable[[Build, DecoderConfig, int, RotaryTable], Block] = PreNormBlock,
    *,
    whole: bool = False,
    decoder: type[Decoder] = Decoder,
    predictor: Callable[[Build, RotaryTable], TokenPredictor] | None = None,
) -> Decoder:
    """whole: activations between blocks are complete on every rank, and there is no residual beside them, as required
    for a block that does not begin with a norm or that ends with one. predictor: makes the layer that predicts further
    tokens, if one is wanted."""
    embedding, head = vocabulary_ends(
        build,
        config.names.embedding,
        config.vocab,
        config.hidden,
        tied=config.tied,
        embedding_scale=config.embedding_scale,
        whole=whole,
        logits_cap=config.logits_cap,
        logits_scale=config.logits_scale,
        head_name=config.names.head,
        head_bias=config.head_bias,
        unwritten=config.unwritten,
    )
    tables = RotaryTable(build)
    blocks = [block(build, config, number, tables) for number in build.layers(len(config.layers))]
    norm = Norm(config.eps, config.norm_offset, config.residual_multiplier, whole)
    build.predictor = None if predictor is None else predictor(build, tables)
    return decoder(
        build,
        config,
        embedding=embedding,
        blocks=blocks,
        norm=AddNorm(build, config.names.norm, config.hidden, norm) if build.is_last_stage else None,
        head=head,
        joined=whole,
    )


def mlp_of(build: Build, config: DecoderConfig, number: int) -> GatedMLP | MixtureOfExperts:
    if config.experts is not None and number not in config.dense_layers:
        return MixtureOfExperts(build, config.experts, number, config.hidden, config.activation)
    return GatedMLP(
        build,
        f"{config.names.layers}.{number}.{config.names.mlp}",
        config.hidden,
        config.inner,
        config.activation,
        bias=config.mlp_bias,
        names=config.names.gated,
    )


def _notes(layers: Sequence[BlockShape]) -> tuple[str, ...]:
    scalings = [layer.rope.scaling for layer in layers if layer.rope is not None]
    return tuple(dict.fromkeys(scaling.note for scaling in scalings if scaling is not None and scaling.note))
