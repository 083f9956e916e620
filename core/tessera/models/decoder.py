"""The decoder of the Llama-shaped families: pre-norm blocks of rotary attention and a gated MLP, or experts in its
place."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tessera.layers.attention import Attention, AttentionShape, RotaryTable
from tessera.layers.build import Build
from tessera.layers.embedding import Embedding, Head
from tessera.layers.mlp import ExpertNames, GatedMLP, MixtureOfExperts
from tessera.layers.norm import AddNorm
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch
from tessera.platform.runner import Hidden, LayerCache, ModelFacts


@dataclass(frozen=True)
class Experts:
    """names: with {layer} for the layer's number and {} for the expert's."""

    number: int
    top_k: int
    inner: int
    names: ExpertNames
    renormalise: bool = True


@dataclass(frozen=True)
class DecoderConfig:
    """All that tells the families apart. layers: the attention of each. tied: the head is the embedding."""

    architecture: str
    vocab: int
    hidden: int
    inner: int
    layers: tuple[AttentionShape, ...]
    activation: str
    eps: float
    max_positions: int
    tied: bool
    mlp_bias: bool = False
    experts: Experts | None = None


class DecoderLayer:
    def __init__(self, build: Build, config: DecoderConfig, number: int, tables: RotaryTable) -> None:
        prefix = f"model.layers.{number}"
        self.attention = Attention(
            build, f"{prefix}.self_attn", f"{prefix}.input_layernorm", config.layers[number], tables
        )
        self.mlp: GatedMLP | MixtureOfExperts
        if config.experts is None:
            self.mlp = GatedMLP(
                build, f"{prefix}.mlp", config.hidden, config.inner, config.activation, bias=config.mlp_bias
            )
        else:
            self.mlp = _experts(build, config, config.experts, number)
        self.norm = AddNorm(build, f"{prefix}.post_attention_layernorm", config.hidden, config.eps, emit=self.mlp.wants)

    def __call__(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, Tensor]:
        x, residual = self.attention(x, residual, launch, caches)
        x, residual = self.norm(x, residual)
        return self.mlp(x), residual


class Decoder:
    """x and residual travel apart: a block returns its contribution, and the next norm adds it (and completes it over
    the ranks)."""

    def __init__(self, build: Build, config: DecoderConfig) -> None:
        self.config = config
        self.embedding = Embedding(build, "model.embed_tokens", config.vocab, config.hidden)
        tables = RotaryTable(build)
        self.layers = [DecoderLayer(build, config, number, tables) for number in range(len(config.layers))]
        self.norm = AddNorm(build, "model.norm", config.hidden, config.eps)
        self.head = Head(build, "model.embed_tokens" if config.tied else "lm_head", config.vocab, config.hidden)
        self.facts = ModelFacts(
            architecture=config.architecture,
            vocab_size=config.vocab,
            hidden_size=config.hidden,
            num_layers=len(config.layers),
            max_positions=config.max_positions,
            dtype=build.dtype,
            caches=tuple(LayerCache(bound.spec.layer, bound.spec.cache) for bound in build.mixers),
        )

    def embed(self, tokens: Tensor, spans: Tensor | None) -> Tensor:
        return self.embedding(tokens)

    def forward(self, x: Tensor, launch: Launch, caches: Caches) -> Hidden:
        residual: Tensor | None = None
        for layer in self.layers:
            x, residual = layer(x, residual, launch, caches)
        return Hidden(x, residual)

    def finish(self, hidden: Hidden) -> Tensor:
        return self.norm(hidden.last, hidden.residual)[0]

    def logits(self, rows: Tensor) -> Tensor:
        return self.head(rows)


def _experts(build: Build, config: DecoderConfig, experts: Experts, number: int) -> MixtureOfExperts:
    names = experts.names
    at = ExpertNames(
        *(name.replace("{layer}", str(number)) for name in (names.router, names.gate, names.up, names.down))
    )
    return MixtureOfExperts(
        build,
        at,
        config.hidden,
        experts.inner,
        experts.number,
        experts.top_k,
        config.activation,
        renormalise=experts.renormalise,
    )
