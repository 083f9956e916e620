"""Checkpoints whose weights are decoded at load: the numbers are those that their writers multiply with, whole and in
any shard; what is not supported is one line that names it."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from tessera.config import build_config
from tessera.config.checkpoint import read_checkpoint
from tessera.engine.plan import plan_here
from tessera.errors import ModelError
from tessera.layers.weights import Parameter
from tessera.loader.checkpoint import Safetensors
from tessera.loader.load import load_weights
from tessera.ops.quantize import meaning
from tessera.platform import KV_FP8, Part, StoredWeight
from tessera.platform.device import Arena
from tessera.plugins.extensions import weight_format
from tessera.testing.reference import host_device
from tests.platforms.cpu_kernels import needs_kernels
from tests.platforms.engine_run import PLATFORMS, EngineRun

WRITTEN = Path(__file__).parents[2] / "fixtures/packed_words"
KINDS = sorted(path.parent.name for path in WRITTEN.glob("*/config.json"))
ROUNDING = 1e-4  # of a log probability, in float32


def config_of(kind: str) -> dict[str, Any]:
    return dict(read_checkpoint(WRITTEN / kind, weights=False).config)


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, int]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    return {"mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner), "self_attn.k_proj": (kv, hidden)}


def part(name: str, rows: tuple[int, int] | None = None, columns: tuple[int, int] | None = None) -> Part:
    return Part(f"model.layers.0.{name}.weight", shapes(config_of("awq"))[name], rows, columns)


def load(folder: Path, weight: Part, config: dict[str, Any], dtype: str = "float32") -> Tensor:
    form = weight_format(config)
    assert form is not None
    return read(folder, {"weight": decoded(form.stored(weight, "Linear", dtype))}, dtype)["weight"]


def decoded(answer: StoredWeight | Part | str) -> Part:
    """What is read where no kernel multiplies with a weight as it is stored."""
    part = answer.decoded if isinstance(answer, StoredWeight) else answer
    assert isinstance(part, Part)
    return part


def read(folder: Path, parts: Mapping[str, Part], dtype: str) -> Mapping[str, Tensor]:
    parameter = Parameter({name: [part] for name, part in parts.items()}, lambda raw, into: raw)
    load_weights([parameter], Safetensors(str(folder)), dtype, host_device(), Arena("weights"), lambda _: None)
    return parameter.packed


@pytest.mark.parametrize("platform", ["reference", "cpu"])
@pytest.mark.parametrize("kind", KINDS)
def test_files_of_the_libraries_give_their_own_numbers(kind: str, platform: str) -> None:
    """Packed by the library whose format it is, and answered by transformers with the weights that it unpacks
    (tests/fixtures/packed_words)."""
    expected = load_file(WRITTEN / kind / "expected.safetensors")
    with EngineRun(WRITTEN / kind, platform) as run:
        vocab = run.engine.config.model.vocab_size
        key = run.add(expected["tokens"].tolist(), 1, prompt_logprobs=vocab)
        run.finish()
        ids, found = (np.concatenate([getattr(one, name) for one in run.scored[key]]) for name in ("ids", "logprobs"))
    placed = np.empty((len(ids), vocab), np.float32)
    np.put_along_axis(placed, ids[:, 1:].astype(np.int64), found[:, 1:], axis=1)
    wanted = expected["logits"].log_softmax(-1)[:-1].numpy()
    assert np.abs(placed - wanted).max() < ROUNDING < 0.01 < wanted.std()


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_is_the_library_s_own_to_the_last_bit(kind: str) -> None:
    config = config_of(kind)
    with safe_open(WRITTEN / kind / "expected.safetensors", "pt") as file:
        digests = file.metadata()
    for name, shape in shapes(config).items():
        dtype, expected = digests[f"model.layers.0.{name}.weight"].split()
        weight = load(WRITTEN / kind, Part(f"model.layers.0.{name}.weight", shape), config, dtype)
        assert hashlib.sha256((weight + 0.0).view(torch.uint8).numpy().tobytes()).hexdigest() == expected, name


@pytest.mark.parametrize("kind", KINDS)
def test_any_shard_is_the_shard_of_the_whole(kind: str) -> None:
    """Of rows and columns that no word and no group begins or ends with, and past the last row."""
    config, chance = config_of(kind), random.Random(5)
    for name, shape in shapes(config).items():
        weight = Part(f"model.layers.0.{name}.weight", shape)
        whole = load(WRITTEN / kind, weight, config)
        assert whole.shape == shape
        for _ in range(5):
            rows, columns = (tuple(sorted(chance.sample(range(size + 1), 2))) for size in shape)
            shard = load(WRITTEN / kind, replace(weight, rows=rows, columns=columns), config)
            assert torch.equal(shard, whole[slice(*rows), slice(*columns)]), (name, rows, columns)
        padded = load(WRITTEN / kind, replace(weight, rows=(shape[0] - 3, shape[0] + 2)), config)
        assert torch.equal(padded, torch.cat((whole[-3:], torch.zeros(2, shape[1]))))


AS_STORED = {"awq": "int4", "gptq-4": "int4", "gptq-4-symmetric": "int4", "gptq-8": "int8"}
"""What a Scheme has, by the files of the libraries."""


@pytest.mark.parametrize("kind", AS_STORED)
def test_what_stays_as_it_is_stored_means_what_is_decoded(kind: str) -> None:
    """To the last bit, whole, in shards that begin within words and groups, and in rows past the last."""
    config, chance = config_of(kind), random.Random(6)
    form = weight_format(config)
    assert form is not None
    for name, shape in shapes(config).items():
        weight = Part(f"model.layers.0.{name}.weight", shape)
        whole = load(WRITTEN / kind, weight, config)
        shards: list[tuple[Any, Any]] = [(None, None), ((shape[0] - 3, shape[0] + 2), None)]
        for _ in range(6):
            rows, columns = (sorted(chance.sample(range(size + 1), 2)) for size in shape)
            shards.append((tuple(rows), tuple(8 * one for one in sorted(chance.sample(range(shape[1] // 8 + 1), 2)))))
            shards.append((None, tuple(2 * (one // 2) for one in columns) if columns[1] - columns[0] > 1 else None))
        for rows, columns in shards:
            stored = form.stored(replace(weight, rows=rows, columns=columns), "Linear", "float32")
            assert isinstance(stored, StoredWeight)
            assert stored.scheme.weight.dtype == AS_STORED[kind]
            parts = read(WRITTEN / kind, stored.parts, "float32")
            expected = whole[slice(*(rows or (None,))), slice(*(columns or (None,)))]
            found = meaning(parts, stored.scheme)
            assert torch.equal(found[: len(expected)], expected), (name, rows, columns)
            assert not found[len(expected) :].any()
            assert stored.parts["weight"].numbers == found.numel()


@pytest.mark.parametrize("kind", ["gptq-2", "gptq-3", "gptq-4-permuted"])
def test_what_no_scheme_has_is_decoded(kind: str) -> None:
    form = weight_format(config_of(kind))
    assert form is not None
    assert isinstance(form.stored(part("mlp.up_proj"), "Linear", "bfloat16"), Part)


@needs_kernels
@pytest.mark.parametrize("kind", AS_STORED)
def test_the_cpu_multiplies_with_what_is_stored(kind: str) -> None:
    """In bfloat16, and with activations in int8: near the library's answers, and not equal."""
    expected = load_file(WRITTEN / kind / "expected.safetensors")
    with EngineRun(WRITTEN / kind, "cpu", dtype="bfloat16") as run:
        vocab = run.engine.config.model.vocab_size
        key = run.add(expected["tokens"].tolist(), 1, prompt_logprobs=vocab)
        run.finish()
        ids, found = (np.concatenate([getattr(one, name) for one in run.scored[key]]) for name in ("ids", "logprobs"))
        chosen = {one.chosen for one in plan_here(run.engine.config).choices if one.place.startswith("weights of")}
    assert all(one.startswith(f"{AS_STORED[kind]}, one scale per group of ") for one in chosen)
    placed = np.empty((len(ids), vocab), np.float32)
    np.put_along_axis(placed, ids[:, 1:].astype(np.int64), found[:, 1:], axis=1)
    apart = np.abs(placed - expected["logits"].log_softmax(-1)[:-1].numpy())
    assert ROUNDING < apart.mean() < 0.05


