"""Core's own models, policies and formats, added through the same hooks that plugins use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tessera.platform.hooks import hookimpl

if TYPE_CHECKING:
    from tessera.plugins.registry import Registry

NATIVE_MODELS: Mapping[str, str] = {
    "AXK2ForCausalLM": "tessera.models.axk2:axk2",
    "BambaForCausalLM": "tessera.models.granite_hybrid:bamba",
    "BloomForCausalLM": "tessera.models.bloom:bloom",
    "Cohere2ForCausalLM": "tessera.models.cohere:cohere2",
    "DeepseekV2ForCausalLM": "tessera.models.deepseek:deepseek_v2",
    "DeepseekV3ForCausalLM": "tessera.models.deepseek:deepseek_v3",
    "DeepseekV32ForCausalLM": "tessera.models.deepseek_sparse:deepseek_v32",
    "Ernie4_5ForCausalLM": "tessera.models.ernie:ernie4_5",
    "Ernie4_5_MoeForCausalLM": "tessera.models.ernie:ernie4_5_moe",
    "FalconForCausalLM": "tessera.models.falcon:falcon",
    "FalconH1ForCausalLM": "tessera.models.falcon_h1:falcon_h1",
    "FalconMambaForCausalLM": "tessera.models.mamba:falcon_mamba",
    "Gemma2ForCausalLM": "tessera.models.gemma:gemma2",
    "Gemma3ForCausalLM": "tessera.models.gemma:gemma3",
    "GemmaForCausalLM": "tessera.models.gemma:gemma",
    "Glm4MoeForCausalLM": "tessera.models.glm:glm4_moe",
    "Glm4MoeLiteForCausalLM": "tessera.models.deepseek:glm4_moe_lite",
    "GlmMoeDsaForCausalLM": "tessera.models.deepseek_sparse:glm_moe_dsa",
    "GraniteForCausalLM": "tessera.models.llama:granite",
    "JambaForCausalLM": "tessera.models.jamba:jamba",
    "KimiLinearForCausalLM": "tessera.models.kimi_linear:kimi_linear",
    "Lfm2ForCausalLM": "tessera.models.lfm2:lfm2",
    "Lfm2MoeForCausalLM": "tessera.models.lfm2:lfm2_moe",
    "Lfm3ForCausalLM": "tessera.models.lfm3:lfm3",
    "GptOssForCausalLM": "tessera.models.gpt_oss:gpt_oss",
    "GraniteMoeHybridForCausalLM": "tessera.models.granite_hybrid:granite_hybrid",
    "Llama4ForCausalLM": "tessera.models.llama4:llama4",
    "LlamaForCausalLM": "tessera.models.llama:llama",
    "MambaForCausalLM": "tessera.models.mamba:mamba",
    "Mamba2ForCausalLM": "tessera.models.nemotron_h:mamba2",
    "MiniMaxForCausalLM": "tessera.models.minimax:minimax",
    "MiniMaxM2ForCausalLM": "tessera.models.minimax_m2:minimax_m2",
    "MiniCPM3ForCausalLM": "tessera.models.deepseek:minicpm3",
    "MistralForCausalLM": "tessera.models.llama:mistral",
    "MixtralForCausalLM": "tessera.models.llama:mixtral",
    "MptForCausalLM": "tessera.models.mpt:mpt",
    "NemotronHForCausalLM": "tessera.models.nemotron_h:nemotron_h",
    "Olmo2ForCausalLM": "tessera.models.olmo:olmo2",
    "Olmo3ForCausalLM": "tessera.models.olmo:olmo3",
    "OlmoHybridForCausalLM": "tessera.models.olmo_hybrid:olmo_hybrid",
    "Phi3ForCausalLM": "tessera.models.llama:phi3",
    "PhimoeForCausalLM": "tessera.models.phimoe:phimoe",
    "Qwen2ForCausalLM": "tessera.models.qwen:qwen2",
    "Qwen3ForCausalLM": "tessera.models.qwen:qwen3",
    "Qwen3MoeForCausalLM": "tessera.models.qwen:qwen3_moe",
    "Qwen3NextForCausalLM": "tessera.models.qwen_next:qwen3_next",
    "Qwen3_5ForCausalLM": "tessera.models.qwen_next:qwen3_5",
    "Qwen3_5MoeForCausalLM": "tessera.models.qwen_next:qwen3_5_moe",
    "RecurrentGemmaForCausalLM": "tessera.models.recurrent_gemma:recurrent_gemma",
    "RwkvForCausalLM": "tessera.models.rwkv:rwkv",
    "SmolLM3ForCausalLM": "tessera.models.llama:smollm3",
    "YoutuForCausalLM": "tessera.models.deepseek:youtu",
    "Zamba2ForCausalLM": "tessera.models.zamba:zamba2",
    "ZambaForCausalLM": "tessera.models.zamba:zamba",
    "xLSTMForCausalLM": "tessera.models.xlstm:xlstm",
}
"""Architectures that generate and that core implements, by their name in config.json."""

TEXT_MODELS: Mapping[str, str] = {
    "BartForConditionalGeneration": "tessera.models.bart:bart",
    "CLIPModel": "tessera.models.dual_encoder:clip",
    "CanaryForConditionalGeneration": "tessera.models.canary:canary",
    "CohereAsrForConditionalGeneration": "tessera.models.canary:cohere_asr",
    "ColModernVBertForRetrieval": "tessera.models.modernbert:modernbert",
    "ColQwen2ForRetrieval": "tessera.models.qwen:qwen2_vl",
    "CohereCompassForConditionalGeneration": "tessera.models.cohere:cohere_compass",
    "Cosmos3OmniForConditionalGeneration": "tessera.models.qwen:cosmos3_omni",
    "Ernie4_5_VLMoeForConditionalGeneration": "tessera.models.ernie:ernie4_5_vl_moe",
    "Gemma3ForConditionalGeneration": NATIVE_MODELS["Gemma3ForCausalLM"],
    "Glm46VForConditionalGeneration": "tessera.models.glm4v:glm46v",
    "Glm4vForConditionalGeneration": "tessera.models.glm4v:glm4v",
    "Glm4vMoeForConditionalGeneration": "tessera.models.glm4v:glm4v_moe",
    "GlmOcrForConditionalGeneration": "tessera.models.glm4v:glm_ocr",
    "Llama4ForConditionalGeneration": NATIVE_MODELS["Llama4ForCausalLM"],
    "M2M100ForConditionalGeneration": "tessera.models.bart:m2m_100",
    "MBartForConditionalGeneration": "tessera.models.bart:mbart",
    "MT5ForConditionalGeneration": "tessera.models.t5:mt5",
    "MarianMTModel": "tessera.models.bart:marian",
    "Mistral3ForConditionalGeneration": NATIVE_MODELS["MistralForCausalLM"],
    "MoonshineForConditionalGeneration": "tessera.models.moonshine:moonshine",
    "MoonshineStreamingForConditionalGeneration": "tessera.models.moonshine:moonshine_streaming",
    "PLBartForConditionalGeneration": "tessera.models.bart:plbart",
    "PegasusForConditionalGeneration": "tessera.models.bart:pegasus",
    "PaddleOCRVLForConditionalGeneration": "tessera.models.ernie:paddleocr_vl",
    "Qwen2VLForConditionalGeneration": "tessera.models.qwen:qwen2_vl",
    "Qwen2_5_VLForConditionalGeneration": "tessera.models.qwen:qwen2_vl",
    "Qwen2_5OmniThinkerForConditionalGeneration": "tessera.models.qwen:qwen2_5_omni",
    "Qwen3OmniMoeThinkerForConditionalGeneration": "tessera.models.qwen:qwen3_omni_moe",
    "Qwen3VLForConditionalGeneration": "tessera.models.qwen:qwen3_vl",
    "Qwen3VLMoeForConditionalGeneration": "tessera.models.qwen:qwen3_vl_moe",
    "Qwen3_5ForConditionalGeneration": NATIVE_MODELS["Qwen3_5ForCausalLM"],
    "Qwen3_5MoeForConditionalGeneration": NATIVE_MODELS["Qwen3_5MoeForCausalLM"],
    "Siglip2Model": "tessera.models.dual_encoder:siglip",
    "SiglipModel": "tessera.models.dual_encoder:siglip",
    "Speech2TextForConditionalGeneration": "tessera.models.bart:speech_to_text",
    "SpeechT5ForSpeechToText": "tessera.models.bart:speecht5",
    "T5ForConditionalGeneration": "tessera.models.t5:t5",
    "UMT5ForConditionalGeneration": "tessera.models.t5:umt5",
    "WhisperForConditionalGeneration": "tessera.models.whisper:whisper",
}
"""Architectures with a tower or an encoder beside a model of text, of which core serves the model of text."""

_HEADS = ("ForMaskedLM", "Model", "ForSequenceClassification", "ForTokenClassification")
"""What the architectures of an encoder are called, behind the family's name."""
_ENCODERS: Mapping[str, str] = {
    "Albert": "tessera.models.bert:albert",
    "Bert": "tessera.models.bert:bert",
    "Camembert": "tessera.models.bert:roberta",
    "DistilBert": "tessera.models.bert:distilbert",
    "Electra": "tessera.models.bert:electra",
    "EuroBert": "tessera.models.llama:eurobert",
    "Gte": "tessera.models.rotary_bert:gte",
    "JinaEmbeddingsV3": "tessera.models.rotary_bert:jina_v3",
    "LlamaBidirectional": "tessera.models.llama:llama_bidirectional",
    "MPNet": "tessera.models.mpnet:mpnet",
    "ModernBert": "tessera.models.modernbert:modernbert",
    "New": "tessera.models.rotary_bert:gte",
    "NomicBert": "tessera.models.rotary_bert:nomic",
    "Roberta": "tessera.models.bert:roberta",
    "XLMRoberta": "tessera.models.bert:roberta",
}
_DECODERS: Mapping[str, str] = {
    name: NATIVE_MODELS[f"{name}ForCausalLM"]
    for name in (
        "Gemma",
        "Gemma2",
        "Llama",
        "Mistral",
        "Mixtral",
        "Olmo2",
        "Phi3",
        "Qwen2",
        "Qwen3",
        "Qwen3Moe",
        "SmolLM3",
    )
} | {"Gemma3Text": NATIVE_MODELS["Gemma3ForCausalLM"]}
"""Families of decoders that are also served without their head, or with another."""

