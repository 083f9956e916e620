"""quantization_config of the format fp8: which weights are quantized, what is read for a shard, what is refused."""

from __future__ import annotations

import pytest

from tessera.errors import ModelError
from tessera.platform import ActSpec, Part, QuantSpec, Scheme, StoredWeight, TensorSpec
from tessera.quantization.formats.fp8 import fp8

BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
STATIC = {"quant_method": "fp8", "activation_scheme": "static"}


def stored(said, name="model.layers.0.mlp.up_proj", module="Linear", shape=(300, 200)):
    return fp8(said).stored(Part(f"{name}.weight", shape), module, "bfloat16")


def read(said):
    """Names, shapes, dtypes and other names of what is read, by the part of the scheme."""
    found = stored(said, "up").parts
    return {part: (one.name, one.shape, one.dtype, one.also) for part, one in found.items()}


def test_blocks_of_weights_and_groups_of_activations():
    parts = {"weight": TensorSpec("float8_e4m3fn", (1, 1)), "scale": TensorSpec("float32", (128, 128))}
    groups = ActSpec("fp8_e4m3", granularity="group", group=128)
    assert stored(BLOCKS).scheme == Scheme(QuantSpec("fp8_e4m3", "block", block=(128, 128)), groups, parts=parts)
    assert read(BLOCKS) == {
        "weight": ("up.weight", (300, 200), "float8_e4m3fn", ()),
        "scale": ("up.weight_scale_inv", (3, 2), "float32", ()),
    }


@pytest.mark.parametrize(
    ("said", "activation"),
    [
        ({**STATIC, "activation_scheme": "dynamic"}, ActSpec("fp8_e4m3", granularity="token")),
        ({"weight_block_size": None}, ActSpec("fp8_e4m3", granularity="token")),
        (STATIC, ActSpec("fp8_e4m3", granularity="tensor", static=True)),
    ],
)
def test_one_scale_for_the_weight(said, activation):
    found = stored(said).scheme
    assert (found.weight, found.activation) == (QuantSpec("fp8_e4m3", "channel"), activation)
    assert ("input_scale" in found.parts) == activation.static


def test_older_and_newer_names_of_single_scales():
    assert read(STATIC) == {
        "weight": ("up.weight", (300, 200), "float8_e4m3fn", ()),
        "scale": ("up.weight_scale", (1,), "float32", ("up.weight_scale_inv",)),
        "input_scale": ("up.input_scale", (1,), "float32", ("up.activation_scale",)),
    }


def test_numbers_of_the_model_are_counted_once():
    for said in (BLOCKS, STATIC):
        assert sum(part.numbers for part in stored(said).parts.values()) == 300 * 200


@pytest.mark.parametrize("field", ["modules_to_not_convert", "ignored_layers"])
@pytest.mark.parametrize(
    ("entry", "left"),
    [
        ("model.layers.0.mlp.up_proj", True),
        ("model.layers.0.mlp", True),
        ("up_proj", True),
        ("mlp.up_proj", True),
        ("layers.0", True),
        ("model.layers.0.mlp.up", False),
        ("model.layers.1", False),
        ("proj", False),
    ],
)
def test_what_is_not_converted_stays_as_it_is(field, entry, left):
    found = stored({**BLOCKS, field: ["other", entry]})
    assert found == f"quantization_config.{field} names it" if left else isinstance(found, StoredWeight)


def test_only_linear_layers_and_no_head():
    assert stored(BLOCKS, "lm_head") == "this format does not quantize the head"
    not_linear = "this format quantizes the weights of Linear layers only"
    assert stored(BLOCKS, "model.embed_tokens", "Embedding") == not_linear  # a tied head
    assert stored(BLOCKS, "h.0.c_fc", "Conv1D") == not_linear
    assert stored(BLOCKS, "experts.gate_up_proj", shape=(4, 84, 96)) == not_linear


REFUSED = [
    ("fmt", "e5m2", 'is "e5m2", which is not supported; it can be "e4m3".'),
    ("fmt", ["e4m3"], 'is ["e4m3"], which is not supported; it can be "e4m3".'),
    ("scale_fmt", "e8", 'is "e8", which is not supported; it can be "float", "ue8m0".'),
    ("activation_scheme", "static", 'is "static", which is not supported; it can be "dynamic".'),
    ("activation_scheme", True, 'is true, which is not supported; it can be "dynamic".'),
    *(
        ("weight_block_size", value, "it can be two numbers, of outputs and inputs, from 1 to 1,048,576.")
        for value in (128, [128], [1, 2, 3], [0, 128], [128, -1], [128, 2**40], [128.0, 128], [True, 1], "ab", {}, [])
    ),
    ("modules_to_not_convert", "lm_head", "is not a list of strings."),
    ("modules_to_not_convert", [1], "is not a list of strings."),
    ("ignored_layers", {"a": 1}, "is not a list of strings."),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "message"), REFUSED)
def test_what_is_not_supported_is_one_line(name, value, message):
    with pytest.raises(ModelError) as raised:
        fp8({**BLOCKS, name: value})
    assert raised.value.message.startswith(f"quantization_config.{name} in config.json ")
    assert raised.value.message.endswith(message)
    assert "\n" not in raised.value.message
    assert len(raised.value.message) < 250
    assert raised.value.exit_code == 3


@pytest.mark.parametrize("said", [[], "fp8", 8])
def test_a_config_that_is_no_object_is_one_line(said):
    with pytest.raises(ModelError, match="quantization_config in config.json is not an object"):
        fp8(said)