@pytest.mark.parametrize(
    ("kind", "packing"),
    [("gptq-4", "auto_gptq"), ("gptq-8", "auto_gptq"), ("gptq-4-symmetric", "gptqmodel"), ("awq", "auto_awq")],
)
def test_auto_round_names_the_packing_of_another_format(kind: str, packing: str) -> None:
    config, name = config_of(kind), "mlp.up_proj"
    whole = load(WRITTEN / kind, part(name), config)
    before = config["quantization_config"]
    config["quantization_config"] = {
        "quant_method": "auto-round", "packing_format": f"auto_round:{packing}", "data_type": "int", "bits": 2,
        "group_size": before["group_size"], "sym": before.get("sym", not before.get("zero_point", True)),
        "extra_config": {"up_proj": {"bits": before["bits"]}},
    }  # fmt: skip
    if packing == "auto_awq":
        config["quantization_config"]["bits"] = 4
    assert torch.equal(load(WRITTEN / kind, part(name), config), whole)


def test_the_second_version_stores_zero_points_as_they_are() -> None:
    config = config_of("gptq-4")
    first = load(WRITTEN / "gptq-4", part("mlp.up_proj"), config)
    config["quantization_config"]["checkpoint_format"] = "gptq_v2"
    second = load(WRITTEN / "gptq-4", part("mlp.up_proj"), config)
    scales = load_file(WRITTEN / "gptq-4/model.safetensors")["model.layers.0.mlp.up_proj.scales"].float()
    assert torch.allclose(second - first, scales.T.repeat_interleave(32, 1), atol=1e-6)


