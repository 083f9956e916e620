"""From flags to a configuration, and what each wrong one is answered."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest

from tessera.config import EngineConfig, build_config
from tessera.config.build import parallel_config
from tessera.config.engine import ENGINE_FLAGS, SpeculativeConfig
from tessera.config.generation import sampling_defaults
from tessera.config.kv_events import KVEventsConfig
from tessera.config.kv_transfer import KVTransferConfig, is_loopback
from tessera.errors import ConfigError, ModelError
from tessera.platform.platform import with_ranks

PLATFORM = "a_platform.module:Platform"
CONFIG = {"architectures": ["LlamaForCausalLM"], "vocab_size": 1000, "max_position_embeddings": 2048}


def build(folder, **flags):
    return build_config(**{"model": str(folder), "platform": PLATFORM, **flags})


def test_defaults(folder):
    config = build(folder("tiny"))
    assert config.platform == PLATFORM
    assert (config.model.served_name, config.model.vocab_size, config.model.max_model_len) == ("tiny", 1000, 2048)
    assert (config.model.dtype, config.model.load_format) == ("auto", "auto")
    assert config.model.tokenizer == config.model.path
    assert (config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens) == (256, 2048)
    assert config.cache.prefix_caching
    assert config.parallel.threads >= 1
    assert config.explicit_fields == {"model.path", "platform"}


def test_what_the_user_gave_is_taken_and_noted(folder):
    config = build(
        folder(),
        served_model_name="chatty",
        dtype="half",
        max_model_len=100,
        seed=7,
        kv_cache_memory_bytes=2**20,
        kv_cache_dtype="int8_per_token_head",
        check_kv_cache=True,
        gpu_memory_utilization=0.5,
        block_size=24,
        enable_prefix_caching=False,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        tensor_parallel_size=2,
        threads=3,
        enforce_eager=True,
        no_fallback=True,
        skip_tokenizer_init=True,
    )
    assert (config.model.served_name, config.model.dtype, config.model.max_model_len) == ("chatty", "float16", 100)
    assert (config.seed, config.model.tokenizer) == (7, "")
    assert dataclasses.astuple(config.cache) == (24, 2**20, 0.5, False, "int8", True, None, None)
    assert (config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens) == (4, 64)
    assert (config.parallel.tensor_parallel_size, config.parallel.threads) == (2, 3)
    assert (config.enforce_eager, config.no_fallback) == (True, True)
    assert {"model.path", "cache.block_size", "scheduler.max_num_seqs", "model.dtype", "seed"} <= config.explicit_fields


OTHER_VALUES = {
    "speculative_config": ({"method": "ngram", "num_speculative_tokens": 3}, SpeculativeConfig("ngram", 3)),
    "kv_events_config": (
        {"enable_kv_cache_events": True, "endpoint": "tcp://*:7001", "topic": "kv@a@m", "replay_endpoint": None},
        KVEventsConfig("tcp://*:7001", topic="kv@a@m"),
    ),
    "kv_transfer_config": (
        {"kv_connector": "TcpConnector", "kv_role": "kv_both", "kv_port": 7003},
        KVTransferConfig("TcpConnector", "kv_both", kv_port=7003),
    ),
    "master_addr": ("192.0.2.1", "192.0.2.1"),
    "cluster_key_file": ("/run/key", "/run/key"),
    "scheduling_policy": ("priority", "priority"),
    "platform": ("another.module:Platform", "another.module:Platform"),
    "features": (("a_feature",), ("a_feature",)),
    "lora_modules": (("name=/a/folder",), (("name", "/a/folder"),)),
    "limit_mm_per_prompt": ({"image": 4}, {"image": 4}),
    "mm_processor_kwargs": ({"do_resize": False}, {"do_resize": False}),
}
"""Values of flags whose kind does not give one: as it is given, and as the field has it."""


def another_value(flag):
    """A value that is not the flag's default: as it is given, and as the field has it."""
    if flag.name in OTHER_VALUES:
        return OTHER_VALUES[flag.name]
    if flag.choices:
        return flag.choices[-1], flag.spellings.get(flag.choices[-1], flag.choices[-1])
    if flag.kind == "switch":
        return not flag.default, not flag.default
    assert flag.kind in ("int", "size", "float"), f"{flag.name} needs a value in OTHER_VALUES"
    value = (flag.default or 0) / 2 if flag.kind == "float" else (flag.default or 0) + 1
    return value, value


