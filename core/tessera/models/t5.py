"""T5 (arXiv:1910.10683), T5 1.1 (arXiv:2002.05202) and their relatives: decoders that write a text from one that their
encoder has read, and encoders alone. Positions are biases of scores by the distance between query and key; scores are
not scaled, and norms, which come before each part of a block, have no biases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tessera.errors import ModelError
from tessera.layers.attention import Attention, AttentionShape, RotaryTable
from tessera.layers.build import Build
from tessera.layers.cross_attention import CrossAttention, CrossShape
from tessera.layers.mlp import MLP, GatedMLP, GatedNames
from tessera.layers.norm import AddNorm, Norm
from tessera.layers.qkv import Apart
from tessera.layers.weights import Parameter
from tessera.models.cross_decoder import CrossDecoder
from tessera.models.decoder import Decoder, DecoderConfig, DecoderNames, build_decoder
from tessera.models.fields import Checkpoint, ConfigFields, renamed
from tessera.models.reading import read_attention, read_decoder, repeated
from tessera.models.relative_bias import DistanceBuckets, relative_bias
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch

_FIELDS = {
    "d_model": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "d_kv": "head_dim",
    "d_ff": "intermediate_size",
    "layer_norm_epsilon": "rms_norm_eps",
}
# transformers' defaults for fields that config.json omits. An explicit null stays null.
_T5: Mapping[str, Any] = {
    "vocab_size": 32128,
    "hidden_size": 512,
    "head_dim": 64,
    "intermediate_size": 2048,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "rms_norm_eps": 1e-6,
    "feed_forward_proj": "relu",
    "n_positions": 1024,
}
_MT5: Mapping[str, Any] = {
    **_T5,
    "vocab_size": 250112,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "feed_forward_proj": "gated-gelu",
}
_DECODER = "decoder"
_LAYOUT = Apart("o", "q", "k", "v")
_GATED = GatedNames("wi_0", "wi_1", "wo")
_FARTHEST = 2**16
"""The largest relative_attention_max_distance: a table has an entry for each distance up to it."""


def t5(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """T5, T5 1.1 and FLAN-T5. Those before 1.1 use one weight for both ends of the vocabulary, and scale what the head
    takes; newer files of transformers say the latter apart."""
    fields = _fields(checkpoint, _T5)
    return _decoder(build, fields, max_model_len, scaled=fields.flag("scale_decoder_outputs", default=_tied(fields)))


def mt5(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """mT5 (arXiv:2010.11934)."""
    return _decoder(build, _fields(checkpoint, _MT5), max_model_len, scaled=False)


def umt5(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """UMT5 (arXiv:2304.09151): each layer has biases of its own."""
    fields = _fields(checkpoint, _MT5)
    return _decoder(build, fields, max_model_len, scaled=_tied(fields), biases_by_layer=True)


def t5_encoder(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """T5's encoder alone, as of sentence-t5 (arXiv:2108.08877) and GTR."""
    return _encoder(build, _fields(checkpoint, _T5), max_model_len)


