"""Folders of small processors, laid out as published models have them: a tokenizer, and what makes inputs of images or
sounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

_MEAN_STD = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.25]}
_SQUARE = {"height": 28, "width": 28}


@dataclass(frozen=True)
class ProcessorFolder:
    """A kind of processor."""

    # What stands for an image, or a sound, in a prompt.
    placeholder: str
    # The text of the token that gets a feature.
    feature: str
    # preprocessor_config.json
    image_processor: Mapping[str, Any]
    # processor_config.json
    processor: Mapping[str, Any]
    # Special tokens, besides the placeholder.
    tokens: tuple[str, ...] = ()
    # Names of tokens in tokenizer_config.json.
    named: Mapping[str, str] = field(default_factory=dict)
    # config.json, where the processor reads it.
    model: Mapping[str, Any] = field(default_factory=dict)
    # Whether the inputs of several images or sounds are those of each, one after the other.
    joins: bool = True
    # The texts of further tokens that get a feature.
    marks: tuple[str, ...] = ()

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        alphabet = sorted(ByteLevel.alphabet())
        tokenizer = tokenizers.Tokenizer(BPE({letter: token for token, letter in enumerate(alphabet)}, []))
        tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
        tokenizer.decoder = ByteLevelDecoder()
        tokenizer.add_special_tokens(
            ["<s>", "</s>", *dict.fromkeys((self.placeholder, self.feature, *self.tokens, *self.marks))]
        )
        (folder / "tokenizer.json").write_text(tokenizer.to_str())
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "</s>",
            "pad_token": "</s>",
            "extra_special_tokens": dict(self.named),
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        shared = _MEAN_STD if "image_processor_type" in self.image_processor else {}
        (folder / "preprocessor_config.json").write_text(json.dumps({**shared, **self.image_processor}))
        (folder / "processor_config.json").write_text(json.dumps(dict(self.processor)))
        if self.model:
            (folder / "config.json").write_text(json.dumps(dict(self.model)))
        return folder


_IDEFICS = ProcessorFolder(
    "<image>",
    "<image>",
    {
        "image_processor_type": "Idefics3ImageProcessor",
        "size": {"longest_edge": 112},
        "max_image_size": {"longest_edge": 28},
    },
    {"processor_class": "Idefics3Processor", "image_seq_len": 4},
    (
        *("<fake_token_around_image>", "<end_of_utterance>", "<global-img>"),
        *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
    ),
    joins=False,
)

_GEMMA4 = ProcessorFolder(
    "<|image|>",
    "<|image|>",
    {"image_processor_type": "Gemma4ImageProcessor", "patch_size": 4, "pooling_kernel_size": 2},
    {"processor_class": "Gemma4Processor"},
    ("<boi>", "<eoi>", "<boa>", "<eoa>", "<|audio|>", "<|video|>"),
    {
        "image_token": "<|image|>",
        "boi_token": "<boi>",
        "eoi_token": "<eoi>",
        "audio_token": "<|audio|>",
        "boa_token": "<boa>",
        "eoa_token": "<eoa>",
        "video_token": "<|video|>",
    },
)

_MINICPM_TOKENS = {
    "image_token": "<image_pad>",
    "video_token": "<video_pad>",
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
}
_MINICPM = ProcessorFolder(
    "<image_pad>",
    "<image_pad>",
    {
        "image_processor_type": "MiniCPMV4_6ImageProcessor",
        "scale_resolution": 56,
        "patch_size": 7,
        "max_slice_nums": 4,
    },
    {"processor_class": "MiniCPMV4_6Processor"},
    tuple(_MINICPM_TOKENS.values()),
    _MINICPM_TOKENS,
    joins=False,
)

FOLDERS: Mapping[str, ProcessorFolder] = {
    "llava": ProcessorFolder(
        "<image>",
        "<image>",
        {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 28}, "crop_size": _SQUARE},
        {
            "processor_class": "LlavaProcessor",
            "patch_size": 7,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    ),
    "llava_next": ProcessorFolder(
        "<image>",
        "<image>",
        {
            "image_processor_type": "LlavaNextImageProcessor",
            "size": {"shortest_edge": 28},
            "crop_size": _SQUARE,
            "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]],
        },
        {
            "processor_class": "LlavaNextProcessor",
            "patch_size": 7,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
        joins=False,
    ),
    "idefics3": _IDEFICS,
    "smolvlm": ProcessorFolder(
        "<image>",
        "<image>",
        {**_IDEFICS.image_processor, "image_processor_type": "SmolVLMImageProcessor"},
        {"processor_class": "SmolVLMProcessor", "image_seq_len": 4},
        _IDEFICS.tokens,
        {
            "image_token": "<image>",
            "fake_image_token": "<fake_token_around_image>",
            "global_image_token": "<global-img>",
            "end_of_utterance_token": "<end_of_utterance>",
        },
        joins=False,
    ),
    "pixtral": ProcessorFolder(
        "[IMG]",
        "[IMG]",
        {
            "image_processor_type": "PixtralImageProcessor",
            "size": {"longest_edge": 64},
            "patch_size": {"height": 4, "width": 4},
        },
        {"processor_class": "PixtralProcessor", "patch_size": 4, "spatial_merge_size": 2},
        ("[IMG_BREAK]", "[IMG_END]"),
        joins=False,
    ),
    "qwen2_vl": ProcessorFolder(
        "<|image_pad|>",
        "<|image_pad|>",
        {
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2VLProcessor",
            "patch_size": 4,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "min_pixels": 256,
            "max_pixels": 4096,
        },
        {},
        ("<|vision_start|>", "<|vision_end|>", "<|video_pad|>"),
    ),
    "glm4v": ProcessorFolder(
        "<|image|>",
        "<|image|>",
        {
            "image_processor_type": "Glm4vImageProcessor",
            "processor_class": "Glm4vProcessor",
            "patch_size": 4,
            "merge_size": 2,
            "size": {"shortest_edge": 512, "longest_edge": 8192},
        },
        {},
        ("<|begin_of_image|>", "<|end_of_image|>", "<|video|>", "<|begin_of_video|>", "<|end_of_video|>"),
    ),
    "ernie4_5_vl": ProcessorFolder(
        "<|IMAGE_PLACEHOLDER|>",
        "<|IMAGE_PLACEHOLDER|>",
        {
            "image_processor_type": "Ernie4_5_VLMoeImageProcessor",
            "processor_class": "Ernie4_5_VLMoeProcessor",
            "patch_size": 4,
            "merge_size": 2,
            "size": {"shortest_edge": 512, "longest_edge": 8192},
        },
        {},
        ("<|IMAGE_START|>", "<|IMAGE_END|>", "<|video@placeholder|>", "<|VIDEO_START|>", "<|VIDEO_END|>"),
        {
            "image_token": "<|IMAGE_PLACEHOLDER|>",
            "image_start_token": "<|IMAGE_START|>",
            "image_end_token": "<|IMAGE_END|>",
            "video_token": "<|video@placeholder|>",
            "video_start_token": "<|VIDEO_START|>",
            "video_end_token": "<|VIDEO_END|>",
        },
    ),
    "paddleocr_vl": ProcessorFolder(
        "<|IMAGE_PLACEHOLDER|>",
        "<|IMAGE_PLACEHOLDER|>",
        {
            "image_processor_type": "PaddleOCRVLImageProcessor",
            "processor_class": "PaddleOCRVLProcessor",
            "patch_size": 4,
            "merge_size": 2,
            "size": {"shortest_edge": 512, "longest_edge": 8192},
        },
        {},
        ("<|IMAGE_START|>", "<|IMAGE_END|>"),
        {"image_token": "<|IMAGE_PLACEHOLDER|>"},
    ),
    "gemma3": ProcessorFolder(
        "<start_of_image>",
        "<image_soft_token>",
        {"image_processor_type": "Gemma3ImageProcessor", "size": _SQUARE},
        {"processor_class": "Gemma3Processor", "image_seq_length": 4},
        ("<end_of_image>",),
        {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"},
    ),
    "gemma4": _GEMMA4,
    "minicpmv4_6": _MINICPM,
    "mllama": ProcessorFolder(
        "<|image|>",
        "<|image|>",
        {
            "image_processor_type": "MllamaImageProcessor",
            "size": _SQUARE,
            "max_image_tiles": 4,
            "do_convert_rgb": True,
            "do_resize": True,
            "do_rescale": True,
            "do_normalize": True,
            "do_pad": True,
        },
        {"processor_class": "MllamaProcessor"},
        ("<|python_tag|>",),
        {"image_token": "<|image|>"},
        joins=False,
    ),
    "paligemma": ProcessorFolder(
        "<image>",
        "<image>",
        {"image_processor_type": "SiglipImageProcessor", "size": _SQUARE, "image_seq_length": 4},
        {"processor_class": "PaliGemmaProcessor"},
        named={"image_token": "<image>"},
    ),
    "deepseek_ocr2": ProcessorFolder(
        "<image>",
        "<image>",
        {
            "image_processor_type": "DeepseekOcr2ImageProcessor",
            "size": {"height": 64, "width": 64},
            "tile_size": 32,
        },
        {"processor_class": "DeepseekOcr2Processor", "patch_size": 4, "downsample_ratio": 2},
        joins=False,
    ),
    "ovis2": ProcessorFolder(
        "<image>",
        "<IMG_ATOM>",
        {"image_processor_type": "Ovis2ImageProcessor", "size": _SQUARE, "crop_to_patches": True, "max_patches": 4},
        {"processor_class": "Ovis2Processor", "image_seq_length": 4},
        marks=("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>"),
    ),
    "internvl": ProcessorFolder(
        "<IMG_CONTEXT>",
        "<IMG_CONTEXT>",
        {
            "image_processor_type": "GotOcr2ImageProcessor",
            "size": _SQUARE,
            "crop_to_patches": True,
            "min_patches": 1,
            "max_patches": 4,
        },
        {"processor_class": "InternVLProcessor", "image_seq_length": 4},
        ("<img>", "</img>", "<video>"),
        {
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
    ),
}

VIDEO_FOLDERS: Mapping[str, ProcessorFolder] = {
    "qwen2_vl": FOLDERS["qwen2_vl"],
    "smolvlm": replace(
        FOLDERS["smolvlm"],
        processor={
            **FOLDERS["smolvlm"].processor,
            "video_processor": {
                **_MEAN_STD,
                "video_processor_type": "SmolVLMVideoProcessor",
                "size": {"longest_edge": 28},
                "max_image_size": {"longest_edge": 28},
                "fps": 1,
                "num_frames": 8,
            },
        },
    ),
    "internvl": replace(
        FOLDERS["internvl"],
        processor={
            **FOLDERS["internvl"].processor,
            "video_processor": {**_MEAN_STD, "video_processor_type": "InternVLVideoProcessor", "size": _SQUARE},
        },
    ),
    "llava_onevision": ProcessorFolder(
        "<image>",
        "<image>",
        {
            "image_processor_type": "LlavaOnevisionImageProcessor",
            "size": _SQUARE,
            "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]],
        },
        {
            "processor_class": "LlavaOnevisionProcessor",
            "num_image_tokens": 16,
            "vision_feature_select_strategy": "full",
            "video_processor": {
                **_MEAN_STD,
                "video_processor_type": "LlavaOnevisionVideoProcessor",
                "size": _SQUARE,
            },
        },
        ("<video>",),
        joins=False,
    ),
    "llava_next_video": ProcessorFolder(
        "<image>",
        "<image>",
        {
            "image_processor_type": "LlavaNextImageProcessor",
            "size": {"shortest_edge": 28},
            "crop_size": _SQUARE,
            "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]],
        },
        {
            "processor_class": "LlavaNextVideoProcessor",
            "patch_size": 7,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
            "video_processor": {
                **_MEAN_STD,
                "video_processor_type": "LlavaNextVideoVideoProcessor",
                "size": {"shortest_edge": 28},
                "crop_size": _SQUARE,
            },
        },
        ("<video>",),
        joins=False,
    ),
    "video_llama_3": ProcessorFolder(
        "<|image_pad|>",
        "<|image_pad|>",
        {
            "image_processor_type": "VideoLlama3ImageProcessor",
            "patch_size": 4,
            "merge_size": 1,
            "size": {"shortest_edge": 256, "longest_edge": 4096},
        },
        {
            "processor_class": "VideoLlama3Processor",
            "video_processor": {
                **_MEAN_STD,
                "video_processor_type": "VideoLlama3VideoProcessor",
                "patch_size": 4,
                "size": {"shortest_edge": 256, "longest_edge": 16384},
            },
        },
        ("<|vision_start|>", "<|vision_end|>", "<|video_pad|>"),
    ),
    "qwen3_vl": ProcessorFolder(
        "<|image_pad|>",
        "<|image_pad|>",
        {
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen3VLProcessor",
            "patch_size": 4,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "size": {"shortest_edge": 256, "longest_edge": 4096},
        },
        {
            "video_processor": {
                **_MEAN_STD,
                "video_processor_type": "Qwen3VLVideoProcessor",
                "patch_size": 4,
                "size": {"shortest_edge": 256, "longest_edge": 16384},
            }
        },
        ("<|vision_start|>", "<|vision_end|>", "<|video_pad|>"),
    ),
    "video_llava": ProcessorFolder(
        "<image>",
        "<image>",
        {"image_processor_type": "VideoLlavaImageProcessor", "size": {"shortest_edge": 28}, "crop_size": _SQUARE},
        {
            "processor_class": "VideoLlavaProcessor",
            "patch_size": 7,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
            "video_processor": {
                **_MEAN_STD,
                "video_processor_type": "VideoLlavaVideoProcessor",
                "size": {"shortest_edge": 28},
                "crop_size": _SQUARE,
            },
        },
        ("<video>",),
    ),
}
"""Of models that read images and watch videos."""

_MUSE = ProcessorFolder(
    "<|patch|>",
    "<|patch|>",
    {"image_processor_type": "MuseGlimmerImageProcessor", "patch_size": 4, "max_image_tokens": 64},
    {"processor_class": "MuseGlimmerProcessor"},
    (
        *("<|image_start|>", "<|image_end|>", "<|video|>", "<|vid_frame_separator|>", "<|vid_start|>", "<|vid_end|>"),
        *("<|audio|>", "<|soft_audio_start|>", "<|soft_audio_end|>"),
    ),
)

TORCH_FOLDERS: Mapping[str, ProcessorFolder] = {
    "cohere2_vision": ProcessorFolder(
        "<|IMG_PATCH|>",
        "<|IMG_PATCH|>",
        {
            "image_processor_type": "Cohere2VisionImageProcessor",
            "size": _SQUARE,
            "crop_to_patches": True,
            "max_patches": 4,
            "patch_size": 2,
        },
        {"processor_class": "Cohere2VisionProcessor"},
        ("<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_LINE_BREAK|>"),
        {
            "image_token": "<|IMG_PATCH|>",
            "boi_token": "<|START_OF_IMG|>",
            "eoi_token": "<|END_OF_IMG|>",
            "img_line_break_token": "<|IMG_LINE_BREAK|>",
        },
    ),
    "gemma4_unified": ProcessorFolder(
        _GEMMA4.placeholder,
        _GEMMA4.feature,
        {"image_processor_type": "Gemma4UnifiedImageProcessor", "patch_size": 4, "pooling_kernel_size": 2},
        {"processor_class": "Gemma4UnifiedProcessor"},
        _GEMMA4.tokens,
        _GEMMA4.named,
    ),
    "kimi_k25": ProcessorFolder(
        "<|media_pad|>",
        "<|media_pad|>",
        {
            "image_processor_type": "Kimi_K25ImageProcessor",
            "patch_size": 4,
            "max_patches": 256,
            "size": {"max_height": 64, "max_width": 64},
        },
        {"processor_class": "Kimi_K25Processor"},
        ("<|kimi_k25_video_placeholder|>",),
    ),
    "lfm2_vl": ProcessorFolder(
        "<image>",
        "<image>",
        {
            "image_processor_type": "Lfm2VlImageProcessor",
            "size": {"height": 32, "width": 32},
            "tile_size": 32,
            "encoder_patch_size": 4,
            "min_image_tokens": 4,
            "max_image_tokens": 16,
            "max_tiles": 4,
        },
        {"processor_class": "Lfm2VlProcessor"},
        (
            *("<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"),
            *(f"<|img_row_{row}_col_{column}|>" for row in range(1, 5) for column in range(1, 5)),
        ),
    ),
    "llama4": ProcessorFolder(
        "<|image|>",
        "<|patch|>",
        {"image_processor_type": "Llama4ImageProcessor", "size": _SQUARE, "max_patches": 4},
        {"processor_class": "Llama4Processor", "patch_size": 7},
        ("<|image_start|>", "<|image_end|>", "<|tile_x_separator|>", "<|tile_y_separator|>"),
    ),
    "minicpm_ocr": replace(
        _MINICPM,
        image_processor={**_MINICPM.image_processor, "image_processor_type": "MiniCPMOcrImageProcessor"},
        processor={"processor_class": "MiniCPMOcrProcessor"},
    ),
    "minimax_m3_vl": ProcessorFolder(
        "]<]image[>[",
        "]<]image[>[",
        {
            "image_processor_type": "MiniMaxM3VLImageProcessor",
            "patch_size": 4,
            "size": {"shortest_edge": 256, "longest_edge": 4096},
        },
        {"processor_class": "MiniMaxM3VLProcessor"},
        ("]<]video[>[", "]<]start of image[>[", "]<]end of image[>["),
    ),
    "muse_glimmer": _MUSE,
    "muse_spark": replace(_MUSE, processor={"processor_class": "MuseSparkProcessor"}),
    "nemotron_h_omni": ProcessorFolder(
        "<image>",
        "<image>",
        {
            "image_processor_type": "NemotronH_Omni_Reasoning_V3ImageProcessor",
            "patch_size": 4,
            "min_num_patches": 16,
            "max_num_patches": 256,
        },
        {"processor_class": "NemotronH_Omni_Reasoning_V3Processor"},
        ("<img>", "</img>", "<video>", "<so_embedding>", "<so_start>", "<so_end>"),
    ),
    "step3p7": ProcessorFolder(
        "<im_patch>",
        "<im_patch>",
        {
            "image_processor_type": "Step3p7ImageProcessor",
            "size": {"height": 64, "width": 64},
            "patch_size": 32,
            "vision_patch_size": 4,
        },
        {"processor_class": "Step3p7Processor"},
        ("<patch_start>", "<patch_end>", "<patch_newline>", "<im_start>", "<im_end>"),
    ),
}
"""Of models whose images transformers processes with torch alone."""

_WHISPER = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 16, "chunk_length": 2}
"""Of two seconds, where published ones have 30."""

_TOKEN_24 = sorted(ByteLevel.alphabet())[24]
"""Voxtral's placeholder, whatever text it has."""