BESIDE = {
    "nnodes": {"tensor_parallel_size": 2, "master_addr": "h"},
    "enable_expert_parallel": {"tensor_parallel_size": 2},
}
"""What a flag needs beside it."""


@pytest.mark.parametrize("flag", [flag for flag in ENGINE_FLAGS if flag.path], ids=lambda flag: flag.name)
def test_a_flag_sets_its_field_and_is_noted_as_it(flag, folder):
    given, stored = another_value(flag)
    beside = {"enable_lora": True} if flag.group == "lora" else BESIDE.get(flag.name, {})
    config = build(folder(), **{**beside, flag.name: given})
    value = config
    for name in flag.path.split("."):
        value = getattr(value, name)
    assert value == stored
    assert value != flag.default
    assert flag.path in config.explicit_fields


def test_a_name_that_is_no_flag_gets_the_nearest(folder):
    with pytest.raises(
        TypeError, match=r"build_config\(\) got an unexpected keyword argument 'max_seqs'; did you mean"
    ):
        build(folder(), max_seqs=3)


def test_sizes_may_have_suffixes(folder):
    path = folder()
    assert build(path, max_model_len="1K", kv_cache_memory_bytes="1.5GiB").cache.memory_bytes == 3 * 2**29
    with pytest.raises(ConfigError, match="'many' is not a number") as caught:
        build(path, max_model_len="many")
    assert caught.value.param == "max_model_len"


def test_it_crosses_a_process_as_json(folder):
    config = build(folder(), seed=2**64 - 1)
    assert msgspec.json.decode(msgspec.json.encode(config), type=EngineConfig) == config


def test_the_bundled_demo_is_served_where_no_model_is_named(folder, monkeypatch):
    path = folder("demo")
    monkeypatch.setattr("tessera.config.locate.demo_folder", lambda: path)
    config = build_config(platform=PLATFORM)
    assert (config.model.served_name, config.model.path) == ("tessera-demo", str(path))
    assert "model.path" not in config.explicit_fields


def test_a_platforms_name_goes_to_the_choice(folder, monkeypatch):
    class Chosen:
        platform = "chosen.module:Platform"
        levels = MappingProxyType({"platform": 1})

    asked = []

    def select(name):
        asked.append(name)
        return Chosen

    monkeypatch.setattr("tessera.plugins.select", select)
    assert build(folder(), platform=None).platform == Chosen.platform
    assert build(folder("other"), platform="chip").platform_levels == Chosen.levels
    assert asked == [None, "chip"]


# ---- the model's folder ---------------------------------------------------------


def test_the_text_part_of_a_model_of_several_modalities(folder):
    nested = {"architectures": ["SomeVLM"], "text_config": {"vocab_size": 500, "max_position_embeddings": 64}}
    config = build(folder(config__json=nested))
    assert (config.model.vocab_size, config.model.max_model_len) == (500, 64)
    assert config.model.checkpoint == nested


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        ({}, (2,)),
        ({"generation_config__json": {"eos_token_id": [5, 6]}}, (5, 6)),
        ({"generation_config__json": {"eos_token_id": 5}, "tokenizer_config__json": {"eos_token": "<|end|>"}}, (5, 7)),
        ({"tokenizer_config__json": {"eos_token": {"content": "<|end|>"}}}, (2, 7)),
        ({"generation_config__json": {"eos_token_id": 7}, "tokenizer_config__json": {"eos_token": "<|end|>"}}, (7,)),
        ({"tokenizer_config__json": {"eos_token": "not a token"}}, (2,)),
    ],
)
def test_tokens_that_end_an_answer(folder, files, ids):
    assert build(folder(**files)).model.eos_token_ids == ids


def test_sampling_defaults(folder):
    path = folder(generation_config__json={"temperature": 0.7, "top_k": 20, "do_sample": True, "top_p": None})
    assert sampling_defaults(path) == {"temperature": 0.7, "top_k": 20}
    assert sampling_defaults(folder("other")) == {}
    with pytest.raises(ModelError, match=r"temperature in '.*' is not a number"):
        sampling_defaults(folder("third", generation_config__json={"temperature": "hot"}))


