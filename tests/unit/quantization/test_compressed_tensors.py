"""quantization_config of compressed-tensors: which weights are quantized, what is read for a shard, what is refused."""

from __future__ import annotations

import copy
import json
import time

import pytest
import torch

from tessera.errors import ModelError
from tessera.platform import KV_FP8, ActSpec, Part, QuantSpec, Scheme, StoredWeight, TensorSpec
from tessera.quantization.formats import patterns as module_of_patterns
from tessera.quantization.formats.compressed_tensors import compressed_tensors

INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False, "observer": "mse"}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True, "actorder": "static"}
FP8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}
KV = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
STATIC = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}


def config(form="pack-quantized", weights=INT4, activations=None, **differs):
    group = {"targets": ["Linear"], "weights": dict(weights), "input_activations": activations}
    said = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}
    return json.loads(json.dumps({**said, "ignore": ["lm_head"], "quantization_status": "frozen", **differs}))


W8A8, W4A16, FP8_STATIC = config("int-quantized", INT8, TOKEN), config(), config("float-quantized", FP8, STATIC)


def stored(said, weight=None, module="Linear", dtype="bfloat16"):
    return compressed_tensors(said).stored(weight or Part("a.q_proj.weight", (42, 96)), module, dtype)


def read(said, weight=None):
    """Names, shapes and dtypes of what is read, by the part of the scheme."""
    found = stored(said, weight)
    return {part: (one.name, one.shape, one.dtype, one.length) for part, one in found.parts.items()}


# ---- meaning and parts


def test_int8_is_the_scheme_that_kernels_of_int8_take():
    parts = {"weight": TensorSpec("int8", (1, 1)), "scale": TensorSpec("float32", (1,))}
    expected = Scheme(QuantSpec("int8", "channel"), ActSpec("int8", granularity="token"), parts=parts)
    assert stored(W8A8).scheme == expected
    assert read(W8A8) == {
        "weight": ("a.q_proj.weight", (42, 96), "int8", 42),
        "scale": ("a.q_proj.weight_scale", (42, 1), "float32", 42),
    }


def test_int4_is_the_scheme_that_kernels_of_int4_take_with_scales_of_the_model_s_dtype():
    parts = {"weight": TensorSpec("uint8", (1, 2)), "scale": TensorSpec("bfloat16", (1, 32))}
    assert stored(W4A16).scheme == Scheme(QuantSpec("int4", "group", 32, scale_dtype="bfloat16"), parts=parts)
    assert stored(W4A16, dtype="float32").scheme.weight.scale_dtype == "float32"
    assert read(W4A16) == {
        "weight": ("a.q_proj.weight_packed", (42, 12), "int32", 42),
        "scale": ("a.q_proj.weight_scale", (42, 3), "bfloat16", 42),
    }


def test_zero_points_are_packed_along_the_outputs():
    said = config(weights={**INT4, "symmetric": False})
    assert stored(said).scheme.weight.symmetric is False
    assert stored(said).scheme.parts["zero_point"] == TensorSpec("int8", (1, 32))
    assert read(said)["zero_point"] == ("a.q_proj.weight_zero_point", (6, 3), "int32", 42)
    shard = Part("a.q_proj.weight", (42, 96), rows=(10, 30))
    assert read(said, shard)["zero_point"] == ("a.q_proj.weight_zero_point", (3, 3), "int32", 20)


def test_fp8_with_one_scale_each_for_weights_and_inputs():
    found = stored(FP8_STATIC).scheme
    assert found.weight == QuantSpec("fp8_e4m3", "channel")
    assert found.activation == ActSpec("fp8_e4m3", granularity="tensor", static=True)
    assert read(FP8_STATIC) == {
        "weight": ("a.q_proj.weight", (42, 96), "float8_e4m3fn", 42),
        "scale": ("a.q_proj.weight_scale", (1,), "float32", 42),
        "input_scale": ("a.q_proj.input_scale", (1,), "float32", 1),
    }


