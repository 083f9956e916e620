"""DeepSeek V3.2 and GLM-5: DeepSeek V3 with attention over the tokens that an indexer selects, in GLM also over those
that an earlier layer's indexer selected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.errors import ModelError
from tessera.layers.build import Build
from tessera.layers.indexer import IndexerShape, SelectedTokens
from tessera.layers.latent import LatentShape
from tessera.layers.sparse_latent import SparseLatentShape
from tessera.models.decoder import Decoder, build_decoder
from tessera.models.deepseek import V3, read_dense_layers, read_latent
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.glm import read_shared_experts
from tessera.models.reading import read_decoder

# transformers' defaults for fields that config.json omits. An explicit null stays null.
V32: dict[str, Any] = {
    **V3,
    "max_position_embeddings": 163840,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 64,
}
_GLM: dict[str, Any] = {
    **V32,
    "rms_norm_eps": 1e-5,
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "max_position_embeddings": 202752,
    "n_group": 1,
    "topk_group": 1,
    "index_n_heads": 32,
}
FULL, _SHARED = "full", "shared"
_LETTERS = {"F": FULL, "S": _SHARED}


def deepseek_v32(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """Layers from num_hidden_layers on, which predict further tokens, are not read."""
    fields = ConfigFields(checkpoint, V32)
    kinds = (FULL,) * fields.count("num_hidden_layers")
    return _decoder(build, fields, read_sparse_layers(fields, max_model_len, "half", kinds))


def glm_moe_dsa(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """Layers from num_hidden_layers on, which predict further tokens, are not read."""
    fields = ConfigFields(checkpoint, _GLM)
    return _decoder(build, fields, read_sparse_layers(fields, max_model_len, "pairs", read_indexers(fields)))


def read_sparse_layers(
    fields: ConfigFields, max_model_len: int, style: str, kinds: Sequence[str]
) -> tuple[SparseLatentShape, ...]:
    """style: of the indexers' rotary embedding (RotarySpec). kinds: of each layer, whether it has an indexer. Raises
    ModelError."""
    if fields.get("q_lora_rank") is None:
        raise ModelError("q_lora_rank is missing in config.json; indexers need it.")
    latent = read_latent(fields, max_model_len)
    indexer = read_indexer(fields, latent, style)
    selection = SelectedTokens()
    return tuple(
        SparseLatentShape(
            **vars(latent), limit=indexer.limit, indexer=indexer if kind == FULL else None, selection=selection
        )
        for kind in kinds
    )


def read_indexer(fields: ConfigFields, latent: LatentShape, style: str) -> IndexerShape:
    """style: as in read_sparse_layers()."""
    assert latent.rope is not None
    dim = fields.count("index_head_dim")
    if dim < latent.rope_dim:
        raise ModelError(f"index_head_dim ({dim}) is less than qk_rope_head_dim ({latent.rope_dim}).")
    return IndexerShape(
        hidden=latent.hidden,
        heads=fields.count("index_n_heads"),
        dim=dim,
        query_rank=fields.count("q_lora_rank"),
        limit=fields.count("index_topk"),
        rope=latent.rope,
        style=style,
        max_positions=latent.max_positions,
    )


def read_indexers(fields: ConfigFields) -> Sequence[str]:
    """Of each layer, whether it has an indexer: indexer_types, or else index_topk_pattern, or else index_topk_freq and
    index_skip_topk_offset. Raises ModelError."""
    number = fields.count("num_hidden_layers")
    kinds = fields.by_layer("indexer_types", number, lambda kind: kind in (FULL, _SHARED), f"{FULL} or {_SHARED}")
    if kinds is None and fields.get("index_topk_pattern") is not None:
        kinds = _by_pattern(fields, number)
    if kinds is None:
        every = max(fields.count("index_topk_freq", 1, least=0), 1)
        first = fields.count("index_skip_topk_offset", 2, least=0) - 1
        kinds = [_SHARED if max(layer - first, 0) % every else FULL for layer in range(number)]
    if kinds[0] != FULL:
        raise ModelError("the first layer must have an indexer (indexer_types in config.json).")
    return kinds


def _by_pattern(fields: ConfigFields, number: int) -> Sequence[str]:
    """index_topk_pattern: a letter of each layer, or its word."""
    said = fields.get("index_topk_pattern")
    words = [_LETTERS.get(letter) for letter in said] if isinstance(said, str) else said
    read = ConfigFields({"index_topk_pattern": words})
    kinds = read.by_layer("index_topk_pattern", number, lambda kind: kind in (FULL, _SHARED), "F or S")
    assert kinds is not None, "it is not null"
    return kinds


def check_stages(build: Build, layers: Sequence[SparseLatentShape]) -> None:
    """Raises ModelError if a pipeline stage begins with a layer that uses what one of another stage selects. Every
    stage looks at all of them, so that all end alike."""
    for first in build.first_layers(len(layers)):
        if layers[first].indexer is None:
            raise ModelError(
                f"layer {first} has no indexer and uses what an earlier layer selects, so no pipeline stage can begin "
                f"with it, as one would with --pipeline-parallel-size {build.pipeline.size}; choose another."
            )


def _decoder(build: Build, fields: ConfigFields, layers: Sequence[SparseLatentShape]) -> Decoder:
    check_stages(build, layers)
    dense = read_dense_layers(fields, fields.count("first_k_dense_replace", least=0))
    return build_decoder(build, read_decoder(fields, layers, experts=read_shared_experts(fields), dense_layers=dense))