SOUND_FOLDERS: Mapping[str, ProcessorFolder] = {
    "qwen2_audio": ProcessorFolder(
        "<|AUDIO|>", "<|AUDIO|>", _WHISPER, {"processor_class": "Qwen2AudioProcessor"},
        ("<|audio_bos|>", "<|audio_eos|>"),
    ),
    "audioflamingo3": ProcessorFolder(
        "<sound>", "<sound>", _WHISPER, {"processor_class": "AudioFlamingo3Processor", "max_audio_len": 8}
    ),
    "glmasr": ProcessorFolder(
        "<|pad|>", "<|pad|>", _WHISPER, {"processor_class": "GlmAsrProcessor", "max_audio_len": 8}
    ),
    "qwen3_asr": ProcessorFolder(
        "<|audio_pad|>", "<|audio_pad|>",
        {**_WHISPER, "feature_extractor_type": "Qwen3ASRFeatureExtractor", "chunk_length": 8},
        {"processor_class": "Qwen3ASRProcessor"}, ("<|audio_start|>", "<|audio_end|>"),
        {"audio_token": "<|audio_pad|>", "audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>"},
    ),
    "voxtral": ProcessorFolder(
        _TOKEN_24, _TOKEN_24, {**_WHISPER, "processor_class": "VoxtralProcessor"},
        {}, ("[BEGIN_AUDIO]",),
        model={
            "model_type": "voxtral",
            "audio_config": {"max_source_positions": 100, "hidden_size": 36, "intermediate_size": 144},
        },
    ),
    "qwen2_5_omni": ProcessorFolder(
        "<|AUDIO|>", "<|AUDIO|>", {**_WHISPER, "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4},
        {"processor_class": "Qwen2_5OmniProcessor"},
        ("<|IMAGE|>", "<|VIDEO|>", "<|audio_bos|>", "<|audio_eos|>", "<|vision_bos|>", "<|vision_eos|>"),
        {
            "image_token": "<|IMAGE|>", "audio_token": "<|AUDIO|>", "video_token": "<|VIDEO|>",
            "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>",
            "vision_bos_token": "<|vision_bos|>", "vision_eos_token": "<|vision_eos|>",
        },
    ),
    "moss": ProcessorFolder(
        "<|audio_pad|>", "<|audio_pad|>",
        {**_WHISPER, "feature_extractor_type": "MossTranscribeDiarizeFeatureExtractor"},
        {"processor_class": "MossTranscribeDiarizeProcessor"}, ("<|audio_start|>", "<|audio_end|>"),
    ),
}  # fmt: skip
