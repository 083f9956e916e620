"""Why types of transformers that read images or hear are not served so, by their architecture."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_AXES = "tokens of its images have positions on several axes, which its text model is not given"
_CROSS = "its decoder sees what it reads through cross attention of a kind that is not served"
_FILLED = "what its encoder makes of a sound's end depends on frames that fill it, which its decoder does not see"
_NO_LAYER = "its text model has layers of a kind that is not served ({})"
_PROMPT = "features of an image depend on the text of the prompt"
_SOUND = "it answers with sound"
_TIMM = "its tower is of the package timm"
_UNPLACED = "its processor names no text that stands for an image"

UNSERVED_MEDIA: Mapping[str, str] = MappingProxyType(
    {
        # ---- images
        "BlipForConditionalGeneration": _CROSS,
        "ChameleonForConditionalGeneration": "its head forbids the tokens of images",
        "Cosmos3EdgeForConditionalGeneration": _AXES,
        "DiffusionGemmaForBlockDiffusion": "it writes blocks of tokens by diffusion",
        "Dots3NoteForConditionalGeneration": _NO_LAYER.format("indexed_attention"),
        "EvollaForProteinText2Text": "it reads proteins",
        "FastVlmForConditionalGeneration": _TIMM,
        "Florence2ForConditionalGeneration": _PROMPT,
        "FuyuForCausalLM": "its processor runs with torch alone",
        "Gemma3nForConditionalGeneration": _TIMM,
        "GitForCausalLM": _UNPLACED,
        "Glm5NextForConditionalGeneration": "its text model keeps a state and several streams of residuals",
        "HunYuanVLForConditionalGeneration": "it turns elements of a pair by the positions of different axes",
        "IdeficsForVisionText2Text": _CROSS,
        "Inkling2ForConditionalGeneration": _NO_LAYER.format("hybrid"),
        "InklingForConditionalGeneration": _NO_LAYER.format("hybrid"),
        "InstructBlipForConditionalGeneration": _PROMPT,
        "InstructBlipVideoForConditionalGeneration": _PROMPT,
        "Kosmos2ForConditionalGeneration": _UNPLACED,
        "Kosmos2_5ForConditionalGeneration": _UNPLACED,
        "MiniCPMV4_7ForConditionalGeneration": "positions depend on the tokens between the slices of an image",
        "MistralLarge4ForConditionalGeneration": _NO_LAYER.format("indexed_attention"),
        "Molmo2ForConditionalGeneration": "tokens of one image see those of others",
        "PerceptionLMForConditionalGeneration": _TIMM,
        "PI0ForConditionalGeneration": "it answers with movements",
        "Pix2StructForConditionalGeneration": _CROSS,
        "PPFormulaNetForConditionalGeneration": _CROSS,
        "Qwen4ExpForConditionalGeneration": "its text model keeps a state beside keys and values",
        "T5Gemma2ForConditionalGeneration": _PROMPT,
        "UdopForConditionalGeneration": _PROMPT,
        "UnlimitedOcrForConditionalGeneration": _NO_LAYER.format("reference_sliding_attention"),
        "VisionEncoderDecoderModel": _CROSS,
        # ---- sounds
        "DiaForConditionalGeneration": _SOUND,
        "KyutaiSpeechToTextForConditionalGeneration": "it writes a token for each frame that it hears",
        "Pop2PianoForConditionalGeneration": "it answers with notes of music",
        "SeamlessM4TForSpeechToText": _FILLED,
        "SeamlessM4Tv2ForSpeechToText": _FILLED,
        "SpeechEncoderDecoderModel": "its encoder and its decoder are of any two types",
        "VibeVoiceForConditionalGeneration": _SOUND,
        "VibeVoiceAsrForConditionalGeneration": "its features are drawn at random",
        "VoxtralRealtimeForConditionalGeneration": "its features are added to a text that is written at the same time",
    }
)