def test_symmetric_weights_do_not_depend_on_stored_zero_points() -> None:
    """Files exist whose zero points are those of the other version."""
    config = config_of("gptq-4-symmetric")
    whole = load(WRITTEN / "gptq-4-symmetric", part("mlp.up_proj"), config)
    config["quantization_config"]["checkpoint_format"] = "gptq_v2"
    assert torch.equal(load(WRITTEN / "gptq-4-symmetric", part("mlp.up_proj"), config), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_is_needed_whole_and_with_finite_scales(kind: str, tmp_path: Path) -> None:
    config = config_of(kind)
    name = "mlp.up_proj"
    weight = Part(f"model.layers.0.{name}.weight", shapes(config)[name])
    form = weight_format(config)
    assert form is not None
    answer = decoded(form.stored(weight, "Linear", "float32"))
    assert answer.decoding is not None
    whole = load_file(WRITTEN / kind / "model.safetensors")

    def refusal(tensors: dict[str, Tensor]) -> str:
        save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
        with pytest.raises(ModelError, match=".") as refused:
            load(tmp_path, weight, config)
        assert "\n" not in refused.value.message
        return refused.value.message

    for one in answer.decoding.parts:
        kept = {label: tensor for label, tensor in whole.items() if label != one.name}
        assert f"the checkpoint has no '{one.name}', which this" in refusal(kept)
        stored = whole[one.name]
        assert f"'{one.name}' " in refusal({**kept, one.name: torch.cat((stored.flatten(), stored.flatten()[:1]))})
        if stored.dtype.is_floating_point and not one.name.endswith(".weight"):
            broken = stored.clone()
            broken.view(-1)[-1] = float("nan")
            assert "use another copy" in refusal({**kept, one.name: broken})


WITHOUT_OFFSET = '{"quant_type": "nf4", "blocksize": 64, "shape": [56, 40], "nested_blocksize": 256, "nested_offset": '
STATES = {
    "": "quant_type null",
    "{": "quant_type null",
    "[1]": "quant_type null",
    "[" * 9999: "quant_type null",
    '{"quant_type": "nf4", "blocksize": 128}': "blocksize 128",
    '{"quant_type": "nf4", "blocksize": 64, "shape": [40, 56]}': "shape [40, 56]",
    WITHOUT_OFFSET + "NaN}": "offset",
    WITHOUT_OFFSET + '"1"}': "offset",
}


@pytest.mark.parametrize("text", STATES, ids=range(len(STATES)))
def test_states_that_do_not_describe_the_weight(text: str, tmp_path: Path) -> None:
    name, weight = "weight.quant_state.bitsandbytes__nf4", Part("model.layers.0.mlp.up_proj.weight", (56, 40))
    label, tensors = f"model.layers.0.mlp.up_proj.{name}", load_file(WRITTEN / "bnb-nf4/model.safetensors")
    tensors[label] = torch.tensor(list(text.encode() or b" "), dtype=torch.uint8)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ModelError, match=r"'model.layers.0.mlp.up_proj.weight.quant_state.bitsandbytes__nf4' has "
    ) as refused:
        load(tmp_path, weight, config_of("bnb-nf4"))
    assert STATES[text] in refused.value.message


