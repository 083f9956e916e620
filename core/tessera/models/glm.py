"""GLM-4.5 and 4.6: experts chosen by biased sigmoid scores, within groups, beside experts that every token uses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tessera.errors import ModelError
from tessera.layers.build import Build
from tessera.layers.mlp import GATED, ExpertNames, Experts, GatedNames
from tessera.models.decoder import Decoder, build_decoder
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.llama import read_experts
from tessera.models.multi_token import next_token_layer
from tessera.models.reading import in_images, read_attention, read_decoder, read_head_dim, repeated
from tessera.models.rope import RopeReader

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_GLM4_MOE: dict[str, Any] = {
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "partial_rotary_factor": 0.5,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
}
_GLM4V_MOE = {**_GLM4_MOE, "max_position_embeddings": 65536, "attention_bias": True}
GLM_SECTIONS = (8, 12, 12)
"""mrope_section, where config.json has none."""
_SCORED_BY = 2  # a group's score is the sum of its two best


def glm4_moe(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """Of the layers from num_hidden_layers on, which predict further tokens, the first is read where drafts are
    wanted."""
    return _glm4_moe(build, ConfigFields(checkpoint, _GLM4_MOE), max_model_len)


def glm4v_moe(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """The text model of GLM-4V with experts."""
    return _glm4_moe(build, ConfigFields({**checkpoint, "use_qk_norm": False}, _GLM4V_MOE), max_model_len)


def _glm4_moe(build: Build, fields: ConfigFields, max_model_len: int) -> Decoder:
    rope = RopeReader(fields, read_head_dim(fields), max_model_len, partial=True).read()
    biased, normed = fields.flag("attention_bias"), fields.flag("use_qk_norm")
    shape = read_attention(fields, max_model_len, rope=rope, bias=biased, head_norm=normed)
    layers = repeated(fields, in_images(build, fields, shape, GLM_SECTIONS))
    dense = frozenset(range(fields.count("first_k_dense_replace", least=0)))
    config = read_decoder(fields, layers, experts=read_shared_experts(fields), dense_layers=dense)
    return build_decoder(build, config, predictor=next_token_layer(build, fields, config))


def read_shared_experts(fields: ConfigFields, **stored: Any) -> Experts:
    """Experts that biased sigmoid scores choose, beside shared ones. They are scored in float32 whatever the model's
    dtype, as in transformers. stored: as of scored_experts()."""
    return scored_experts(
        fields,
        **stored,
        bias="e_score_correction_bias",
        renormalise=fields.flag("norm_topk_prob"),
        scoring="sigmoid",
        **read_groups(fields, _SCORED_BY),
    )


def scored_experts(
    fields: ConfigFields, bias: str = "", mlp: str = "mlp", gated: GatedNames = GATED, **routing: Any
) -> Experts:
    """bias: the tensor of the router that is added to scores for choosing; "": there is none. mlp, gated: the names of
    the mixture in a layer, and of an expert's weights. routing: fields of RouteSpec."""
    moe, inner = f"model.layers.{{layer}}.{mlp}", fields.count("moe_intermediate_size")
    gate, up, down = (f"{moe}.experts.{{}}.{name}" for name in (gated.gate, gated.up, gated.down))
    names = ExpertNames(
        f"{moe}.gate",
        gate,
        up,
        down,
        bias=bias and f"{moe}.gate.{bias}",
        shared=f"{moe}.shared_experts",
    )
    experts = read_experts(
        fields,
        "n_routed_experts",
        names,
        inner,
        bias=bool(bias),
        scale=fields.number("routed_scaling_factor", 1.0),
        **routing,
    )
    return replace(experts, shared=inner * fields.count("n_shared_experts", least=0), router_dtype="float32")


def read_groups(fields: ConfigFields, scored_by: int) -> dict[str, Any]:
    """Fields of RouteSpec. scored_by: how many of its best experts make a group's score. Raises ModelError for groups
    that cannot be formed, or that have too few experts."""
    number, top_k = fields.count("n_routed_experts"), fields.count("num_experts_per_tok")
    groups, chosen = fields.count("n_group", 1), fields.count("topk_group", 1)
    if chosen > groups:
        raise ModelError(f"topk_group ({chosen}) is more than n_group ({groups}).")
    if groups == 1:
        return {}
    if number % groups or number // groups < scored_by:
        raise ModelError(
            f"n_routed_experts ({number}) cannot be divided into n_group ({groups}) equal groups of at least "
            f"{scored_by} experts."
        )
    reach = chosen * (number // groups)
    if top_k > reach:
        raise ModelError(f"num_experts_per_tok ({top_k}) is more than the {reach} experts of topk_group groups.")
    return {"groups": groups, "top_groups": chosen, "group_top_k": scored_by}
