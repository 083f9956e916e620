"""Zamba and Zamba 2: every layer has a Mamba with heads, or a Mamba 2. In front of it, some have a transformer whose
weights they share with others, and which sees the embeddings beside the layer's input (arXiv:2405.16712, 2411.15242).

What is between layers is complete on every rank, and the embeddings go with it in the place of a residual.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.errors import ModelError
from tessera.layers.attention import Attention, AttentionShape, BlockShape, RotaryTable
from tessera.layers.build import Build
from tessera.layers.embedding import vocabulary_ends
from tessera.layers.linear import Linear, WeightShard
from tessera.layers.mamba2 import Mamba2Shape
from tessera.layers.mlp import GATED, GatedNames
from tessera.layers.multi_head_mamba import MultiHeadMambaShape
from tessera.layers.norm import AddNorm, Norm
from tessera.layers.rotary import Rope
from tessera.models.decoder import Decoder, DecoderConfig, DecoderNames
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.mamba import read_rank
from tessera.models.reading import read_attention, read_decoder
from tessera.models.rope import RopeReader
from tessera.ops import AddSpec, GateSpec
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_ZAMBA: dict[str, Any] = {
    "max_position_embeddings": 4096,
    "num_key_value_heads": 16,
    "attn_layer_period": 6,
    "attn_layer_offset": 4,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_dt_rank": "auto",
    "mamba_conv_bias": True,
    "n_mamba_heads": 2,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
_ZAMBA2: dict[str, Any] = {
    "max_position_embeddings": 4096,
    "mamba_d_state": 64,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_ngroups": 1,
    "n_mamba_heads": 8,
    "time_step_min": 0.001,
    "rms_norm_eps": 1e-5,
    "num_mem_blocks": 1,
    "adapter_rank": 128,
    "tie_word_embeddings": True,
}
_DEFAULT = [
    "mamba",
    *(["mamba"] * 5 + ["hybrid"]) * 7,
    *["mamba"] * 4,
    "hybrid",
    *["mamba"] * 3,
    "hybrid",
    *["mamba"] * 2,
]
_KINDS = {"mamba": False, "linear_attention": False, "hybrid": True}
"""What layers_block_type says of layers, then and now, and whether these have a transformer."""
_NAMES = DecoderNames(norm="model.final_layernorm")
_GATE_EPS = 1e-5  # of the norm of Mamba 2's result


@dataclass(frozen=True)
class Transformer:
    """What the calls of shared transformers have in common."""

    attention: AttentionShape
    inner: int  # of the MLP
    activation: str
    bias: bool  # of the MLP's products
    name: str  # of its weights in those of a layer
    gated: GatedNames  # of the weights of its MLP
    rank: int = 0  # of the adapters that each call has of its own; 0: it has none
    adapts_attention: bool = False  # the products of queries, keys and values have some too


class CallAdapter:
    """up(down(x)), which a call of shared weights adds to their products. parts: the name of each, in the order of the
    products, and the shards that this rank has of the weight it is for."""

    def __init__(self, build: Build, k: int, rank: int, parts: Sequence[tuple[str, Sequence[WeightShard]]]) -> None:
        self.rank = rank
        self.down = Linear(build, [WeightShard(f"{name}.0", rank, k) for name, _ in parts])
        self.ups = [
            Linear(build, [WeightShard(f"{name}.1", shard.n, rank, shard.rows) for shard in shards])
            for name, shards in parts
        ]
        n = sum(shard.shape[0] for _, shards in parts for shard in shards)
        self.add = build.ops.bind("add", AddSpec(n, build.dtype))

    def __call__(self, x: Tensor, products: Tensor) -> Tensor:
        """products: of x."""
        made = [up(part) for up, part in zip(self.ups, self.down(x).split(self.rank, dim=-1), strict=True)]
        result: Tensor = self.add(products, made[0] if len(made) == 1 else torch.cat(made, dim=-1))
        return result


class AdaptedInput:
    """Has NormLinear's signature, but no norm."""

    def __init__(self, linear: Linear, adapter: CallAdapter) -> None:
        self.linear, self.adapter = linear, adapter

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.adapter(x, self.linear(x)), x