POOLING_MODELS: Mapping[str, str] = {
    **{f"{name}{head}": path for name, path in _ENCODERS.items() for head in _HEADS},
    **{f"{name}{head}": path for name, path in _DECODERS.items() for head in _HEADS[1:]},
    **{f"{name}ForPreTraining": _ENCODERS[name] for name in ("Albert", "Bert", "Electra")},
    "MT5EncoderModel": "tessera.models.t5:mt5_encoder",
    "T5EncoderModel": "tessera.models.t5:t5_encoder",
    "UMT5EncoderModel": "tessera.models.t5:umt5_encoder",
}
"""Architectures that answer with numbers and that core implements."""

REWARD_MODELS: Mapping[str, str] = {
    "Qwen2ForRewardModel": NATIVE_MODELS["Qwen2ForCausalLM"],
    "Qwen2ForProcessRewardModel": NATIVE_MODELS["Qwen2ForCausalLM"],
}
"""Architectures that judge texts and that core implements."""

_POLICIES = {"fcfs": "FirstComeFirstServed", "priority": "Priority", "fair": "FairShare"}

_FORMATS = {
    "auto-round": "tessera.quantization.formats.auto_round:auto_round",
    "awq": "tessera.quantization.formats.awq:awq",
    "bitsandbytes": "tessera.quantization.formats.bitsandbytes:bitsandbytes",
    "compressed-tensors": "tessera.quantization.formats.compressed_tensors:compressed_tensors",
    "fp8": "tessera.quantization.formats.fp8:fp8",
    "gptq": "tessera.quantization.formats.gptq:gptq",
    "modelopt": "tessera.quantization.formats.modelopt:modelopt",
    "mxfp4": "tessera.quantization.formats.mxfp4:mxfp4",
}


@hookimpl
def extensions(registry: Registry) -> None:
    for models in (NATIVE_MODELS, TEXT_MODELS, POOLING_MODELS, REWARD_MODELS):
        for architecture, path in models.items():
            registry.models.add(architecture, path, level=registry.models.level)
    for name, policy in _POLICIES.items():
        registry.policies.add(name, f"tessera.scheduler.policy:{policy}", level=registry.policies.level)
    for name, path in _FORMATS.items():
        registry.formats.add(name, path, level=registry.formats.level)
    for name in ("structured_outputs", "lora", "media", "transcription"):
        registry.features.add(name, f"tessera.features.{name}:FEATURE", level=registry.features.level)
    registry.kv_connectors.add("TcpConnector", "tessera.transfer.tcp:TcpConnector", level=registry.kv_connectors.level)
