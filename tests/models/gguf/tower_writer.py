"""Writes the tower of a model of transformers as llama.cpp's converters do: with the gguf package and its table of
names. What the converters change of names and weights is stated here once more, apart from the code under test."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from torch import Tensor

from tests.models.gguf.writer import write_gguf, write_tensor

Tensors = Iterator[tuple[str, Tensor]]
_TYPES = {
    "gemma3": "gemma3",
    "idefics3": "idefics3",
    "internvl": "internvl",
    "mistral3": "pixtral",
    "qwen2_vl": "qwen2vl_merger",
    "qwen2_5_vl": "qwen2.5vl_merger",
    "qwen3_vl": "qwen3vl_merger",
}
_NAMES = {
    "gemma3": {
        "model.vision_tower.": "vision_tower.vision_model.",
        "model.multi_modal_projector.": "multi_modal_projector.",
    },
    "idefics3": {},
    "internvl": {
        "model.multi_modal_projector.layer_norm.": "mlp1.0.",
        "model.multi_modal_projector.linear_1.": "mlp1.1.",
        "model.multi_modal_projector.linear_2.": "mlp1.3.",
    },
    "llava": {"model.": ""},
    "mistral3": {"model.": ""},
    "qwen2_vl": {"model.visual.": "visual."},
    "qwen2_5_vl": {"model.visual.": "visual."},
    "qwen3_vl": {"model.visual.": "visual."},
}
"""By model_type: how the names that the table knows begin."""
_LEGACY = {
    "model.vision_tower.": "v.",
    "model.multi_modal_projector.linear_1": "mm.0",
    "model.multi_modal_projector.linear_2": "mm.2",
    "encoder.layers": "blk",
    "embeddings.": "",
    "_proj": "",
    "self_attn.": "attn_",
    "layer_norm": "ln",
    "layernorm": "ln",
    "mlp.fc1": "ffn_down",
    "mlp.fc2": "ffn_up",
    "embedding": "embd",
    "layrnorm": "ln",
}
"""What the converter for LLaVA replaces in names, one after the other."""


def write_text(model: Any, path: Path, metadata: Callable[[gguf.GGUFWriter], None] = lambda writer: None) -> Path:
    """The text model of a model with towers."""
    name = "mistral3" if model.config.model_type == "mistral3" else ""
    state = {key.replace("model.language_model.", "model."): value for key, value in model.state_dict().items()}
    state = {key.replace("model.text_model.", "model."): value for key, value in state.items()}
    names = ("model.layers.", "model.embed_tokens.", "model.norm.", "lm_head.")
    text = SimpleNamespace(
        config=model.config.get_text_config(),
        state_dict=lambda: {key: value for key, value in state.items() if key.startswith(names)},
        get_output_embeddings=model.get_output_embeddings,
        get_input_embeddings=model.get_input_embeddings,
    )
    return write_gguf(text, path, metadata=metadata, name=name)


def write_tower(model: Any, path: Path, quant: Type = Type.F32) -> Path:
    """quant: of the matrices whose rows divide by its blocks."""
    kind, vision = model.config.model_type, model.config.vision_config
    legacy = kind == "llava" and vision.model_type == "clip_vision_model"
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type("mlp" if legacy else _TYPES.get(kind, "pixtral"))
    write_settings(writer, model.config)
    for name, value in _legacy(model) if legacy else _named(model):
        write_tensor(writer, name, np.ascontiguousarray(value.detach().float().numpy()), quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_settings(writer: gguf.GGUFWriter, config: Any) -> None:
    kind, vision = config.model_type, config.vision_config
    by_axis = kind.startswith("qwen")
    width = getattr(vision, "embed_dim", None) or vision.hidden_size
    depth = vision.depth if by_axis else vision.num_hidden_layers
    legacy = kind == "llava" and vision.model_type == "clip_vision_model"
    writer.add_vision_embedding_length(width)
    writer.add_vision_block_count(depth + 1 + config.vision_feature_layer if legacy else depth)
    writer.add_vision_head_count(vision.num_heads if by_axis else vision.num_attention_heads)
    writer.add_vision_feed_forward_length(getattr(vision, "intermediate_size", None) or width)
    writer.add_vision_image_size(560 if by_axis else _side(vision.image_size))
    writer.add_vision_patch_size(_side(vision.patch_size))
    writer.add_vision_projection_dim(config.get_text_config().hidden_size)
    writer.add_vision_image_mean([0.4, 0.5, 0.6])
    writer.add_vision_image_std([0.2, 0.3, 0.25])
    writer.add_vision_attention_layernorm_eps(getattr(vision, "layer_norm_eps", 1e-6))
    writer.add_vision_use_gelu(kind not in ("qwen2_5_vl", "qwen2_vl") and not legacy)
    if kind == "gemma3":
        side = int(config.mm_tokens_per_image**0.5)
        writer.add_vision_projector_scale_factor(vision.image_size // vision.patch_size // side)
    if kind == "idefics3":
        writer.add_vision_projector_scale_factor(config.scale_factor)
        writer.add_vision_preproc_image_size(112)
    if kind == "internvl":
        writer.add_vision_projector_scale_factor(int(1 / config.downsample_ratio))
        writer.add_vision_preproc_min_tiles(1)
        writer.add_vision_preproc_max_tiles(4)
    if kind == "mistral3":
        writer.add_vision_spatial_merge_size(config.spatial_merge_size)
    if by_axis:
        writer.add_vision_spatial_merge_size(vision.spatial_merge_size)
        writer.add_vision_min_pixels(256)
        writer.add_vision_max_pixels(4096)
    if kind == "qwen2_5_vl":
        writer.add_vision_use_silu(True)
        writer.add_vision_n_wa_pattern(vision.fullatt_block_indexes[0] + 1)
        writer.add_vision_window_size(vision.window_size)
    if kind == "qwen3_vl":
        writer.add_vision_is_deepstack_layers([at in vision.deepstack_visual_indexes for at in range(depth)])


def _side(size: Any) -> int:
    return size if isinstance(size, int) else size[0]


def _own(model: Any) -> Mapping[str, Tensor]:
    text = ("model.language_model.", "model.text_model.", "lm_head.")
    return {name: value for name, value in model.state_dict().items() if not name.startswith(text)}


def _legacy(model: Any) -> Tensors:
    layers = model.config.vision_config.num_hidden_layers + 1 + model.config.vision_feature_layer
    for name, value in _own(model).items():
        layer = re.search(r"layers\.(\d+)\.", name)
        if "post_layernorm" in name or (layer is not None and int(layer[1]) >= layers):
            continue
        yield reduce(lambda own, pair: own.replace(*pair), _LEGACY.items(), name), value


def _named(model: Any) -> Tensors:
    """With the names of the table."""
    kind = model.config.model_type
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 16)
    for name, value in _own(model).items():
        begins = next((old for old in _NAMES[kind] if name.startswith(old)), "")
        renamed = _NAMES[kind].get(begins, "") + name.removeprefix(begins)
        for known, tensor in _changed(kind, renamed, value, model.config):
            own = known if known.startswith(("v.", "mm.")) else names.get_name(known, (".weight", ".bias"))
            assert own is not None, known
            yield own, tensor


def _changed(kind: str, name: str, value: Tensor, config: Any) -> Tensors:
    vision = config.vision_config
    if kind == "gemma3":
        name = name.replace("_weight", ".weight")
        yield name, value + 1 if "soft_emb_norm" in name else value
    elif ".qkv." in name and kind != "qwen3_vl":
        for part, own in zip("qkv", value.chunk(3), strict=True):
            yield name.replace("qkv", part), own
    elif name == "visual.patch_embed.proj.weight":
        yield "v.patch_embd.weight", value[:, :, 0]
        yield "v.patch_embd.weight.1", value[:, :, 1]
    elif name.startswith("visual.deepstack_merger_list."):
        number, part, ending = name.split(".")[2:]
        layer = vision.deepstack_visual_indexes[int(number)]
        yield f"v.deepstack.{layer}.{part.replace('linear_', '')}.{ending}", value
    elif name.startswith("visual.merger.") and kind == "qwen3_vl":
        part, ending = name.split(".")[2:]
        yield {"norm": "v.post_ln", "linear_fc1": "mm.0", "linear_fc2": "mm.2"}[part] + f".{ending}", value
    elif kind == "internvl":
        weight = "lambda_" in name or "position_embeddings" in name
        yield f"{name}.weight" if weight else name, value
    elif re.search(r"attention\.[qk]_proj", name):
        heads = vision.num_attention_heads
        halves = value.reshape(heads, 2, value.shape[0] // heads // 2, *value.shape[1:])
        yield name, halves.swapaxes(1, 2).reshape(value.shape)
    else:
        yield name, value
