"""A.X-K2: the sparse attention and experts of DeepSeek V3.2, with gates of norms and of attention's result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tessera.errors import ModelError
from tessera.layers.attention import RotaryTable
from tessera.layers.build import Build
from tessera.layers.gated_latent import GatedLatentShape
from tessera.layers.gated_norm import GatedNorm
from tessera.layers.norm import AddNorm, Norm
from tessera.models.decoder import Decoder, DecoderConfig, build_decoder, mlp_of
from tessera.models.deepseek import read_dense_layers
from tessera.models.deepseek_sparse import FULL, V32, read_sparse_layers
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.glm import read_shared_experts
from tessera.models.reading import read_decoder
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_AXK2: dict[str, Any] = {
    **V32,
    "moe_intermediate_size": 512,
    "n_routed_experts": 128,
    "kv_lora_rank": 128,
    "q_lora_rank": 384,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "qk_nope_head_dim": 64,
    "max_position_embeddings": 131072,
    "index_n_heads": 16,
    "gated_norm_rank": 16,
    "n_group": None,
    "topk_group": None,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
}


class GatedNormBlock:
    """A pre-norm block with gates of the norm before attention, and before experts."""

    def __init__(self, build: Build, config: DecoderConfig, number: int, tables: RotaryTable) -> None:
        prefix, norm, shape = f"{config.names.layers}.{number}", Norm(config.eps), config.layers[number]
        assert isinstance(shape, GatedLatentShape)
        named_norm = f"{prefix}.{config.names.attention_norm}", norm
        self.attention = shape.block(build, f"{prefix}.{shape.name}", named_norm, tables)
        self.mlp, name = mlp_of(build, config, number), f"{prefix}.{config.names.mlp_norm}"
        self.norm: AddNorm | GatedNorm
        if number in config.dense_layers:
            self.norm = AddNorm(build, name, config.hidden, norm, emit=self.mlp.wants)
        else:
            self.norm = GatedNorm(build, name, config.hidden, shape.gate_rank, norm)

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        return self.attention(x, residual, launch, caches)

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        mixed, residual = states
        x, residual = self.norm(self.attention.output(mixed), residual)
        return self.mlp(x), residual


def axk2(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _AXK2)
    if fields.count("n_group", 1) > 1:
        raise ModelError("n_group is not supported for A.X-K2, whose experts of other groups may still be chosen.")
    number, rank = fields.count("num_hidden_layers"), fields.count("gated_norm_rank")
    sparse = read_sparse_layers(fields, max_model_len, "half", (FULL,) * number)
    layers = [GatedLatentShape(**vars(shape), gate_rank=rank) for shape in sparse]
    config = read_decoder(fields, layers, experts=read_shared_experts(fields), dense_layers=_dense_layers(fields))
    return build_decoder(build, config, GatedNormBlock)


def _dense_layers(fields: ConfigFields) -> frozenset[int]:
    """The layers without experts by mlp_layer_types, or else by first_k_dense_replace and moe_layer_freq. Raises
    ModelError."""
    if fields.get("mlp_layer_types") is not None:
        return read_dense_layers(fields, 0)
    first, every = fields.count("first_k_dense_replace", least=0), fields.count("moe_layer_freq")
    number = fields.count("num_hidden_layers")
    return frozenset(layer for layer in range(number) if layer < first or layer % every)
