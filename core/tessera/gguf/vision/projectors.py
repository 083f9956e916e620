"""The types of towers in llama.cpp's files: for each, transformers' class, its config.json from the file's settings,
what makes an image's pixels of it, and transformers' names of its tensors.

The facts are those of llama.cpp's converters (conversion/) and of its tool for images (tools/mtmd/clip.cpp); where a
file does not say something, it is what published models have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tessera.errors import ModelError, printable
from tessera.gguf.vision.fields import TowerFields

Settings = dict[str, Any]

_OPENAI = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj"}
_OPENAI |= {"attn_out": "self_attn.out_proj", "ln1": "layer_norm1", "ln2": "layer_norm2"}
_OPENAI |= {"ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}
"""Of a layer of CLIP and of SigLIP."""
_QWEN = {"attn_q": "attn.qkv", "attn_k": "attn.qkv", "attn_v": "attn.qkv", "attn_qkv": "attn.qkv"}
_QWEN |= {"attn_out": "attn.proj", "ln1": "norm1", "ln2": "norm2"}
_FRAMES = dict.fromkeys(("v.patch_embd.weight", "v.patch_embd.weight.1"), "model.visual.patch_embed.proj.weight")
_PIXTRAL = {
    **{name: part.replace("self_attn.", "attention.") for name, part in _OPENAI.items() if name in _QWEN},
    "attn_out": "attention.o_proj",
    "ln1": "attention_norm",
    "ln2": "ffn_norm",
    "ffn_gate": "feed_forward.gate_proj",
    "ffn_up": "feed_forward.up_proj",
    "ffn_down": "feed_forward.down_proj",
    "v.patch_embd": "model.vision_tower.patch_conv",
    "v.pre_ln": "model.vision_tower.ln_pre",
    "mm.1": "model.multi_modal_projector.linear_1",
    "mm.2": "model.multi_modal_projector.linear_2",
}


@dataclass(frozen=True)
class ImageProcessing:
    """What transformers' processor of the type is made with."""

    # preprocessor_config.json, without what all have
    image_processor: Settings
    # processor_config.json
    processor: Settings
    # further names of tokens in tokenizer_config.json
    named: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Projector:
    """How a file holds the towers of one class of transformers."""

    # transformers' class
    architecture: str
    model_type: str
    # general.architecture of the text models that it goes with
    texts: tuple[str, ...]
    # what transformers' names of a layer begin with
    layer: str
    # transformers' names by GGUF's: of a layer's tensors the part within it, and of all others the whole, without
    # ".weight" and ".bias" where both have them; tensors of one name are joined in this order
    tensors: Mapping[str, str]
    # a tensor one of whose dimensions is the width of the text model, and which
    width: tuple[str, int]
    # the fields of config.json beside text_config; text: that
    settings: Callable[[TowerFields, Settings], Settings]
    processing: Callable[[TowerFields], ImageProcessing]
    # by the field of config.json, the tokens that it may name: the first that the vocabulary has
    tokens: Mapping[str, tuple[str, ...]]
    # what transformers' names of the parts for several depths begin with
    deepstack: str = ""
    # what a tensor of the file has more than transformers'
    offsets: Mapping[str, float] = field(default_factory=dict)
    # dimensions of transformers' weights where files have fewer, or as many with some of 1
    dimensions: Mapping[str, int] = field(default_factory=dict)
    # UnusedTensor
    unused: tuple[str, ...] = ()
    # NamedTensor.row_order of queries and keys
    paired_rows: bool = False
    # the text model's positions on several axes take turns in a head (mrope_interleaved)
    interleaved: bool = False


def _encoder(fields: TowerFields) -> Settings:
    """The fields that all configurations of towers have, but Qwen's."""
    return {
        "hidden_size": fields.size("embedding_length"),
        "intermediate_size": fields.size("feed_forward_length"),
        "num_hidden_layers": fields.size("block_count"),
        "num_attention_heads": fields.size("attention.head_count"),
        "image_size": fields.size("image_size"),
        "patch_size": fields.size("patch_size"),
    }


def _norm(fields: TowerFields) -> Settings:
    return {"layer_norm_eps": fields.number("vision.attention.layer_norm_epsilon")}


def _activation(fields: TowerFields, default: str) -> str:
    """default: of files without a word, and of those that say GELU where it has several forms."""
    return "silu" if fields.get("use_silu") is True else default