def rewritten(kind: str, folder: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    tensors = load_file(WRITTEN / kind / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_groups_of_inputs_that_were_never_filled_are_in_order(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj.g_idx"
    config = config_of("gptq-4")
    whole = load(WRITTEN / "gptq-4", part("mlp.up_proj"), config)
    config["quantization_config"]["desc_act"] = True
    folder = rewritten("gptq-4", tmp_path, lambda tensors: tensors[name].zero_())
    assert torch.equal(load(folder, part("mlp.up_proj"), config), whole)
    for columns in ((32, 64), (40, 50)):  # a shard as wide as a group, and one within a group
        shard = load(folder, part("mlp.up_proj", None, columns), config)
        assert torch.equal(shard, whole[:, slice(*columns)])


def test_a_group_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj.g_idx"
    folder = rewritten("gptq-4-permuted", tmp_path, lambda tensors: tensors[name].fill_(3))
    with pytest.raises(ModelError, match=r"^'model.layers.0.mlp.up_proj.g_idx' names a group that is not among 3; use"):
        load(folder, part("mlp.up_proj"), config_of("gptq-4-permuted"))


def stored(said: dict[str, Any], name: str = "model.layers.0.mlp.up_proj") -> StoredWeight | Part | str:
    form = weight_format({"quantization_config": said})
    assert form is not None
    return form.stored(Part(f"{name}.weight", (160, 96)), "Linear", "bfloat16")


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
OPT = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
FP8_LAYER = {"model.layers.0.mlp.up_proj": {"quant_algo": "FP8"}}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


@pytest.mark.parametrize(
    ("said", "name", "why"),
    [
        (GPTQ, "lm_head", "does not quantize the head"),
        ({**OPT, "exclude_modules": ["lm_head"]}, "lm_head", "exclude_modules names it"),
        ({**OPT, "exclude_modules": ["*.mlp.up*"]}, "", "exclude_modules names it"),
        ({**OPT, "ignore": ["model.layers.0"]}, "", "ignore names it"),
        ({**OPT, "quant_algo": "MIXED_PRECISION", "quantized_layers": {}}, "", "quantized_layers does not name it"),
        (BNB, "lm_head", "llm_int8_skip_modules names it"),
        ({**BNB, "llm_int8_skip_modules": ["up_proj"]}, "", "llm_int8_skip_modules names it"),
        ({**BNB, "llm_int8_skip_modules": ["model.layers.0"]}, "", "llm_int8_skip_modules names it"),
        ({**BNB, "llm_int8_skip_modules": [r".*\.mlp"]}, "", "llm_int8_skip_modules names it"),
        (AWQ, "lm_head", "does not quantize the head"),
        ({**AWQ, "modules_to_not_convert": ["mlp"]}, "", "modules_to_not_convert names it"),
        ({**GPTQ, "modules_in_block_to_quantize": [["self_attn.q_proj"]]}, "", "does not name it"),
        ({**GPTQ, "dynamic": {r"-:.*\.up_proj": {}}}, "", "dynamic leaves it out"),
    ],
)
def test_weights_that_are_not_quantized(said: dict[str, Any], name: str, why: str) -> None:
    answer = stored(said, name or "model.layers.0.mlp.up_proj")
    assert isinstance(answer, str)
    assert why in answer


@pytest.mark.parametrize(
    ("said", "shape", "stands_for"),
    [
        (GPTQ, (12, 160), "gptq int4 in groups of 32"),
        ({**GPTQ, "group_size": -1}, (12, 160), "gptq int4 in one group"),
        ({**GPTQ, "lm_head": True}, (12, 160), "gptq int4 in groups of 32"),
        ({**GPTQ, "dynamic": {r"-:.*down.*": {}, r"+:.*up.*": {"bits": 8}}}, (24, 160), "gptq int8 in groups of 32"),
        ({**GPTQ, "dynamic": {r".*up.*": {"bits": 3, "group_size": 48}}}, (9, 160), "gptq int3 in groups of 48"),
        (AWQ, (96, 20), "awq int4 in groups of 32"),
        (OPT, (160, 48), "nvfp4 in groups of 16"),
        ({**OPT, "exclude_modules": ["model.layers.1*", "mlp"]}, (160, 48), "nvfp4 in groups of 16"),
        (BNB, (7680, 1), "bitsandbytes nf4 in blocks of 64"),
        ({**BNB, "llm_int8_skip_modules": ["model.layers.1", "mlp.up"]}, (7680, 1), "bitsandbytes nf4 in blocks of 64"),
    ],
)
def test_how_a_weight_is_stored(said: dict[str, Any], shape: tuple[int, int], stands_for: str) -> None:
    answer = decoded(stored(said))
    assert answer.decoding is not None
    assert answer.decoding.parts[0].whole == shape
    assert answer.decoding.stored == stands_for


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({**GPTQ, "bits": 5}, "bits in config.json is 5, which is not supported; it can be 2, 3, 4, 8"),
        ({**GPTQ, "checkpoint_format": "marlin"}, 'checkpoint_format in config.json is "marlin"'),
        ({**GPTQ, "group_size": 0}, "group_size in config.json is 0, which is not supported; it can be -1 or 1 to"),
        ({**GPTQ, "sym": "yes"}, 'sym in config.json is "yes"'),
        ({**GPTQ, "dynamic": []}, None),
        ({**GPTQ, "dynamic": [1]}, "dynamic in config.json is"),
        ({**GPTQ, "dynamic": {"+:(": {}}}, "has a pattern that cannot be used"),
        ({**GPTQ, "modules_in_block_to_quantize": [3]}, "is not a list of names"),
        ({**AWQ, "version": "gemv"}, 'version in config.json is "gemv", which is not supported; it can be gemm'),
        ({**AWQ, "bits": 8}, "bits in config.json is 8"),
        ({**OPT, "quant_algo": "NVFP4_AWQ"}, 'quant_algo in config.json is "NVFP4_AWQ"'),
        ({**OPT, "group_size": 32}, "group_size in config.json is 32, which is not supported; it can be 16"),
        ({**OPT, "kv_cache_quant_algo": "NVFP4"}, 'kv_cache_quant_algo in config.json is "NVFP4"'),
        (
            {**OPT, "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": 3}},
            "quantized_layers.a in config.json is",
        ),
        ({**BNB, "load_in_8bit": True}, "load_in_4bit in config.json is true, which is not supported; it or"),
        ({**BNB, "load_in_4bit": False}, "load_in_4bit in config.json is false, which is not supported; it or"),
        ({**BNB, "bnb_4bit_quant_type": "int4"}, 'bnb_4bit_quant_type in config.json is "int4"'),
        ({**BNB, "bnb_4bit_quant_storage": "bfloat16"}, 'bnb_4bit_quant_storage in config.json is "bfloat16"'),
        ({**BNB, "llm_int8_skip_modules": ["("]}, "has a pattern that cannot be used"),
    ],
)
def test_settings_that_are_not_supported_are_named(said: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert isinstance(stored(said), StoredWeight)
        return
    with pytest.raises(ModelError, match=".") as refused:
        stored(said)
    assert message in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    "said", [{**OPT, "quant_algo": "FP8"}, {**OPT, "quant_algo": "MIXED_PRECISION", "quantized_layers": FP8_LAYER}]
)
def test_fp8_of_model_optimizer_is_fp8_with_one_scale(said: dict[str, Any]) -> None:
    same = stored({"quant_method": "fp8", "activation_scheme": "static"})
    answer = stored(said)
    assert isinstance(answer, StoredWeight)
    assert answer == same
    form = weight_format({"quantization_config": {**said, "kv_cache_quant_algo": "FP8"}})
    assert form is not None
    assert form.kv == KV_FP8
    assert form.kv_scales("a")["v_scale"].name == "a.v_proj.v_scale"