@pytest.mark.parametrize("features", [None, ("lora", "media"), ("media", "a_feature"), ("a_feature",)])
def test_images_wrap_a_model_before_other_features_do(folder, features):
    config = {"architectures": ["LlavaForConditionalGeneration"], "text_config": {**CONFIG, "model_type": "llama"}}
    model = folder("sees", config__json=config, preprocessor_config__json={})
    built = build(model) if features is None else build(model, features=features)
    others = ("structured_outputs",) if features is None else tuple(name for name in features if name != "media")
    assert built.features == ("media", *others)


def test_adapters_are_named_and_enabled_by_one_flag(folder):
    model = folder("tiny")
    config = build(model, enable_lora=True, lora_modules=("a=x=y", '{"name": "b", "path": "/z"}'), max_lora_rank=64)
    assert config.lora.modules == (("a", str(Path("x=y").absolute())), ("b", "/z"))
    assert (config.lora.slots, config.lora.max_rank) == (2, 64)
    assert config.features == ("structured_outputs", "lora")
    assert "features" not in config.explicit_fields
    assert build(model, enable_lora=True, features=("none",)).features == ("none", "lora")
    assert build(model, features=("lora",)).lora.enable
    assert build(model).features == ("structured_outputs",)


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ({"lora_modules": ("a=x",)}, "lora_modules needs enable_lora"),
        ({"max_loras": 2}, "max_loras needs enable_lora"),
        (
            {"enable_lora": True, "pipeline_parallel_size": 2},
            "enable_lora does not support pipeline_parallel_size above 1",
        ),
        ({"enable_lora": True, "lora_modules": ("a",)}, "'a' is not NAME=FOLDER"),
        ({"enable_lora": True, "lora_modules": ("=x",)}, "'=x' is not NAME=FOLDER"),
        ({"enable_lora": True, "lora_modules": ('{"name": "a"}',)}, "is not NAME=FOLDER"),
        ({"enable_lora": True, "lora_modules": ('{"name": 3}',)}, "is not a JSON object of texts"),
        ({"enable_lora": True, "lora_modules": ("a=x", "a=y")}, "the name 'a' is used twice"),
        ({"enable_lora": True, "lora_modules": ("tiny=x",)}, "'tiny' is the model's own name"),
    ],
)
def test_wrong_adapter_flags_are_one_line(folder, flags, what):
    with pytest.raises(ConfigError, match=what) as refused:
        build(folder("tiny"), **flags)
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"config__json": None}, "has no config.json, so it is not a model's folder"),
        ({"config__json": None, "weights__gguf": ""}, r"weights\.gguf' is empty; download it again"),
        ({"config__json": None, "a__gguf": "", "b__gguf": ""}, "holds several GGUF models; name one file, such as"),
        ({"model__safetensors": None, "weights__gguf": ""}, "holds GGUF files: name one of them"),
        ({"config__json": None, "model__safetensors": None, "adapter_config__json": "{}"}, "is an adapter"),
        ({"model__safetensors": None, "adapter_config__json": "{}", "adapter_model__safetensors": ""}, "an adapter"),
        ({"config__json": "{broken"}, "is not valid JSON: "),
        ({"config__json": "[" * 100_000}, "is not valid JSON: "),
        ({"config__json": "[]"}, "is not a JSON object"),
        ({"config__json": {"vocab_size": 10}}, "names no architectures"),
        ({"config__json": {**CONFIG, "vocab_size": None}}, "vocab_size is missing"),
        ({"config__json": {**CONFIG, "vocab_size": "1000"}}, "vocab_size is not a positive whole number"),
        ({"config__json": {**CONFIG, "vocab_size": True}}, "vocab_size is not a positive whole number"),
        ({"config__json": {**CONFIG, "max_position_embeddings": -1}}, "max_position_embeddings is not a positive"),
        ({"config__json": {**CONFIG, "max_position_embeddings": None}}, "set --max-model-len"),
        ({"config__json": {**CONFIG, "text_config": 3}}, "text_config in '.*' is not an object"),
        (
            {"config__json": {**CONFIG, "quantization_config": {"quant_method": "exl2"}}},
            "quantization format 'exl2' is not supported; there is",
        ),
        ({"config__json": {**CONFIG, "eos_token_id": [-1]}}, "eos_token_id in '.*' is neither"),
        ({"model__safetensors": None}, r"has no \*\.safetensors; add them, or use --load-format dummy"),
        ({"model__safetensors": None, "model__bin": ""}, r"has its weights as \*\.bin, which .*from_pretrained"),
        ({"tokenizer__json": None}, "has no tokenizer.json; give --tokenizer FOLDER, or --skip-tokenizer-init"),
        ({"tokenizer__json": None, "tokenizer__model": ""}, "has tokenizer.model but no tokenizer.json; write one: "),
        ({"tokenizer__json": "{", "tokenizer_config__json": {"eos_token": "x"}}, "is not a tokenizer's JSON"),
    ],
)
def test_a_folder_that_cannot_be_served_is_one_line(folder, files, what):
    with pytest.raises(ModelError, match=what) as caught:
        build(folder(**files))
    assert "\n" not in caught.value.message