class SharedTransformer:
    """The weights of a transformer: a norm, attention, a norm and an MLP, with nothing added between them. prefix: of
    their names."""

    def __init__(self, build: Build, prefix: str, shape: Transformer, tables: RotaryTable) -> None:
        self.prefix, self.shape, hidden, inner = prefix, shape, shape.attention.hidden, shape.inner
        eps = shape.attention.eps
        self.norm = AddNorm(build, f"{prefix}.input_layernorm", 2 * hidden, Norm(eps, whole=True))
        self.attention = Attention(build, f"{prefix}.self_attn", None, shape.attention, tables)
        self.mlp_norm = AddNorm(build, f"{prefix}.pre_ff_layernorm", hidden, Norm(eps))
        mlp, part = f"{prefix}.feed_forward", build.shard(inner, "the inner size of the MLP")
        self.wide = shape.gated.gate_up(mlp, inner, hidden, part)
        self.gate_up = Linear(build, self.wide, bias=shape.bias)
        self.gate = build.ops.bind("gate", GateSpec(part[1] - part[0], build.dtype, shape.activation))
        down = WeightShard(f"{mlp}.{shape.gated.down}", hidden, inner, columns=part)
        self.down = Linear(build, [down], bias=shape.bias)


class SharedCall:
    """A call of a transformer: keys and values, and adapters, of its own. number: among the model's calls. first: of
    this transformer's on this stage."""

    def __init__(self, build: Build, shared: SharedTransformer, number: int, *, first: bool) -> None:
        self.shared, shape, prefix = shared, shared.shape, shared.prefix
        self.attention = shared.attention if first else shared.attention.again(build)
        if shape.adapts_attention:
            name = f"{prefix}.self_attn.linear_{{}}_adapter_list.{number}"
            named = [(name.format(one), [shard]) for one, shard in zip("qkv", shared.attention.sources, strict=True)]
            adapter = CallAdapter(build, 2 * shape.attention.hidden, shape.rank, named)
            self.attention.input = AdaptedInput(shared.attention.linear, adapter)
        self.adapter: CallAdapter | None = None
        if shape.rank:
            name = f"{prefix}.feed_forward.gate_up_proj_adapter_list.{number}"
            self.adapter = CallAdapter(build, shape.attention.hidden, shape.rank, [(name, shared.wide)])

    def __call__(self, x: Tensor, embedded: Tensor, launch: Launch, caches: Caches) -> Tensor:
        """Returns this rank's partial sum."""
        shared = self.shared
        normed, _ = shared.norm(torch.cat([x, embedded], dim=-1), None)
        mixed, _ = self.attention(normed, None, launch, caches)
        normed, _ = shared.mlp_norm(self.attention.output(mixed), None)
        products = shared.gate_up(normed)
        return shared.down(shared.gate(products if self.adapter is None else self.adapter(normed, products)))


class ZambaBlock:
    """x + mamba(norm(x)); or, with a call, x + mamba(norm(x + linear(call(x, embeddings))))."""

    def __init__(
        self,
        build: Build,
        prefix: str,
        config: DecoderConfig,
        mamba: BlockShape,
        tables: RotaryTable,
        call: SharedCall | None,
    ) -> None:
        hidden, self.call = config.hidden, call
        within = prefix if call is None else f"{prefix}.mamba_decoder"
        self.linear = None if call is None else Linear(build, [WeightShard(f"{prefix}.linear", hidden, hidden)])
        norm = f"{within}.{config.names.attention_norm}", Norm(config.eps, whole=call is None)
        self.mamba = mamba.block(build, f"{within}.{mamba.name}", norm, tables)
        self.complete, self.add = build.group.all_reduce, build.ops.bind("add", AddSpec(hidden, build.dtype))

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        embedded = x if residual is None else residual
        if self.call is None or self.linear is None:
            return self.mamba(x, None, launch, caches)[0], x, embedded
        added = self.linear(self.call(x, embedded, launch, caches))
        return self.mamba(added, x, launch, caches)[0], x, embedded

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        mixed, x, embedded = states
        return self.add(x, self.complete(self.mamba.output(mixed))), embedded


