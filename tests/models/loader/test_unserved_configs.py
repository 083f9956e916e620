"""Configurations that are not served are refused by name, in one line, before any weight is read."""

from __future__ import annotations

import pytest

from tessera.engine.engine import Engine
from tessera.errors import ModelError
from tests.models.loader.folders import config_only, dummy_config

MISTRAL, QWEN3, MIXTRAL = ({"architectures": [f"{name}ForCausalLM"]} for name in ("Mistral", "Qwen3", "Mixtral"))
WINDOWS = {**QWEN3, "use_sliding_window": True, "sliding_window": 8}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

REFUSED = [
    ({"rope_scaling": {"rope_type": kind}}, f"rotary scaling '{kind}' is not served yet; default, linear, llama3 are.")
    for kind in ("yarn", "dynamic", "longrope", "su", "mrope", "ntk")
] + [
    ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rotary scaling 'yarn' is not served yet"),
    ({"rope_parameters": {"rope_type": "yarn"}}, "rotary scaling 'yarn' is not served yet"),
    ({"rope_scaling": LLAMA3}, "original_max_position_embeddings of the rotary embedding is missing in config.json."),
    ({"rope_scaling": {"type": "linear"}}, "factor of the rotary embedding is missing"),
    ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor of the rotary embedding is not a positive number"),
    ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor of the rotary embedding is not a positive number"),
    ({"rope_theta": -1.0}, "rope_theta of the rotary embedding is not a positive number"),
    ({"rope_scaling": [2.0]}, "rope_scaling in config.json is not an object."),
    ({"partial_rotary_factor": 0.5}, "a partial_rotary_factor below 1 is not served"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "a partial_rotary_factor below 1 is not served"),
    ({"hidden_act": "relu2"}, "activation 'relu2' is not served; silu, swish, gelu, gelu_new, gelu_pytorch_tanh are."),
    ({"quantization_config": {"quant_method": "gptq"}}, "is quantized (gptq), which is not served yet"),
    ({"quantization_config": {"quant_method": "fp8"}}, "is quantized (fp8), which is not served yet"),
    ({"architectures": ["LlamaForCausaLM"]}, "'LlamaForCausaLM' is not supported; there is LlamaForCausalLM"),
    ({"architectures": ["Qwen2MoForCausalLM"]}, "'Qwen2MoForCausalLM' is not supported; there is Qwen2ForCausalLM"),
    ({"architectures": ["BertModel"]}, "'BertModel' is not supported; there is LlamaForCausalLM, MistralForCausalLM, "),
    ({"hidden_size": None}, "hidden_size is missing in config.json."),
    ({"hidden_size": "20"}, "hidden_size is not a number that it can have in config.json."),
    ({"num_attention_heads": 0}, "num_attention_heads is not a number that it can have"),
    ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
    ({**MISTRAL, "num_hidden_layers": None}, "num_hidden_layers is missing"),
    ({**MISTRAL, "num_hidden_layers": 2.0}, "num_hidden_layers is not a number that it can have"),
    ({**MISTRAL, "sliding_window": 0}, "sliding_window is not a number that it can have"),
    ({"intermediate_size": True}, "intermediate_size is not a number that it can have"),
    ({"rms_norm_eps": None}, "rms_norm_eps is missing"),
    ({"rms_norm_eps": "1e-6"}, "rms_norm_eps is not a number that it can have"),
    ({"num_attention_heads": 4, "num_key_value_heads": 3}, "num_attention_heads (4) is no multiple of num_key_value"),
    ({"head_dim": 5}, "heads of 5 elements cannot be rotated: head_dim must be even."),
    ({**MIXTRAL, "num_local_experts": 2, "num_experts_per_tok": 3}, "num_experts_per_tok (3) is more than num_local"),
    ({**WINDOWS, "layer_types": ["sliding_attention"]}, "layer_types in config.json must say sliding_attention or"),
    ({**WINDOWS, "layer_types": ["sliding_attention", "chunked_attention"]}, "layer_types in config.json must say"),
    ({**WINDOWS, "layer_types": 3}, "layer_types in config.json must say"),
    ({**WINDOWS, "max_window_layers": "1"}, "max_window_layers is not a number that it can have"),
]


@pytest.mark.parametrize(("differs", "message"), REFUSED)
def test_refused_by_name(tmp_path, differs, message):
    folder = config_only(tmp_path, **differs)
    with pytest.raises(ModelError) as raised:
        Engine(dummy_config(folder))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("architecture", ["Llama", "Mistral", "Qwen2", "Qwen3", "Mixtral"])
def test_the_same_without_the_fault_is_served(tmp_path, architecture):
    folder = config_only(tmp_path, architectures=[f"{architecture}ForCausalLM"])
    engine = Engine(dummy_config(folder))
    engine.close()
    assert engine.info.weight_bytes > 0