def test_a_folder_may_be_named_as_a_gguf_file_is(folder):
    made = folder("tiny")
    named = made.rename(made.with_name("tiny.gguf"))
    assert build(named).model.served_name == "tiny.gguf"


def test_a_missing_folder_gets_the_nearest_names_beside_it(folder):
    near = folder("qwen3-0.6b")
    with pytest.raises(ModelError, match=r"There is no folder '.*' \(near it: qwen3-0\.6b\)\. .* ORGANIZATION/NAME"):
        build(near.parent / "qwen3-06b")
    with pytest.raises(ModelError, match="is a file; name the folder"):
        build(near / "config.json")
    with pytest.raises(ModelError, match=r"There is no file '.*model\.gguf'"):
        build(near / "model.gguf")


def test_random_weights_need_none(folder):
    path = folder(model__safetensors=None)
    assert build(path, load_format="dummy").model.load_format == "dummy"


def test_a_tokenizer_of_another_folder(folder):
    other = folder("other")
    path = folder(tokenizer__json=None)
    assert build(path, tokenizer=str(other)).model.tokenizer == str(other)


def test_a_model_that_does_not_say_its_length_takes_the_users(folder):
    path = folder(config__json={**CONFIG, "max_position_embeddings": None})
    assert build(path, max_model_len=77).model.max_model_len == 77


# ---- ranges -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ({"max_model_len": 2049}, "max_model_len is 2049, but the model supports at most 2048 tokens"),
        ({"max_model_len": 0}, "max_model_len must be from 1"),
        ({"max_num_seqs": 0}, "max_num_seqs must be from 1"),
        ({"max_num_seqs": 10**9}, "max_num_seqs must be from 1"),
        ({"max_num_seqs": "4"}, "max_num_seqs must be a whole number"),
        ({"max_num_seqs": True}, "max_num_seqs must be a whole number"),
        ({"max_num_batched_tokens": 8}, "each of max_num_seqs=256 requests needs one token per step"),
        (
            {"max_num_batched_tokens": 1024, "enable_chunked_prefill": False},
            "without chunked prefill a step must hold a whole prompt of max_model_len=2048",
        ),
        ({"block_size": 0}, "block_size must be from 1"),
        (
            {"kv_cache_dtype": "fp4"},
            "kv_cache_dtype must be one of auto, int8, int8_per_token_head, fp8, fp8_e4m3, got 'fp4'",
        ),
        ({"kv_cache_memory_bytes": 0}, "kv_cache_memory_bytes must be from 1"),
        ({"gpu_memory_utilization": 1.5}, "must be above 0 and at most 1, got 1.5"),
        ({"gpu_memory_utilization": float("nan")}, "must be above 0 and at most 1"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size must be from 1"),
        ({"threads": 0}, "threads must be from 1"),
        ({"seed": -1}, "seed must be from 0"),
        ({"steps_in_flight": 99}, "steps_in_flight must be from 1 to 8"),
        ({"dtype": "int3"}, "dtype must be one of auto, bfloat16"),
        ({"load_format": "pt"}, "load_format must be one of auto, safetensors, dummy"),
        ({"served_model_name": "a\nb"}, "printable"),
    ],
)
def test_a_value_out_of_range_is_one_line(folder, flags, what):
    with pytest.raises(ConfigError, match=what) as caught:
        build(folder(), **flags)
    assert "\n" not in caught.value.message