def _square(fields: TowerFields) -> Settings:
    return {"height": fields.size("image_size"), "width": fields.size("image_size")}


def _shrunk_patches(fields: TowerFields, default: int) -> int:
    """How many features an image of the tower's size has. default: so many patches in height and in width make one."""
    scale = fields.size("projector.scale_factor", default)
    return max(1, fields.size("image_size") // fields.size("patch_size") // scale) ** 2


# ---- Gemma 3


def _gemma3(fields: TowerFields, text: Settings) -> Settings:
    vision = {
        "model_type": "siglip_vision_model", "hidden_act": "gelu_pytorch_tanh", "vision_use_head": False,
        **_encoder(fields), **_norm(fields),
    }  # fmt: skip
    return {"vision_config": vision, "mm_tokens_per_image": _shrunk_patches(fields, 4)}


def _gemma3_images(fields: TowerFields) -> ImageProcessing:
    return ImageProcessing(
        {"image_processor_type": "Gemma3ImageProcessor", "size": _square(fields)},
        {"processor_class": "Gemma3Processor", "image_seq_length": _shrunk_patches(fields, 4)},
        {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
    )


# ---- Idefics 3, SmolVLM


def _idefics3(fields: TowerFields, text: Settings) -> Settings:
    return {
        "vision_config": {**_encoder(fields), **_norm(fields)},
        "scale_factor": fields.size("projector.scale_factor", 2),
    }


def _idefics3_images(fields: TowerFields) -> ImageProcessing:
    size = fields.size("image_size")
    return ImageProcessing(
        {
            "image_processor_type": "Idefics3ImageProcessor",
            "size": {"longest_edge": fields.size("preproc_image_size", 4 * size)},
            "max_image_size": {"longest_edge": size},
        },
        {"processor_class": "Idefics3Processor", "image_seq_len": _shrunk_patches(fields, 2)},
    )


# ---- LLaVA 1.5


def _llava(fields: TowerFields, text: Settings) -> Settings:
    """Files leave out the layers behind those whose states are taken."""
    if fields.get("vision.image_grid_pinpoints") or fields.get("vision.feature_layer"):
        raise ModelError(
            f"'{printable(fields.file.path)}' is of a LLaVA that sees parts of an image or several layers "
            "(clip.vision.image_grid_pinpoints, clip.vision.feature_layer), which is not supported in GGUF files."
        )
    activation = "gelu" if fields.get("use_gelu") is True else "quick_gelu"
    vision = {
        "model_type": "clip_vision_model", "hidden_act": _activation(fields, activation), **_encoder(fields),
        **_norm(fields), "intermediate_size": max(fields.shape("v.blk.0.ffn_up.weight")),
    }  # fmt: skip
    return {"vision_config": vision, "vision_feature_layer": -1}


def _llava_images(fields: TowerFields) -> ImageProcessing:
    size = fields.size("image_size")
    return ImageProcessing(
        {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": size}, "crop_size": _square(fields)},
        {
            "processor_class": "LlavaProcessor",
            "patch_size": fields.size("patch_size"),
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    )


# ---- Pixtral, Mistral 3


def _pixtral(fields: TowerFields, text: Settings) -> Settings:
    width = fields.size("embedding_length") // fields.size("attention.head_count")
    vision = {
        "model_type": "pixtral", "hidden_act": _activation(fields, "gelu"), **_encoder(fields), "head_dim": width,
        "rope_parameters": {"rope_type": "default", "rope_theta": fields.number("rope.freq_base", 10000.0)},
    }  # fmt: skip
    return {
        "vision_config": vision,
        "vision_feature_layer": -1,
        "multimodal_projector_bias": fields.has("mm.1.bias"),
    }


def _pixtral_alone(fields: TowerFields, text: Settings) -> Settings:
    return {**_pixtral(fields, text), "vision_feature_select_strategy": "full"}


def _mistral3(fields: TowerFields, text: Settings) -> Settings:
    return {**_pixtral(fields, text), "spatial_merge_size": fields.size("spatial_merge_size", 1)}


def _pixtral_images(fields: TowerFields) -> ImageProcessing:
    patch, merge = fields.size("patch_size"), fields.size("spatial_merge_size", 1)
    return ImageProcessing(
        {
            "image_processor_type": "PixtralImageProcessor",
            "size": {"longest_edge": fields.size("image_size")},
            "patch_size": {"height": patch, "width": patch},
        },
        {"processor_class": "PixtralProcessor", "patch_size": patch, "spatial_merge_size": merge},
    )


# ---- Qwen2-VL, Qwen2.5-VL, Qwen3-VL


def _qwen(fields: TowerFields) -> Settings:
    return {
        "depth": fields.size("block_count"),
        "num_heads": fields.size("attention.head_count"),
        "patch_size": fields.size("patch_size"),
        "spatial_merge_size": fields.size("spatial_merge_size", 2),
        "temporal_patch_size": 2,
    }


def _qwen2(fields: TowerFields, text: Settings) -> Settings:
    width = fields.size("embedding_length")
    ratio = max(fields.shape("v.blk.0.ffn_up.weight")) // width
    vision = {**_qwen(fields), "embed_dim": width, "hidden_size": text["hidden_size"], "mlp_ratio": ratio}
    return {"vision_config": vision}


def _qwen2_5(fields: TowerFields, text: Settings) -> Settings:
    every, depth = fields.size("n_wa_pattern"), fields.size("block_count")
    vision = {
        **_qwen(fields),
        "hidden_size": fields.size("embedding_length"),
        "out_hidden_size": text["hidden_size"],
        "intermediate_size": fields.size("feed_forward_length"),
        "window_size": fields.size("window_size", 112),
        "fullatt_block_indexes": list(range(every - 1, depth, every)),
        "tokens_per_second": 2,
    }
    return {"vision_config": vision}


def _qwen3(fields: TowerFields, text: Settings) -> Settings:
    vision = {
        **_qwen(fields),
        "hidden_size": fields.size("embedding_length"),
        "out_hidden_size": text["hidden_size"],
        "intermediate_size": fields.size("feed_forward_length"),
        "num_position_embeddings": fields.shape("v.position_embd.weight")[0],
        "deepstack_visual_indexes": fields.layers("is_deepstack_layers"),
    }
    return {"vision_config": vision}


def _qwen_images(processor: str, least: int) -> Callable[[TowerFields], ImageProcessing]:
    """least: of features that an image has, where the file does not say how many pixels. There are 16,384 at most."""

    def processing(fields: TowerFields) -> ImageProcessing:
        patch, merge = fields.size("patch_size"), fields.size("spatial_merge_size", 2)
        each = (patch * merge) ** 2
        size = {
            "shortest_edge": fields.size("image_min_pixels", least * each),
            "longest_edge": fields.size("image_max_pixels", 16384 * each),
        }
        own = {"patch_size": patch, "merge_size": merge, "temporal_patch_size": 2, "size": size}
        return ImageProcessing({"image_processor_type": "Qwen2VLImageProcessor", **own}, {"processor_class": processor})

    return processing


_QWEN_TOKENS = {
    "image_token_id": ("<|image_pad|>",),
    "video_token_id": ("<|video_pad|>",),
    "vision_start_token_id": ("<|vision_start|>",),
    "vision_end_token_id": ("<|vision_end|>",),
}


# ---- InternVL


def _internvl(fields: TowerFields, text: Settings) -> Settings:
    vision = {
        "model_type": "internvl_vision", **_encoder(fields), **_norm(fields),
        "norm_type": "layer_norm" if fields.has("v.blk.0.ln1.bias") else "rms_norm",
        "use_qk_norm": fields.has("v.blk.0.attn_q_norm.weight"),
        "attention_bias": fields.has("v.blk.0.attn_q.bias"),
        "hidden_act": _activation(fields, "gelu"),
    }  # fmt: skip
    scale = fields.size("projector.scale_factor", 2)
    return {
        "vision_config": vision,
        "downsample_ratio": 1 / scale,
        "image_seq_length": _shrunk_patches(fields, 2),
        "vision_feature_layer": -1,
    }


def _internvl_images(fields: TowerFields) -> ImageProcessing:
    return ImageProcessing(
        {
            "image_processor_type": "GotOcr2ImageProcessor",
            "size": _square(fields),
            "crop_to_patches": True,
            "min_patches": fields.size("preproc_min_tiles", 1),
            "max_patches": fields.size("preproc_max_tiles", 12),
        },
        {"processor_class": "InternVLProcessor", "image_seq_length": _shrunk_patches(fields, 2)},
        {
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
    )


_SIGLIP_TOWER = "model.vision_tower"
_IDEFICS_TOWER = "model.vision_model"
_PROJECTOR = "model.multi_modal_projector"
_MERGER = "model.visual.merger"
_INTERNVL = "model.vision_tower.embeddings"

_PIXTRAL_ALONE = Projector(
    "LlavaForConditionalGeneration",
    "llava",
    ("llama",),
    "model.vision_tower.transformer.layers",
    _PIXTRAL,
    ("mm.2.weight", 0),
    _pixtral_alone,
    _pixtral_images,
    {"image_token_index": ("[IMG]",)},
    paired_rows=True,
)
_MISTRAL3 = Projector(
    "Mistral3ForConditionalGeneration",
    "mistral3",
    ("llama", "mistral3"),
    "model.vision_tower.transformer.layers",
    {
        **_PIXTRAL,
        "mm.input_norm": f"{_PROJECTOR}.norm",
        "mm.patch_merger": f"{_PROJECTOR}.patch_merger.merging_layer",
    },
    ("mm.2.weight", 0),
    _mistral3,
    _pixtral_images,
    {"image_token_index": ("[IMG]",)},
    paired_rows=True,
)

PROJECTORS: Mapping[str, Projector] = MappingProxyType(
    {
        "gemma3": Projector(
            "Gemma3ForConditionalGeneration",
            "gemma3",
            ("gemma3",),
            f"{_SIGLIP_TOWER}.encoder.layers",
            {
                **_OPENAI,
                "v.patch_embd": f"{_SIGLIP_TOWER}.embeddings.patch_embedding",
                "v.position_embd": f"{_SIGLIP_TOWER}.embeddings.position_embedding",
                "v.post_ln": f"{_SIGLIP_TOWER}.post_layernorm",
                "mm.input_projection.weight": f"{_PROJECTOR}.mm_input_projection_weight",
                "mm.soft_emb_norm": f"{_PROJECTOR}.mm_soft_emb_norm",
            },
            ("mm.input_projection.weight", 1),
            _gemma3,
            _gemma3_images,
            # Published files have the vocabulary of the text model, which lacks the first.
            {"image_token_index": ("<image_soft_token>", "<unused98>")},
            offsets={"mm.soft_emb_norm.weight": 1.0},
        ),
        "idefics3": Projector(
            "Idefics3ForConditionalGeneration",
            "idefics3",
            ("llama",),
            f"{_IDEFICS_TOWER}.encoder.layers",
            {
                **_OPENAI,
                "v.patch_embd": f"{_IDEFICS_TOWER}.embeddings.patch_embedding",
                "v.position_embd": f"{_IDEFICS_TOWER}.embeddings.position_embedding",
                "v.post_ln": f"{_IDEFICS_TOWER}.post_layernorm",
                "mm.model.fc": "model.connector.modality_projection.proj",
            },
            ("mm.model.fc.weight", 0),
            _idefics3,
            _idefics3_images,
            {"image_token_id": ("<image>",)},
        ),
        "internvl": Projector(
            "InternVLForConditionalGeneration",
            "internvl",
            ("qwen2", "qwen3", "qwen3moe", "llama"),
            "model.vision_tower.encoder.layer",
            {
                "attn_q": "attention.q_proj",
                "attn_k": "attention.k_proj",
                "attn_v": "attention.v_proj",
                "attn_q_norm": "attention.q_norm",
                "attn_k_norm": "attention.k_norm",
                "attn_out": "attention.projection_layer",
                "ln1": "layernorm_before",
                "ln2": "layernorm_after",
                "ffn_up": "mlp.fc1",
                "ffn_down": "mlp.fc2",
                "ls1.weight": "lambda_1",
                "ls2.weight": "lambda_2",
                "v.patch_embd": f"{_INTERNVL}.patch_embeddings.projection",
                "v.class_embd": f"{_INTERNVL}.cls_token",
                "v.position_embd.weight": f"{_INTERNVL}.position_embeddings",
                "mm.model.mlp.0": f"{_PROJECTOR}.layer_norm",
                "mm.model.mlp.1": f"{_PROJECTOR}.linear_1",
                "mm.model.mlp.3": f"{_PROJECTOR}.linear_2",
            },
            ("mm.model.mlp.3.weight", 0),
            _internvl,
            _internvl_images,
            {"image_token_id": ("<IMG_CONTEXT>",)},
            dimensions={f"{_INTERNVL}.cls_token": 3, f"{_INTERNVL}.position_embeddings": 3},
        ),
        "mlp": Projector(
            "LlavaForConditionalGeneration",
            "llava",
            ("llama",),
            "model.vision_tower.encoder.layers",
            {
                **_OPENAI,
                "v.class_embd": "model.vision_tower.embeddings.class_embedding",
                "v.patch_embd": "model.vision_tower.embeddings.patch_embedding",
                "v.position_embd": "model.vision_tower.embeddings.position_embedding",
                "v.pre_ln": "model.vision_tower.pre_layrnorm",
                "v.post_ln": "model.vision_tower.post_layernorm",
                "mm.0": f"{_PROJECTOR}.linear_1",
                "mm.2": f"{_PROJECTOR}.linear_2",
            },
            ("mm.2.weight", 0),
            _llava,
            _llava_images,
            # Most files have the vocabulary of a text model, of which these are in no text.
            {"image_token_index": ("<image>", "<|reserved_special_token_0|>", "<unk>")},
            unused=("model.vision_tower.post_layernorm.weight", "model.vision_tower.post_layernorm.bias"),
        ),
        "pixtral": _PIXTRAL_ALONE,
        "qwen2vl_merger": Projector(
            "Qwen2VLForConditionalGeneration",
            "qwen2_vl",
            ("qwen2vl",),
            "model.visual.blocks",
            {
                **_QWEN,
                **_FRAMES,
                "ffn_up": "mlp.fc1",
                "ffn_down": "mlp.fc2",
                "v.post_ln": f"{_MERGER}.ln_q",
                "mm.0": f"{_MERGER}.mlp.0",
                "mm.2": f"{_MERGER}.mlp.2",
            },
            ("mm.2.weight", 0),
            _qwen2,
            _qwen_images("Qwen2VLProcessor", 4),
            _QWEN_TOKENS,
        ),
        "qwen2.5vl_merger": Projector(
            "Qwen2_5_VLForConditionalGeneration",
            "qwen2_5_vl",
            ("qwen2vl",),
            "model.visual.blocks",
            {
                **_QWEN,
                **_FRAMES,
                "ffn_gate": "mlp.gate_proj",
                "ffn_up": "mlp.up_proj",
                "ffn_down": "mlp.down_proj",
                "v.post_ln": f"{_MERGER}.ln_q",
                "mm.0": f"{_MERGER}.mlp.0",
                "mm.2": f"{_MERGER}.mlp.2",
            },
            ("mm.2.weight", 0),
            _qwen2_5,
            _qwen_images("Qwen2_5_VLProcessor", 4),
            _QWEN_TOKENS,
        ),
        "qwen3vl_merger": Projector(
            "Qwen3VLForConditionalGeneration",
            "qwen3_vl",
            ("qwen3vl",),
            "model.visual.blocks",
            {
                **_QWEN,
                **_FRAMES,
                "ffn_up": "mlp.linear_fc1",
                "ffn_down": "mlp.linear_fc2",
                "v.patch_embd.bias": "model.visual.patch_embed.proj.bias",
                "v.position_embd": "model.visual.pos_embed",
                "v.post_ln": f"{_MERGER}.norm",
                "mm.0": f"{_MERGER}.linear_fc1",
                "mm.2": f"{_MERGER}.linear_fc2",
            },
            ("mm.2.weight", 0),
            _qwen3,
            _qwen_images("Qwen3VLProcessor", 64),
            _QWEN_TOKENS,
            deepstack="model.visual.deepstack_merger_list",
            interleaved=True,
        ),
    }
)
"""By clip.projector_type."""


def projector_of(fields: TowerFields) -> Projector:
    """Raises ModelError for a type that is not served, naming it."""
    found = PROJECTORS.get(fields.projector)
    if found is None:
        raise ModelError(
            f"'{printable(fields.file.path)}' has a tower of the type '{printable(fields.projector, 60)}', which is "
            f"not supported; supported are {', '.join(PROJECTORS)}."
        )
    return _MISTRAL3 if found is _PIXTRAL_ALONE and fields.has("mm.patch_merger.weight") else found
