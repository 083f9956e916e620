"""The format auto-round: which packing a layer has, and which layers have none."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.errors import ModelError
from tessera.platform.quantization import Decoding, Part, StoredWeight
from tessera.quantization.formats.auto_round import auto_round
from tessera.quantization.formats.awq import awq
from tessera.quantization.formats.gptq import gptq

CONFIG: dict[str, Any] = {
    "quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True, "data_type": "int",
    "packing_format": "auto_round:auto_gptq", "block_name_to_quantize": "model.layers,model.extra",
}  # fmt: skip
NAME = "model.layers.3.mlp.up_proj"
WEIGHT = Part(f"{NAME}.weight", (64, 96))


def stored(name: str = NAME, **changes: Any) -> Any:
    return auto_round({**CONFIG, **changes}).stored(Part(f"{name}.weight", (64, 96)), "Linear", "bfloat16")


def decoding_of(answer: Any) -> Decoding:
    weight = answer.decoded if isinstance(answer, StoredWeight) else answer
    assert isinstance(weight, Part)
    assert weight.decoding is not None
    return weight.decoding


def described(**settings: Any) -> tuple[str, list[str]]:
    """How gptq stores the weight."""
    decoding = decoding_of(gptq({"quant_method": "gptq", **settings}).stored(WEIGHT, "Linear", "bfloat16"))
    return decoding.stored, [one.name for one in decoding.parts]


def of_layer(**changes: Any) -> tuple[str, list[str]]:
    decoding = decoding_of(stored(**changes))
    return decoding.stored, [one.name for one in decoding.parts]


def test_a_layer_is_packed_as_gptq_or_awq_packs_it() -> None:
    assert of_layer() == described(bits=4, group_size=32, sym=True)
    assert of_layer(sym=False, bits=2) == described(bits=2, group_size=32, sym=False)
    awq_stored = awq({"bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}).stored(
        WEIGHT, "Linear", "bfloat16"
    )
    found = stored(packing_format="auto_round:auto_awq", sym=False)
    assert decoding_of(found).parts == decoding_of(awq_stored).parts


def test_layers_have_settings_of_their_own() -> None:
    """By name, or else by the first part of a name or pattern that fits."""
    extra = {
        ".*(up|gate)_proj": {"bits": 8},
        "self_attn": {"bits": 2, "group_size": 16},
        "mlp": {"bits": 4, "group_size": 48},
        NAME: {"bits": 3, "sym": False},
        "model.layers.5.mlp.down_proj": {"bits": 16, "data_type": "float"},
        "lm_head": {"bits": 8},
    }
    assert of_layer(extra_config=extra) == described(bits=3, group_size=32, sym=False)
    for name, kind in (
        ("model.layers.4.mlp.up_proj", "gptq int8 in groups of 32"),
        ("model.layers.4.self_attn.q_proj", "gptq int2 in groups of 16"),
        ("model.layers.4.mlp.down_proj", "gptq int4 in groups of 48"),
        ("lm_head", "gptq int8 in groups of 32"),
    ):
        assert decoding_of(stored(name, extra_config=extra)).stored == kind, name
    assert stored("model.layers.5.mlp.down_proj", extra_config=extra) == (
        "quantization_config.extra_config leaves it out"
    )


@pytest.mark.parametrize("blocks", ["model.layers", ["model.layers"], [["model.layers.0", "model.layers.3"]], None])
def test_layers_outside_of_the_blocks_are_not_quantized(blocks: Any) -> None:
    assert of_layer(block_name_to_quantize=blocks)
    reason = "quantization_config.block_name_to_quantize does not name it"
    assert stored("lm_head", block_name_to_quantize=blocks) == reason
    assert stored("model.vision.fc1", block_name_to_quantize=blocks) == reason


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"packing_format": "auto_round:marlin"}, "quantization_config.packing_format"),
        ({"data_type": "mx_fp"}, "quantization_config.data_type"),
        ({"bits": 5}, "quantization_config.bits"),
        ({"bits": None}, "quantization_config.bits"),
        ({"act_bits": 8}, "quantization_config.act_bits"),
        ({"group_size": "many"}, "quantization_config.group_size"),
        ({"group_size": 0}, "quantization_config.group_size"),
        ({"block_name_to_quantize": 3}, "quantization_config.block_name_to_quantize"),
        ({"extra_config": [1]}, "quantization_config.extra_config"),
        ({"extra_config": {"a": 4}}, "quantization_config.extra_config.a"),
        (
            {"extra_config": {"(": {"bits": 8}}},
            "quantization_config.extra_config in config.json has a pattern that cannot be used",
        ),
        ({"modules_to_not_convert": ["lm_head"]}, "quantization_config.modules_to_not_convert"),
        ({"packing_format": "auto_round:auto_awq", "bits": 3}, "quantization_config.bits"),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=rf"^{message.replace('.', '[.]')}"):
        stored(**changes)