def test_the_token_budget_grows_with_what_a_step_must_hold(folder):
    path = folder(config__json={**CONFIG, "max_position_embeddings": 8192})
    assert build(path, max_num_seqs=4000).scheduler.max_num_batched_tokens == 4000
    assert build(path, enable_chunked_prefill=False).scheduler.max_num_batched_tokens == 8192


def test_trust_remote_code_is_answered_in_one_line_and_changes_nothing(folder, caplog):
    path = folder(config__json={**CONFIG, "auto_map": {"AutoConfig": "evil.Config"}}, evil__py="raise SystemExit")
    assert build(path, trust_remote_code=True) == build(path)
    (record,) = caplog.records
    assert record.getMessage().startswith("trust_remote_code has no effect: code from a model's folder is never run")
    assert "\n" not in record.getMessage()


# ---- how far a rotary embedding reaches --------------------------------------

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}


@pytest.mark.parametrize(
    ("said", "usual", "most"),
    [
        ({}, 2048, 2048),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, 2048, 2048),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 2048, 4096),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.5}}, 2048, 5120),
        ({"rope_parameters": YARN}, 4096, 4096),
        ({"rope_parameters": {**YARN, "factor": 1.5}}, 2048, 2048),
        ({"rope_parameters": {**YARN, "factor": "4"}}, 2048, 2048),
        ({"rope_scaling": {"type": "dynamic", "factor": 1e9}}, 2048, 2048),
        ({"rope_scaling": [1]}, 2048, 2048),
    ],
)
def test_a_scaled_rotary_embedding_reaches_further(folder, said, usual, most):
    path = folder(config__json={**CONFIG, **said})
    assert build(path).model.max_model_len == usual
    assert build(path, max_model_len=most).model.max_model_len == most
    with pytest.raises(ConfigError, match=f"supports at most {most} tokens"):
        build(path, max_model_len=most + 1)


@pytest.mark.parametrize(
    ("family", "length"), [("bloom", 2048), ("falcon", 2048), ("mpt", 2048), ("recurrent_gemma", 8192)]
)
def test_some_families_do_not_say_how_long_they_are(folder, family, length):
    config = {
        **{name: value for name, value in CONFIG.items() if name != "max_position_embeddings"},
        "model_type": family,
    }
    assert build(folder(config__json=config)).model.max_model_len == length


def test_drafts_are_asked_for_as_in_vllm(folder):
    model, asked = folder(), {"method": "ngram", "num_speculative_tokens": 4}
    assert build(model).scheduler.speculative is None
    assert build(model).scheduler.max_decode_tokens == 1
    for given, expected in (
        ({}, (5, 5)),
        ({"prompt_lookup_max": 3}, (3, 3)),
        ({"prompt_lookup_min": 2}, (2, 2)),
        ({"prompt_lookup_min": 1, "prompt_lookup_max": 3}, (1, 3)),
    ):
        found = build(model, speculative_config={**asked, **given}).scheduler
        assert found.speculative == SpeculativeConfig("ngram", 4, *expected)
        assert found.max_decode_tokens == 5
    config = build(model, speculative_config=asked)
    assert msgspec.json.decode(msgspec.json.encode(config), type=EngineConfig) == config
    assert config.scheduler.max_decode_samples == 256 * 5
    few = {"max_num_seqs": 8, "max_num_batched_tokens": 20}
    assert build(model, speculative_config=asked, **few).scheduler.max_decode_samples == 20
    assert build(model, **few).scheduler.max_decode_samples == 8


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([4], "must be a JSON object with the keys method, num_speculative_tokens"),
        ({"method": "eagle", "num_speculative_tokens": 4}, 'the only method is "ngram"'),
        ({"num_speculative_tokens": 4}, 'the only method is "ngram"'),
        ({"method": "ngram"}, "num_speculative_tokens is missing"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "must be a whole number from 1 to 32"),
        ({"method": "ngram", "num_speculative_tokens": True}, "must be a whole number"),
        ({"method": "ngram", "num_speculative_tokens": 4, "model": "x"}, "does not support the key 'model'"),
        (
            {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 4, "prompt_lookup_max": 3},
            "prompt_lookup_min is 4, above prompt_lookup_max, 3",
        ),
    ],
)
def test_drafts_that_cannot_be_are_one_line(folder, given, said):
    with pytest.raises(ConfigError, match="speculative_config.*" + re.escape(said)) as error:
        build(folder(), speculative_config=given)
    assert "\n" not in error.value.message
    assert error.value.param == "speculative_config"