def test_a_scale_for_each_output_in_4_bits_is_a_group_of_all_inputs():
    said = config(weights={**INT4, "strategy": "channel", "group_size": None})
    assert stored(said).scheme.weight.group == 96
    assert stored(said, Part("a.q_proj.weight", (42, 96), columns=(48, 96))).scheme.weight.group == 48
    assert read(said)["scale"][1] == (42, 1)


def test_a_group_of_more_inputs_than_there_are_is_one_of_all():
    said = differing(f"{WEIGHTS}.group_size", 128)
    assert stored(said).scheme.weight.group == 96
    assert read(said)["scale"][1] == (42, 1)


@pytest.mark.parametrize(
    ("columns", "group", "words", "scales"),
    [((0, 48), 16, (0, 6), (0, 2)), ((48, 96), 16, (6, 12), (1, 3)), ((32, 64), 32, (4, 8), (1, 2))],
)
def test_a_shard_that_cuts_groups_has_smaller_ones(columns, group, words, scales):
    found = stored(W4A16, Part("a.down_proj.weight", (42, 96), columns=columns))
    assert found.scheme.weight.group == group
    assert (found.parts["weight"].columns, found.parts["scale"].columns) == (words, scales)


def test_numbers_of_the_model_are_counted_once():
    for said in (W8A8, W4A16, FP8_STATIC, config(weights={**INT4, "symmetric": False})):
        shard = Part("a.q_proj.weight", (42, 96), rows=(0, 21), columns=(0, 32))
        assert sum(part.numbers for part in stored(said, shard).parts.values()) == 21 * 32


def test_other_names_of_a_weight_are_other_names_of_its_parts():
    weight = Part("model.a.q_proj.weight", (42, 96), also=("a.q_proj.weight",))
    assert stored(W4A16, weight).parts["scale"].also == ("a.q_proj.weight_scale",)


# ---- targets and ignore


NOT_LINEAR = "this format quantizes the weights of Linear layers only"


def groups(*targets, ignore=()):
    """A group a target, told apart by their sizes: 8, 16, 32."""
    said = config(ignore=list(ignore))
    made = said["config_groups"].pop("group_0")
    for number, target in enumerate(targets):
        one = copy.deepcopy(made)
        one["targets"], one["weights"]["group_size"] = [target], 8 << number
        said["config_groups"][f"group_{number}"] = one
    return compressed_tensors(said)


def size_of(form, name, module="Linear"):
    found = form.stored(Part(f"{name}.weight", (8, 96)), module, "float32")
    return found.scheme.weight.group if isinstance(found, StoredWeight) else found


def test_a_name_comes_before_a_pattern_and_a_pattern_before_a_class():
    form = groups("Linear", r"re:.*\.mlp\..*", "model.layers.0.mlp.up_proj")
    assert size_of(form, "model.layers.0.self_attn.q_proj") == 8
    assert size_of(form, "model.layers.0.mlp.gate_proj") == 16
    assert size_of(form, "model.layers.0.mlp.up_proj") == 32


@pytest.mark.parametrize("ignored", ["model.layers.0.mlp.up_proj", "re:.*up_proj$", "re:model.layers.0", "Linear"])
def test_what_is_ignored_stays_as_it_is(ignored):
    form = groups("Linear", ignore=[ignored])
    assert size_of(form, "model.layers.0.mlp.up_proj") == "quantization_config.ignore names it"


def test_a_pattern_matches_the_beginning_of_a_name():
    form = groups("re:layers.0", "re:.*layers.1")
    assert "no targets" in size_of(form, "model.layers.0.mlp.up_proj")
    assert size_of(form, "model.layers.1.mlp.up_proj") == 16


@pytest.mark.parametrize("module", ["Embedding", "Conv1D"])
@pytest.mark.parametrize("target", ["Linear", "model.embed_tokens", "re:.*"])
def test_weights_of_other_classes_are_not_quantized(module, target):
    """A tied head is the embedding's table."""
    assert size_of(groups(target), "model.embed_tokens", module) == NOT_LINEAR


