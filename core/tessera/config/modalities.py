"""What a model's prompts may hold beside text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tessera.config.sound_encoder import SOUND_ENCODERS, sound_encoder
from tessera.errors import ConfigError, ModelError


@dataclass(frozen=True)
class TowerType:
    """What is known of a type with towers before transformers is imported."""

    # What its prompts may hold.
    modalities: tuple[str, ...] = ("image",)
    # Whether the tokens of an image have positions of their own in height and width (M-RoPE): those of `image_grid_thw`
    # divided by vision_config.spatial_merge_size.
    by_axis: bool = False
    # Of a type with experts for images: the fields of config.json that name the tokens around an image which these
    # experts take too, each with transformers' default.
    around: tuple[tuple[str, int], ...] = ()
    # Whether an image's tokens see each other, so that a step computes all of them.
    whole: bool = False
    # Whether all tokens of a prompt do (a prefix-LM, arXiv:1910.10683), so that a step computes all of a prompt.
    prefix: bool = False
    # Whether its text model is of any type, which text_config.model_type says.
    any_text: bool = False
    # The field of vision_config that says how many positions a second of a video has, and its default in transformers;
    # "": positions in time count frames.
    time: tuple[str, float] = ("", 0.0)
    # Of an encoder-decoder, whose tokens see all that its encoder made through cross attention: the field of
    # config.json that says how many positions that is at most, or SOUND. "": tokens stand for features. The encoder of
    # a type without modalities reads the prompt's text.
    encoder_length: str = ""
    # Whether transformers processes its images with torch alone, and not with Pillow.
    torch: bool = False
    # Whether the text model reads no images: a feature is the vector of an image, and its prompt has nothing else.
    apart: bool = False
    # The class of transformers that has the tower, where it is another.
    model: str = ""


SOUND = "sound"
"""TowerType.encoder_length of a type whose encoder makes as many positions as a sound has (sound_encoder.py)."""
_READ_IMAGES = (
    "AriaForConditionalGeneration",
    "AyaVisionForConditionalGeneration",
    "Blip2ForConditionalGeneration",
    "DeepseekOcr2ForConditionalGeneration",
    "DeepseekVLForConditionalGeneration",
    "DeepseekVLHybridForConditionalGeneration",
    "Emu3ForConditionalGeneration",
    "Exaone4_5_ForConditionalGeneration",
    "GotOcr2ForConditionalGeneration",
    "Granite4VisionForConditionalGeneration",
    "GraniteDoclingForConditionalGeneration",
    "HyperCLOVAXVisionV2ForConditionalGeneration",
    "Idefics2ForConditionalGeneration",
    "Idefics3ForConditionalGeneration",
    "InternVLForConditionalGeneration",
    "JanusForConditionalGeneration",
    "Lfm3VlForConditionalGeneration",
    "LightOnOcrForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
    "LlavaNextVideoForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration",
    "MiniCPMV4_6ForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Ovis2ForConditionalGeneration",
    "QianfanOCRForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
    "VideoLlama3ForConditionalGeneration",
    "VideoLlavaForConditionalGeneration",
    "VipLlavaForConditionalGeneration",
)

_READ_IMAGES_BY_TORCH = (
    "Cohere2VisionForConditionalGeneration",
    "Kimi_K25ForConditionalGeneration",
    "Lfm2VlForConditionalGeneration",
    "Llama4ForConditionalGeneration",
    "MiniCPMOcrForConditionalGeneration",
    "MiniMaxM3SparseForConditionalGeneration",
    "MuseGlimmerForConditionalGeneration",
    "MuseSparkForConditionalGeneration",
    "NemotronH_Omni_Reasoning_V3",
    "Step3p7ForConditionalGeneration",
)

_READ_IMAGES_BY_AXIS = (
    "CohereCompassForConditionalGeneration",
    "Cosmos3OmniForConditionalGeneration",
    "Glm46VForConditionalGeneration",
    "Glm4vForConditionalGeneration",
    "Glm4vMoeForConditionalGeneration",
    "GlmOcrForConditionalGeneration",
    "PaddleOCRVLForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
)

_AROUND_IMAGES = (("image_start_token_id", 101304), ("image_end_token_id", 101305))

_READ_BOTH_BY_AXIS = (
    "Qwen2_5OmniThinkerForConditionalGeneration",
    "Qwen3OmniMoeThinkerForConditionalGeneration",
)

_READ_SOUNDS = (
    "AudioFlamingo3ForConditionalGeneration",
    "FunAsrNanoForConditionalGeneration",
    "GlmAsrForConditionalGeneration",
    "GraniteSpeechForConditionalGeneration",
    "GraniteSpeechPlusForConditionalGeneration",
    "MossTranscribeDiarizeForConditionalGeneration",
    "Qwen2AudioForConditionalGeneration",
    "Qwen3ASRForConditionalGeneration",
    "VoxtralForConditionalGeneration",
)
_READ_TEXTS = (
    "BartForConditionalGeneration",
    "M2M100ForConditionalGeneration",
    "MBartForConditionalGeneration",
    "MarianMTModel",
    "PLBartForConditionalGeneration",
    "PegasusForConditionalGeneration",
)
_READ_TEXTS_BY_DISTANCE = ("MT5ForConditionalGeneration", "T5ForConditionalGeneration", "UMT5ForConditionalGeneration")
_WATCH_VIDEOS = (
    "InternVLForConditionalGeneration",
    "LlavaNextVideoForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
    "VideoLlama3ForConditionalGeneration",
    "VideoLlavaForConditionalGeneration",
)
"""Of those that read images."""

_TOWERS: Mapping[str, TowerType] = (
    {"Gemma3ForConditionalGeneration": TowerType(whole=True)}
    | {"Gemma4ForConditionalGeneration": TowerType(whole=True, any_text=True)}
    | {"Gemma4UnifiedForConditionalGeneration": TowerType(whole=True, any_text=True, torch=True)}
    | dict.fromkeys(_READ_IMAGES, TowerType(any_text=True))
    | dict.fromkeys(_READ_IMAGES_BY_TORCH, TowerType(any_text=True, torch=True))
    | {"PaliGemmaForConditionalGeneration": TowerType(any_text=True, prefix=True)}
    | dict.fromkeys(_READ_IMAGES_BY_AXIS, TowerType(by_axis=True))
    | {"Ernie4_5_VLMoeForConditionalGeneration": TowerType(by_axis=True, around=_AROUND_IMAGES)}
    | dict.fromkeys(_READ_BOTH_BY_AXIS, TowerType(("image", "audio"), by_axis=True))
    | {"Qwen2_5_VLForConditionalGeneration": TowerType(by_axis=True, time=("tokens_per_second", 4))}
    | {"MllamaForConditionalGeneration": TowerType()}
    | dict.fromkeys(("CLIPModel", "Siglip2Model", "SiglipModel"), TowerType(apart=True))
    | {"ColModernVBertForRetrieval": TowerType(model="ModernVBertModel", torch=True)}
    | {"ColPaliForRetrieval": TowerType(any_text=True, prefix=True, model="PaliGemmaForConditionalGeneration")}
    | {"ColQwen2ForRetrieval": TowerType(model="Qwen2VLForConditionalGeneration")}
    | dict.fromkeys(_READ_SOUNDS, TowerType(("audio",), any_text=True))
    | dict.fromkeys(_READ_TEXTS, TowerType((), encoder_length="max_position_embeddings"))
    | dict.fromkeys(_READ_TEXTS_BY_DISTANCE, TowerType((), encoder_length="n_positions"))
    | {"WhisperForConditionalGeneration": TowerType(("audio",), encoder_length="max_source_positions")}
    | dict.fromkeys(SOUND_ENCODERS, TowerType(("audio",), encoder_length=SOUND))
)
TOWERS: Mapping[str, TowerType] = MappingProxyType(
    {**_TOWERS, **{name: replace(_TOWERS[name], modalities=("image", "video")) for name in _WATCH_VIDEOS}}
)
"""Architectures that are served with their towers."""


_ENCODER_LENGTHS: Mapping[str, int] = MappingProxyType(
    {"max_position_embeddings": 1024, "max_source_positions": 1500, "n_positions": 1024}
)
"""transformers' defaults of the fields of TowerType.encoder_length; where it has no bound, as for mT5, what the model
was trained with."""
MAX_ENCODER_LENGTH = 65536

_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")


_LIBRARIES: Mapping[str, tuple[tuple[str, ...], str]] = MappingProxyType(
    {
        "image": (("PIL",), "Pillow is not installed (pip install 'tessera-llm[vision]')"),
        "video": (("PIL", "av"), "Pillow and PyAV are not installed (pip install 'tessera-llm[video]')"),
        "audio": (("soundfile", "soxr"), "soundfile and soxr are not installed (pip install 'tessera-llm[audio]')"),
    }
)
"""By modality: the modules that read files of it, and what to say where there are none."""


def missing_libraries(modality: str) -> str | None:
    """What to install to read files of a modality; None if nothing."""
    names, message = _LIBRARIES[modality]
    return None if all(map(find_spec, names)) else message


def needs_torch(config: Mapping[str, Any]) -> bool:
    """TowerType.torch of the type that config.json names."""
    tower = TOWERS.get(str(config["architectures"][0]))
    return tower is not None and tower.torch


def why_not_processed(folder: Path, modality: str, *, mmproj: bool = False) -> str | None:
    """Why files of a modality cannot be processed for the model in this folder; None if they can. mmproj: whether it is
    a GGUF file with that of a tower beside it."""
    if mmproj:
        return missing_libraries(modality) if modality == "image" else "GGUF files do not say how"
    if not any((folder / name).is_file() for name in _PROCESSOR_FILES):
        return f"the model's folder has no {' or '.join(_PROCESSOR_FILES)}"
    return missing_libraries(modality)


def computes_whole(config: Mapping[str, Any]) -> bool:
    """TowerType.whole of the type that config.json names."""
    tower = TOWERS.get(str(config["architectures"][0]))
    return tower is not None and tower.whole


def sees_prompt(config: Mapping[str, Any]) -> bool:
    """TowerType.prefix of the type that config.json names, if it names one."""
    tower = TOWERS.get(str((config.get("architectures") or ["?"])[0]))
    return tower is not None and tower.prefix


def longest_prefix(config: Mapping[str, Any]) -> int | None:
    """How many tokens of a prompt can see each other at most, of a type that sees_prompt(): as many as the windows of
    its text model have, whose width transformers does not ask where tokens of a prompt see each other. None: any
    number. config: of config.json."""
    text = config.get("text_config")
    if not sees_prompt(config) or not isinstance(text, Mapping) or text.get("model_type") != "gemma2":
        return None
    window = text.get("sliding_window", 4096)
    return window if type(window) is int else None


def tokens_around(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The ids of TowerType.around; None of a type without experts for images. config: of config.json. Raises
    ModelError."""
    tower = TOWERS.get(str(config["architectures"][0]))
    if tower is None or not tower.around:
        return None
    ids = tuple(config.get(name, default) for name, default in tower.around)
    if not all(type(one) is int for one in ids):
        raise ModelError(f"{' and '.join(name for name, _ in tower.around)} in config.json are not numbers.")
    return ids