def test_events_are_published_only_where_they_are_asked_for(folder):
    model = folder()
    for value in ({}, {"enable_kv_cache_events": False}, {"enable_kv_cache_events": True, "publisher": "null"}):
        assert build(model, kv_events_config=value).cache.events is None
    config = build(model, kv_events_config={"enable_kv_cache_events": True, "publisher": "zmq"})
    assert config.cache.events == KVEventsConfig("tcp://*:5557")
    assert msgspec.json.decode(msgspec.json.encode(config), type=EngineConfig) == config


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([4], "must be a JSON object with the keys enable_kv_cache_events, publisher, endpoint"),
        ({"port": 5557}, "has no key 'port'; it takes enable_kv_cache_events"),
        ({"enable_kv_cache_events": "yes"}, "enable_kv_cache_events must be true or false"),
        ({"publisher": "kafka"}, 'publisher must be "zmq" or "null"'),
        ({"endpoint": "localhost:5557"}, "'localhost:5557' is no endpoint; write one such as tcp://*:5557"),
        ({"endpoint": "tcp://*"}, "'tcp://*' is no endpoint"),
        ({"endpoint": "tcp://*:70000"}, "'tcp://*:70000' is no endpoint"),
        ({"replay_endpoint": 5}, "'5' is no endpoint"),
        ({"hwm": 0}, "hwm must be a whole number from 1 to"),
        ({"buffer_steps": True}, "buffer_steps must be a whole number"),
        ({"topic": "t" * 2000}, "topic must be a text of at most 1024 characters"),
    ],
)
def test_where_events_go_is_checked_in_one_line(folder, given, said):
    with pytest.raises(ConfigError, match="^kv_events_config.*" + re.escape(said)) as error:
        build(folder(), kv_events_config=given)
    assert "\n" not in error.value.message
    assert error.value.param == "kv_events_config"


def test_events_need_the_prefix_cache(folder):
    with pytest.raises(ConfigError, match="kv_events_config publishes what the prefix cache has"):
        build(folder(), kv_events_config={"enable_kv_cache_events": True}, enable_prefix_caching=False)


def test_the_endpoints_of_ranks_follow_each_other():
    config = KVEventsConfig("tcp://[::]:5557", "ipc:///run/replay")
    assert config.of_rank(0) == config
    assert config.of_rank(3) == KVEventsConfig("tcp://[::]:5560", "ipc:///run/replay_dp3")
    assert KVEventsConfig("tcp://*:0").of_rank(2).endpoint == "tcp://*:0"
    with pytest.raises(ConfigError, match="the port of engine 3 is above 65535"):
        KVEventsConfig("tcp://*:65533").of_rank(3)


def test_drafts_and_pipeline_stages_exclude_each_other(folder):
    asked = {"method": "ngram", "num_speculative_tokens": 4}
    with pytest.raises(ConfigError, match="does not work with pipeline_parallel_size yet") as error:
        build(folder(), speculative_config=asked, pipeline_parallel_size=2)
    assert error.value.param == "speculative_config"


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"tensor_parallel_size": 3, "nnodes": 2, "master_addr": "h"}, "3 devices cannot be divided among 2 hosts"),
        ({"tensor_parallel_size": 2, "nnodes": 2}, "needs master_addr"),
        (
            {"tensor_parallel_size": 2, "nnodes": 2, "master_addr": "h", "node_rank": 2},
            "node_rank must be below nnodes",
        ),
        (
            {"tensor_parallel_size": 2, "nnodes": 2, "master_addr": "h", "data_parallel_size": 2},
            "data_parallel_size is of one host",
        ),
    ],
)
def test_hosts_that_cannot_be(flags, problem):
    with pytest.raises(ConfigError, match=problem):
        parallel_config(flags)