def mt5_encoder(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """mT5's encoder alone."""
    return _encoder(build, _fields(checkpoint, _MT5), max_model_len)


def umt5_encoder(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """UMT5's encoder alone."""
    return _encoder(build, _fields(checkpoint, _MT5), max_model_len, biases_by_layer=True)


class _Block:
    """x + attention(norm(x)), then x + mlp(norm(x)). mlp: the number of the MLP among the layer's parts."""

    def __init__(self, build: Build, stack: _Stack, number: int, tables: RotaryTable, *, mlp: int = 1) -> None:
        config, prefix = stack.config, f"{stack.config.names.layers}.{number}.layer"
        norm = f"{prefix}.0.layer_norm", Norm(config.eps)
        bias = stack.biases[number % len(stack.biases)]
        self.attention = Attention(build, f"{prefix}.0.SelfAttention", norm, stack.shape, tables, bias)
        self.mlp = _mlp(build, f"{prefix}.{mlp}.DenseReluDense", config, gated=stack.gated)
        emit = self.mlp.wants if isinstance(self.mlp, GatedMLP) else None
        self.mlp_norm = AddNorm(build, f"{prefix}.{mlp}.layer_norm", config.hidden, Norm(config.eps), emit=emit)

    @property
    def output(self) -> Callable[[Tensor], Tensor]:
        """Of what attend() returns first."""
        return self.attention.output

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        return self.attention(x, residual, launch, caches)

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        mixed, residual = states
        normed, residual = self.mlp_norm(self.output(mixed), residual)
        return self.mlp(normed), residual


class _CrossBlock(_Block):
    """The same with cross attention between the two."""

    def __init__(self, build: Build, stack: _Stack, number: int, tables: RotaryTable, shape: CrossShape) -> None:
        super().__init__(build, stack, number, tables, mlp=2)
        prefix = f"{stack.config.names.layers}.{number}.layer.1"
        self.cross_norm = AddNorm(build, f"{prefix}.layer_norm", stack.config.hidden, Norm(stack.config.eps))
        self.cross = CrossAttention(build, f"{prefix}.EncDecAttention", shape)

    @property
    def output(self) -> Callable[[Tensor], Tensor]:
        return self.cross.output

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        mixed, residual = self.attention(x, residual, launch, caches)
        normed, residual = self.cross_norm(self.attention.output(mixed), residual)
        return self.cross(normed, residual, launch, caches)


def _mlp(build: Build, prefix: str, config: DecoderConfig, *, gated: bool) -> GatedMLP | MLP:
    sizes = config.hidden, config.inner, config.activation
    if gated:
        return GatedMLP(build, prefix, *sizes, names=_GATED)
    return MLP(build, f"{prefix}.wi", f"{prefix}.wo", *sizes)


@dataclass(frozen=True)
class _Stack:
    """The blocks of one side, an encoder or a decoder."""

    config: DecoderConfig
    # Of each layer.
    shape: AttentionShape
    # Whether MLPs have a gate.
    gated: bool
    # Of scores, by distance: of each layer, or one of all, which the first layer has.
    biases: Sequence[Parameter]

    @classmethod
    def from_fields(
        cls, build: Build, fields: ConfigFields, max_model_len: int, side: str, *, by_layer: bool, **differs: Any
    ) -> _Stack:
        """side: its name in the checkpoint. differs: fields of DecoderConfig to override. Raises ModelError."""
        if build.dtype == "float16":
            raise ModelError("T5's activations may be out of float16's range; use --dtype bfloat16 or float32.")
        causal = side == _DECODER
        buckets, (activation, gated) = _buckets(fields, causal=causal), _activation(fields)
        shape = read_attention(
            fields, max_model_len, rope=None, scale=1.0, layout=_LAYOUT, causal=causal, relative_reach=buckets.reach
        )
        config = read_decoder(
            fields,
            repeated(fields, shape),
            activation=activation,
            tied=_tied(fields),
            names=DecoderNames(embedding="shared", layers=f"{side}.block", norm=f"{side}.final_layer_norm"),
            **differs,
        )
        biases = [
            relative_bias(
                build, f"{side}.block.{number}.layer.0.SelfAttention.relative_attention_bias", shape.heads, buckets
            )
            for number in range(len(config.layers) if by_layer else 1)
        ]
        return cls(config, shape, gated, biases)


def _decoder(
    build: Build, fields: ConfigFields, max_model_len: int, *, scaled: bool, biases_by_layer: bool = False
) -> Decoder:
    """scaled: whether what the head takes is divided by the root of its size. biases_by_layer: whether each layer has
    biases of its own; otherwise the first one has those of all."""
    if fields.get("num_decoder_layers") is not None:
        fields = ConfigFields({**fields.values, "num_hidden_layers": fields.count("num_decoder_layers")})
    scale = fields.count("hidden_size") ** -0.5 if scaled else 1.0
    stack = _Stack.from_fields(build, fields, max_model_len, _DECODER, by_layer=biases_by_layer, logits_scale=scale)
    shape, length = stack.shape, fields.count("n_positions")
    crossed = CrossShape(shape.hidden, shape.heads, shape.head_dim, length, layout=_LAYOUT, bias=False, scale=1.0)

    def block(build: Build, _: DecoderConfig, number: int, tables: RotaryTable) -> _CrossBlock:
        return _CrossBlock(build, stack, number, tables, crossed)

    return build_decoder(build, stack.config, block, decoder=CrossDecoder)


def _encoder(build: Build, fields: ConfigFields, max_model_len: int, *, biases_by_layer: bool = False) -> Decoder:
    stack = _Stack.from_fields(build, fields, max_model_len, "encoder", by_layer=biases_by_layer)

    def block(build: Build, _: DecoderConfig, number: int, tables: RotaryTable) -> _Block:
        return _Block(build, stack, number, tables)

    return build_decoder(build, stack.config, block)


def _fields(checkpoint: Checkpoint, defaults: Mapping[str, Any]) -> ConfigFields:
    said = {name: value for name, value in checkpoint.items() if name not in _FIELDS.values()}
    return ConfigFields(renamed(said, _FIELDS), defaults)


def _tied(fields: ConfigFields) -> bool:
    return fields.flag("tie_word_embeddings", default=True)


def _buckets(fields: ConfigFields, *, causal: bool) -> DistanceBuckets:
    """Raises ModelError."""
    count = fields.count("relative_attention_num_buckets", least=4)
    farthest = fields.count("relative_attention_max_distance")
    buckets = DistanceBuckets(count, farthest, causal)
    if not buckets.exact < farthest <= _FARTHEST or count > _FARTHEST:
        raise ModelError(
            "relative_attention_max_distance in config.json must be more than half of relative_attention_num_buckets, "
            f"and at most {_FARTHEST:,}."
        )
    return buckets


def _activation(fields: ConfigFields) -> tuple[str, bool]:
    """That of feed_forward_proj, by the ops' name, and whether it is a gate's. Raises ModelError."""
    said = str(fields.get("feed_forward_proj"))
    name, gated = said.removeprefix("gated-"), said.startswith("gated-")
    named = ConfigFields({"feed_forward_proj": "gelu_new" if said == "gated-gelu" else name})
    return named.activation("feed_forward_proj", "relu", gated=gated), gated