def test_settings_in_a_file_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(WRITTEN / "modelopt-nvfp4", folder)
    (folder / "hf_quant_config.json").write_text('{"quantization": []}')
    with pytest.raises(ModelError, match="hf_quant_config.json' has no object named quantization"):
        read_checkpoint(folder, weights=False)
    (folder / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "W4A8_AWQ"}}')
    with pytest.raises(ModelError, match='quant_algo in config.json is "W4A8_AWQ", which is not supported'):
        read_checkpoint(folder, weights=False)


@pytest.mark.parametrize("said", [{**GPTQ, "group_size": 36}, {**AWQ, "group_size": 36}])
def test_a_group_that_does_not_divide_the_inputs(said: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"group_size \(36\) does not divide the 96 inputs of 'model.layers.0"):
        stored(said)


@pytest.mark.parametrize(
    "kind", ["gptq-4-permuted", "awq", "bnb-nf4", "bnb-int8", "modelopt-mixed", "ct-nvfp4", "ct-4-permuted"]
)
def test_random_weights_of_the_same_form(kind: str) -> None:
    with EngineRun(WRITTEN / kind, "reference", load_format="dummy") as run:
        key = run.add([1, 2, 3], 4)
        run.finish()
        assert len(run.answers[key]) == 4


def test_the_plan_says_how_weights_are_stored() -> None:
    config = build_config(str(WRITTEN / "awq"), skip_tokenizer_init=True, platform=PLATFORMS["reference"])
    chosen = {choice.chosen: choice.place for choice in plan_here(config).choices if choice.what == "quantization"}
    assert chosen["awq int4 in groups of 32, decoded to bfloat16"] == "weights of 4 products"