def test_experts_in_one_tensor_are_not_linear():
    assert stored(W4A16, Part("experts.gate_up_proj", (4, 84, 96))) == NOT_LINEAR


def test_a_linear_layer_within_a_module_is_named_by_the_module():
    form = groups("Linear", ignore=["model.layers.0.mlp.up_proj.linear"])
    assert size_of(form, "model.layers.0.mlp.up_proj") == "quantization_config.ignore names it"
    assert size_of(form, "model.layers.0.mlp.down_proj") == 8


# ---- decoded at load


@pytest.mark.parametrize(
    ("said", "stored_as", "names"),
    [
        (config(weights={**INT4, "num_bits": 3}), "int3 in groups of 32", ["weight_packed", "weight_scale"]),
        (
            config(weights={**INT4, "actorder": "group"}),
            "int4 in groups of 32",
            ["weight_packed", "weight_scale", "weight_g_idx"],
        ),
        (
            config("int-quantized", {**INT8, "symmetric": False}, TOKEN),
            "int8 with one scale per row",
            ["weight", "weight_scale", "weight_zero_point"],
        ),
        (config("int-quantized", INT8, {**TOKEN, "symmetric": False}), "int8 with one scale per row", []),
        (config("int-quantized", INT8, {**TOKEN, "num_bits": 4}), "int8 with one scale per row", []),
        (config("int-quantized", INT8, {**TOKEN, "strategy": "tensor"}), "int8 with one scale per row", []),
        (
            config("int-quantized", {**INT8, "strategy": "tensor"}, {**TOKEN, "num_bits": 4}),
            "int8 with one scale",
            [],
        ),
        (
            config("int-quantized", {**INT8, "strategy": "block", "block_structure": [16, 32]}),
            "int8 in blocks of 16 x 32",
            ["weight", "weight_scale"],
        ),
        (config("float-quantized", {**FP8, "strategy": "group", "group_size": 48}), "fp8 in groups of 48", []),
    ],
)
def test_what_no_scheme_has_is_decoded(said, stored_as, names):
    answer = stored(said)
    assert isinstance(answer, Part)
    assert answer.decoding.stored == stored_as
    if names:
        assert [part.name for part in answer.decoding.parts] == [f"a.q_proj.{name}" for name in names]


def test_scales_of_blocks_are_of_the_whole_weight():
    said = config("int-quantized", {**INT8, "strategy": "block", "block_structure": [16, 32]})
    shard = Part("a.q_proj.weight", (42, 96), (10, 30), (40, 80))
    scale = stored(said, shard).decoding.parts[1]
    assert (scale.whole, scale.rows, scale.columns) == ((3, 3), (0, 2), (1, 3))
    values = torch.arange(1, 9).repeat(20, 5).to(torch.int8)
    scales = torch.tensor([[1.0, 2.0], [4.0, 8.0]])
    decoded = stored(said, shard).decoding.call(values, scales)
    expected = values.float() * scales[[*[0] * 6, *[1] * 14]][:, [*[0] * 24, *[1] * 16]]
    assert torch.equal(decoded, expected)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -float("inf")])
def test_scales_that_are_not_finite_are_one_line(scale):
    decoding = stored(config(weights={**INT4, "num_bits": 8, "actorder": "group"})).decoding
    words, scales, order = torch.zeros(42, 24, dtype=torch.int32), torch.ones(42, 3), torch.zeros(96, dtype=torch.int32)
    scales[7, 1] = scale
    with pytest.raises(ModelError, match=r"^'a.q_proj.weight_scale' has scales that are not finite; use "):
        decoding.call(words, scales, order)


# ---- keys and values


