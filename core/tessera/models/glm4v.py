"""The text models of GLM-4V and GLM-OCR: as GLM-4's, with an axis for each pair of rotated elements where prompts hold
images."""

from __future__ import annotations

from typing import Any

from tessera.layers.build import Build
from tessera.layers.mlp import GatedNames
from tessera.models.decoder import Decoder, DecoderNames, build_decoder
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.glm import GLM_SECTIONS, glm4v_moe
from tessera.models.reading import in_images, read_attention, read_decoder, read_head_dim, repeated
from tessera.models.rope import RopeReader
from tessera.models.sandwich import SandwichBlock

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_GLM4V: dict[str, Any] = {"num_key_value_heads": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 32768}
_GLM_OCR: dict[str, Any] = {**_GLM4V, "num_key_value_heads": 8, "max_position_embeddings": 131072}
_NAMES = DecoderNames(
    after_attention="post_self_attn_layernorm",
    after_mlp="post_mlp_layernorm",
    gated=GatedNames(joined="gate_up_proj"),
)


def glm4v(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    return _sandwiched(build, ConfigFields(checkpoint, _GLM4V), max_model_len, bias=True)


def glm_ocr(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """Layers from num_hidden_layers on, which predict further tokens, are not read."""
    return _sandwiched(build, ConfigFields(checkpoint, _GLM_OCR), max_model_len, bias=False)


def glm46v(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """Its text model is of either type."""
    experts = checkpoint.get("model_type") == "glm4v_moe_text"
    return (glm4v_moe if experts else glm4v)(build, checkpoint, max_model_len)


def _sandwiched(build: Build, fields: ConfigFields, max_model_len: int, *, bias: bool) -> Decoder:
    """As GLM-4: neighbours are turned together, and there are norms before and after both halves of a block."""
    rope = RopeReader(fields, read_head_dim(fields), max_model_len, partial=True).read()
    shape = read_attention(fields, max_model_len, rope=rope, style="pairs", bias=bias)
    layers = repeated(fields, in_images(build, fields, shape, GLM_SECTIONS))
    return build_decoder(build, read_decoder(fields, layers, names=_NAMES), SandwichBlock, whole=True)