def merge_size(config: Mapping[str, Any]) -> int | None:
    """How many patches an image's token stands for in height, and in width, of a type whose tokens have positions by
    axis; None of others. config: of config.json. Raises ModelError."""
    tower = TOWERS.get(str(config["architectures"][0]))
    if tower is None or not tower.by_axis:
        return None
    said = config.get("vision_config")
    size = said.get("spatial_merge_size", 2) if isinstance(said, Mapping) else 2
    if type(size) is not int or not 1 <= size <= 64:
        raise ModelError("vision_config.spatial_merge_size in config.json is not a number from 1 to 64.")
    return size


def positions_per_second(config: Mapping[str, Any]) -> float:
    """How many positions in time a second of a video has; 0 where they count frames. config: of config.json. Raises
    ModelError."""
    tower = TOWERS.get(str(config["architectures"][0]))
    if tower is None or not tower.time[0]:
        return 0.0
    said, (name, default) = config.get("vision_config"), tower.time
    number = said.get(name, default) if isinstance(said, Mapping) else default
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= 1000:
        raise ModelError(f"vision_config.{name} in config.json is not a number up to 1000.")
    return float(number)


def encoder_length(config: Mapping[str, Any]) -> int:
    """How many positions the encoder of an encoder-decoder has at most; 0 of other types. config: of config.json.
    Raises ModelError."""
    tower = TOWERS.get(str(config["architectures"][0]))
    if tower is None or not tower.encoder_length:
        return 0
    hears = sound_encoder(config)
    if hears is not None:
        return hears.positions(hears.most_samples)
    length = config.get(tower.encoder_length, _ENCODER_LENGTHS[tower.encoder_length])
    if type(length) is not int or not 1 <= length <= MAX_ENCODER_LENGTH:
        raise ModelError(f"{tower.encoder_length} in config.json is not a number from 1 to {MAX_ENCODER_LENGTH}.")
    return length


def reads_text(config: Mapping[str, Any]) -> bool:
    """Whether it is of an encoder-decoder whose encoder reads the prompt. config: of config.json."""
    tower = TOWERS.get(str(config["architectures"][0]))
    return tower is not None and bool(tower.encoder_length) and not tower.modalities


_FLAG = "limit_mm_per_prompt"
NOUNS: Mapping[str, str] = MappingProxyType({"image": "image", "video": "video", "audio": "sound"})
"""By modality, what messages call one of it."""
MODALITIES = tuple(NOUNS)


def modalities(config: Mapping[str, Any], limits: Mapping[str, Any]) -> tuple[str, ...]:
    """config: of config.json. limits: --limit-mm-per-prompt. Raises ConfigError for one that names something else."""
    for name, limit in limits.items():
        if name not in MODALITIES or isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= 1024:
            raise ConfigError(
                f'{_FLAG} takes numbers from 0 to 1024 by the names {", ".join(MODALITIES)}, such as {{"image": 4}}.',
                param=_FLAG,
            )
    tower = TOWERS.get(str(config["architectures"][0]))
    return () if tower is None else tuple(name for name in tower.modalities if limits.get(name) != 0)