def test_each_host_has_its_share_of_devices():
    config = parallel_config(
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 3, "nnodes": 3, "master_addr": "h", "threads": 4}
    )
    assert config.host_size == 2
    specs = with_ranks(config)
    assert [(spec.rank, spec.devices) for spec in specs] == [(rank, (rank % 2,)) for rank in range(6)]
    local = [(spec.environment["LOCAL_RANK"], spec.environment["LOCAL_WORLD_SIZE"]) for spec in specs]
    assert local == [("0", "2"), ("1", "2")] * 3


ROLE = {"kv_connector": "TcpConnector", "kv_role": "kv_both"}


def test_what_a_transfer_is_configured_with_crosses_to_the_engine(folder):
    extra = {"lease_seconds": 5, "timeout_seconds": 0.5, "of_a_plugin": [1]}
    config = build(folder(), kv_transfer_config={**ROLE, "engine_id": "p", "kv_connector_extra_config": extra})
    assert config.cache.transfer == KVTransferConfig(
        "TcpConnector", "kv_both", "p", lease_seconds=5.0, timeout_seconds=0.5, extra={"of_a_plugin": [1]}
    )
    assert msgspec.json.decode(msgspec.json.encode(config), type=EngineConfig) == config


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([4], "must be a JSON object with the keys kv_connector, kv_role, engine_id"),
        ({"kv_connector": "TcpConnector"}, "needs kv_role"),
        ({"kv_role": "kv_both"}, "needs kv_connector"),
        ({**ROLE, "kv_rank": 0}, "has no key 'kv_rank'; it takes kv_connector"),
        ({**ROLE, "kv_role": "prefill"}, "kv_role must be one of kv_producer, kv_consumer, kv_both"),
        ({**ROLE, "kv_connector": 5}, "kv_connector must be a text of at most 256 characters"),
        ({**ROLE, "engine_id": "e" * 257}, "engine_id must be a text of at most 256 characters"),
        ({**ROLE, "kv_port": 70000}, "kv_port must be a whole number from 0 to 65535"),
        ({**ROLE, "kv_port": True}, "kv_port must be a whole number"),
        ({**ROLE, "kv_ip": "192.0.2.1"}, "set cluster_key_file to a secret"),
        ({**ROLE, "kv_load_failure_policy": "fail"}, 'kv_load_failure_policy can only be "recompute"'),
        ({**ROLE, "kv_connector_extra_config": []}, "kv_connector_extra_config must be an object"),
        ({**ROLE, "kv_connector_extra_config": {"lease_seconds": 0}}, "lease_seconds must be a number from 1 to 3600"),
        (
            {**ROLE, "kv_connector_extra_config": {"timeout_seconds": float("nan")}},
            "timeout_seconds must be a number from 0.1 to 3600",
        ),
    ],
)
def test_a_transfer_is_checked_in_one_line(folder, given, said):
    with pytest.raises(ConfigError, match="^kv_transfer_config.*" + re.escape(said)) as error:
        build(folder(), kv_transfer_config=given)
    assert "\n" not in error.value.message
    assert error.value.param == "kv_transfer_config"


def test_a_transfer_writes_what_the_check_of_the_cache_has_not_seen(folder):
    with pytest.raises(ConfigError, match="kv_transfer_config writes into the cache"):
        build(folder(), kv_transfer_config=ROLE, check_kv_cache=True)


def test_the_ports_of_ranks_follow_each_other():
    config = KVTransferConfig("TcpConnector", "kv_both", "p")
    assert config.of_rank(0) == config
    assert config.of_rank(2) == KVTransferConfig("TcpConnector", "kv_both", "p_dp2", kv_port=config.kv_port + 2)
    assert KVTransferConfig("TcpConnector", "kv_both", kv_port=0).of_rank(2).kv_port == 0
    with pytest.raises(ConfigError, match="the port of engine 3 is above 65535"):
        KVTransferConfig("TcpConnector", "kv_both", kv_port=65533).of_rank(3)


def test_what_only_this_host_reaches():
    assert [name for name in ("127.0.0.1", "127.3.4.5", "::1", "localhost") if not is_loopback(name)] == []
    assert [name for name in ("0.0.0.0", "::", "10.0.0.1", "host", "") if is_loopback(name)] == []