class LastNorm:
    """Of x alone."""

    def __init__(self, build: Build, config: DecoderConfig) -> None:
        self.norm = AddNorm(build, config.names.norm, config.hidden, Norm(config.eps, whole=True))

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.norm(x, None)


def zamba(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _ZAMBA)
    period, offset = fields.count("attn_layer_period"), fields.count("attn_layer_offset", least=0)
    behind = [number % period == offset for number in range(fields.count("num_hidden_layers") - 3)]
    kinds = _kinds(fields, [False, False, True, *behind])
    inputs, heads = 2 * fields.count("hidden_size"), fields.count("num_attention_heads")
    if fields.count("attention_hidden_size", inputs) != inputs:
        raise ModelError("an attention_hidden_size other than twice hidden_size is not supported.")
    head_dim = fields.count("attention_head_dim", inputs // heads)
    shape = Transformer(
        attention=_attention(fields, max_model_len, head_dim, rope=None),
        inner=fields.count("intermediate_size"),
        activation=fields.activation("hidden_act", "gelu"),
        bias=False,
        name="shared_transf",
        gated=GATED,
    )
    return _decoder(build, fields, kinds, shape, _mamba(fields, max_model_len), number=1)


def zamba2(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _ZAMBA2)
    if fields.flag("use_long_context"):
        raise ModelError("use_long_context is not supported.")
    hidden, number = fields.count("hidden_size"), fields.count("num_mem_blocks")
    head_dim = 2 * hidden // fields.count("num_attention_heads")
    rope = RopeReader(fields, head_dim, max_model_len).read() if fields.flag("use_mem_rope") else None
    shape = Transformer(
        attention=_attention(fields, max_model_len, head_dim, rope),
        inner=fields.count("intermediate_size", 4 * hidden),
        activation=fields.activation("hidden_act", "gelu"),
        bias=fields.flag("add_bias_linear"),
        name="shared_transformer",
        gated=GatedNames(joined="gate_up_proj"),
        rank=fields.count("adapter_rank"),
        adapts_attention=fields.flag("use_shared_attention_adapter"),
    )
    kinds = _kinds(fields, [_KINDS[kind] for kind in _DEFAULT])
    return _decoder(build, fields, kinds, shape, _mamba2(fields, max_model_len), number)


def _decoder(
    build: Build, fields: ConfigFields, kinds: Sequence[bool], shape: Transformer, mamba: BlockShape, number: int
) -> Decoder:
    """kinds: whether each layer calls a transformer. number: of transformers."""
    if not fields.flag("tie_word_embeddings"):
        raise ModelError("tie_word_embeddings must be true in config.json: without it, no transformers are shared.")
    layers = [shape.attention if calls else mamba for calls in kinds]
    config = read_decoder(fields, layers, eps=shape.attention.eps, inner=shape.inner, activation="", names=_NAMES)
    ends = vocabulary_ends(build, _NAMES.embedding, config.vocab, config.hidden, tied=config.tied, whole=True)
    tables, shared = RotaryTable(build), dict[str, SharedTransformer]()
    calling = [layer for layer, calls in enumerate(kinds) if calls]

    def block(layer: int) -> ZambaBlock:
        """The calls take turns at the transformers."""
        call = None
        if kinds[layer]:
            at = calling.index(layer)
            name = _stored_name(build, shape.name, calling[at % number :: number])
            first = name not in shared
            if first:
                shared[name] = SharedTransformer(build, name, shape, tables)
            call = SharedCall(build, shared[name], at, first=first)
        return ZambaBlock(build, f"{_NAMES.layers}.{layer}", config, mamba, tables, call)

    blocks = [block(layer) for layer in build.layers(len(kinds))]
    norm = LastNorm(build, config) if build.is_last_stage else None
    return Decoder(build, config, embedding=ends[0], blocks=blocks, norm=norm, head=ends[1])


def _stored_name(build: Build, name: str, callers: Sequence[int]) -> str:
    """Of a transformer's weights, which a checkpoint stores in any one of the layers that call it."""
    names = [f"{_NAMES.layers}.{layer}.{name}" for layer in callers]
    stored = build.stored
    return next((one for one in names if stored is None or stored.holds(f"{one}.input_layernorm.weight")), names[0])


def _kinds(fields: ConfigFields, default: Sequence[bool]) -> Sequence[bool]:
    """Whether each layer calls a transformer. default: unless the layers are named."""
    named = fields.get("layers_block_type")
    if named is None:
        return default
    if not isinstance(named, list) or not named or not all(str(kind) in _KINDS for kind in named):
        raise ModelError("layers_block_type in config.json must say mamba or hybrid for each layer.")
    return [_KINDS[str(kind)] for kind in named]


def _attention(fields: ConfigFields, max_model_len: int, head_dim: int, rope: Rope | None) -> AttentionShape:
    sized = ConfigFields({**fields.values, "head_dim": head_dim})
    inputs, scale = 2 * fields.count("hidden_size"), (head_dim / 2) ** -0.5
    return read_attention(sized, max_model_len, rope=rope, scale=scale, inputs=inputs)


def _mamba(fields: ConfigFields, max_model_len: int) -> MultiHeadMambaShape:
    if fields.activation("hidden_mamba_act", "silu") != "silu":
        raise ModelError("a hidden_mamba_act other than silu is not supported.")
    heads, hidden = fields.count("n_mamba_heads"), fields.count("hidden_size")
    inner = fields.count("mamba_expand") * hidden
    if inner % heads:
        raise ModelError(f"mamba_expand times hidden_size ({inner}) is not a multiple of n_mamba_heads ({heads}).")
    return MultiHeadMambaShape(
        hidden=hidden,
        heads=heads,
        head_dim=inner // heads,
        rank=read_rank(fields, "mamba_dt_rank", hidden),
        state_dim=fields.count("mamba_d_state"),
        kernel=fields.count("mamba_d_conv", least=2),
        eps=fields.number("rms_norm_eps"),
        max_positions=max_model_len,
        bias=fields.flag("mamba_proj_bias"),
        conv_bias=fields.flag("mamba_conv_bias"),
    )


def _mamba2(fields: ConfigFields, max_model_len: int) -> Mamba2Shape:
    heads, groups, hidden = fields.count("n_mamba_heads"), fields.count("mamba_ngroups"), fields.count("hidden_size")
    inner = fields.count("mamba_expand") * hidden
    if inner % heads:
        raise ModelError(f"mamba_expand times hidden_size ({inner}) is not a multiple of n_mamba_heads ({heads}).")
    if heads % groups:
        raise ModelError(f"n_mamba_heads ({heads}) is not a multiple of mamba_ngroups ({groups}).")
    return Mamba2Shape(
        hidden=hidden,
        heads=heads,
        head_dim=inner // heads,
        groups=groups,
        state_dim=fields.count("mamba_d_state"),
        kernel=fields.count("mamba_d_conv", least=2),
        eps=_GATE_EPS,
        max_positions=max_model_len,
        bias=fields.flag("add_bias_linear"),
        output_bias=fields.flag("add_bias_linear"),
        step_limits=(fields.number("time_step_min"), math.inf),
    )