def test_scales_of_keys_and_values_are_those_of_each_layer():
    form = compressed_tensors({**W4A16, "kv_cache_scheme": KV})
    assert form.kv == KV_FP8
    found = form.kv_scales("model.layers.3.self_attn")
    assert {name: (part.name, part.whole, part.dtype, part.numbers) for name, part in found.items()} == {
        "k_scale": ("model.layers.3.self_attn.k_scale", (1,), "float32", 0),
        "v_scale": ("model.layers.3.self_attn.v_scale", (1,), "float32", 0),
    }
    assert found["v_scale"].also == ("model.layers.3.self_attn.v_proj.output_scale",)
    assert (compressed_tensors(W4A16).kv, compressed_tensors(W4A16).kv_scales("a")) == (None, {})


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_no_positive_number_is_one_line(scale):
    part = compressed_tensors({**W4A16, "kv_cache_scheme": KV}).kv_scales("a")["k_scale"]
    with pytest.raises(ModelError, match=r"^'a\.k_scale' is .* where a positive number is needed; use another copy\.$"):
        part.unpacking.call(torch.tensor([scale]))


@pytest.mark.parametrize("value", [8, "float", []])
def test_a_scheme_of_keys_and_values_that_is_no_object_is_one_line(value):
    with pytest.raises(ModelError, match=r"kv_cache_scheme in config.json is not an object"):
        compressed_tensors({**W4A16, "kv_cache_scheme": value})


# ---- refused


def differing(path, value, said=W4A16):
    said = copy.deepcopy(said)
    *way, last = path.split(".")
    place = said
    for name in way:
        place = place[name]
    place[last] = value
    return said


WEIGHTS, INPUTS = "config_groups.group_0.weights", "config_groups.group_0.input_activations"
OF_W8A8 = {
    f"{WEIGHTS}.num_bits": 9,
    f"{WEIGHTS}.symmetric": 0,
    f"{WEIGHTS}.strategy": "token",
    f"{WEIGHTS}.actorder": "group",
    f"{INPUTS}.num_bits": 5,
    f"{INPUTS}.symmetric": "no",
    f"{INPUTS}.strategy": "every",
    f"{INPUTS}.type": "bool",
}
OF_W4A16 = {
    "format": "mxfp6-pack-quantized",
    "kv_cache_scheme.num_bits": 4,
    "kv_cache_scheme.type": "int",
    "kv_cache_scheme.symmetric": False,
    "kv_cache_scheme.dynamic": True,
    "kv_cache_scheme.strategy": "token",
    "transform_config": {"config_groups": {"u": {}}},
    "sparsity_config.format": "sparse-24-bitmask",
    "config_groups.group_0.format": "marlin-24",
    "config_groups.group_0.targets": ["LlamaAttention"],
    "config_groups.group_0.output_activations": {"num_bits": 8},
    f"{WEIGHTS}.num_bits": 1,
    f"{WEIGHTS}.type": "float",
    f"{WEIGHTS}.strategy": "block",
    f"{WEIGHTS}.dynamic": True,
    f"{WEIGHTS}.actorder": "column",
    f"{WEIGHTS}.group_size": 0,
}


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [(path, value, W8A8) for path, value in OF_W8A8.items()]
    + [
        (path, value, {**W4A16, "sparsity_config": {}, "kv_cache_scheme": dict(KV)}) for path, value in OF_W4A16.items()
    ],
    ids=[*(f"w8a8-{path}" for path in OF_W8A8), *OF_W4A16],
)
def test_what_is_not_supported_is_refused_by_the_name_of_the_field(path, value, said):
    with pytest.raises(ModelError) as raised:
        stored(differing(path, value, said))
    assert f"quantization_config.{path} in config.json" in raised.value.message
    assert "not supported" in raised.value.message
    assert "\n" not in raised.value.message
    assert raised.value.exit_code == 3


