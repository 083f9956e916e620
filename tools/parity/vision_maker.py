"""The configurations of tiny models that read images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from tools.parity.family import SIZES
from tools.parity.image_kinds import TOKEN

CLIP: Mapping[str, Any] = {
    "hidden_size": 36,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "image_size": 21,
    "patch_size": 7,
}
PIXTRAL: Mapping[str, Any] = {
    "model_type": "pixtral",
    "hidden_size": 36,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": 40,
    "patch_size": 5,
    "head_dim": 12,
}
QUARTERED: Mapping[str, Any] = {**CLIP, "image_size": 20, "patch_size": 5}
"""4 by 4 patches."""
SIGLIP: Mapping[str, Any] = {**QUARTERED, "model_type": "siglip_vision_model", "vision_use_head": False}

LATENT: Mapping[str, Any] = {
    "num_key_value_heads": 6,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 6,
    "v_head_dim": 10,
    "kv_lora_rank": 20,
    "q_lora_rank": 28,
    "moe_intermediate_size": 44,
    "n_routed_experts": 6,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
"""A text model with latent attention and experts."""


def text(model_type: str, **differs: Any) -> dict[str, Any]:
    """The text model's configuration."""
    return {"model_type": model_type, **SIZES, "tie_word_embeddings": False, **differs}


def maker(name: str, text: Mapping[str, Any], vision: Mapping[str, Any], **differs: Any) -> Callable[[], Any]:
    """name: the model_type of the whole. differs: its other fields."""
    fields = {"image_token_id": TOKEN, "tie_word_embeddings": False, "attn_implementation": "eager", **differs}

    def make() -> Any:
        config = CONFIG_MAPPING[name](text_config={**text}, vision_config={**vision}, **fields)
        return getattr(transformers, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[name])(config)

    return make