BROKEN = [
    ("config_groups", None, "quantization_config.config_groups in config.json is not an object"),
    ("config_groups", {}, "quantization_config.config_groups in config.json has 0 groups, not 1 to 1,000."),
    (
        "config_groups",
        {str(n): {} for n in range(1001)},
        "config_groups in config.json has 1,001 groups, not 1 to 1,000.",
    ),
    ("config_groups", {"a\n" * 100: {}}, "a?.weights in config.json is not an object"),
    ("config_groups", {"group_0": ["Linear"]}, "config_groups.group_0 in config.json is not an object"),
    (WEIGHTS, None, "group_0.weights in config.json is not an object"),
    (INPUTS, 8, "group_0.input_activations in config.json is not an object"),
    ("config_groups.group_0.targets", "Linear", "group_0.targets in config.json is not a list of strings"),
    ("ignore", [1], "quantization_config.ignore in config.json is not a list of strings"),
    ("ignore", ["re:("], "ignore in config.json has a pattern that cannot be used: ("),
    ("ignore", ["re:" + "a" * 2000], "ignore in config.json has a pattern that cannot be used: ..."),
    ("ignore", ["re:" + "(" * 900 + ")" * 900], "ignore in config.json has a pattern that cannot be used: ..."),
    (f"{WEIGHTS}.num_bits", True, "num_bits in config.json is true, which is not supported; it can be 2, 3, 4, 5,"),
    (f"{WEIGHTS}.num_bits", [4], "num_bits in config.json is [4], which is not supported; it can be 2, 3, 4, 5,"),
    (f"{WEIGHTS}.group_size", 2**40, "is 1099511627776, which is not supported; a group has 1 to 1,048,576 inputs."),
    (f"{WEIGHTS}.group_size", 32.0, "is 32.0, which is not supported; a group has 1 to 1,048,576 inputs."),
    (f"{WEIGHTS}.group_size", -7, "is -7, which is not supported; a group has 1 to 1,048,576 inputs."),
    (f"{WEIGHTS}.group_size", 40, "weights.group_size (40) does not divide the 96 inputs of 'a.q_proj'."),
]


@pytest.mark.parametrize(("path", "value", "message"), BROKEN)
def test_what_cannot_be_right_is_one_line(path, value, message):
    with pytest.raises(ModelError) as raised:
        stored(differing(path, value))
    assert message in raised.value.message
    assert "\n" not in raised.value.message
    assert len(raised.value.message) < 250


TOO_LONG = "quantization_config.ignore in config.json has patterns that take too long to match: "


def test_a_pattern_that_takes_for_ever_is_stopped(monkeypatch):
    monkeypatch.setattr(module_of_patterns, "MATCHING_SECONDS", 0.2)
    began = time.process_time()
    with pytest.raises(ModelError, match=TOO_LONG):
        stored(differing("ignore", [r"re:(x|x|x)+[^x]"]), Part("x" * 100 + ".weight", (42, 96)))
    assert time.process_time() - began < 10


def test_slow_patterns_are_stopped_by_what_they_take_together(monkeypatch):
    """Each name takes about a millisecond."""
    monkeypatch.setattr(module_of_patterns, "MATCHING_SECONDS", 0.2)
    form = compressed_tensors(differing("ignore", [r"re:(x|x)+[^x]$", "lm_head"]))

    def all_names():
        for number in range(10_000):
            form.stored(Part(f"{'x' * 12}{number:05}.weight", (42, 96)), "Linear", "float32")

    with pytest.raises(ModelError, match=TOO_LONG):
        all_names()


def test_many_patterns_are_stopped_before_all_are_compiled(monkeypatch):
    monkeypatch.setattr(module_of_patterns, "MATCHING_SECONDS", 0.2)
    with pytest.raises(ModelError, match=TOO_LONG):
        compressed_tensors(differing("ignore", [f"re:a{number}(b|c)*" for number in range(10_000)]))


@pytest.mark.parametrize(("columns", "advice"), [(None, "."), ((3, 6), "; use another --tensor-parallel-size.")])
def test_4_bit_groups_of_an_odd_size_are_refused(columns, advice):
    config = differing(f"{WEIGHTS}.group_size", 3)
    with pytest.raises(ModelError) as raised:
        stored(config, Part("a.weight", (4, 6), columns=columns))
    assert raised.value.message.startswith("'a' has a 4-bit scale for 3 of ")
    assert raised.value.message.endswith(f"only even numbers of inputs are supported{advice}")
