"""Checkpoints that are quantized already: the numbers are those that the files stand for, on every platform and number
of ranks; what is broken is one line."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tessera import LLM, SamplingParams
from tessera.engine.plan import plan_here
from tessera.errors import ConfigError, ModelError, PlatformError
from tests.engine.platforms.test_quantization import QUESTIONS, apart, scored
from tests.platforms.cpu_kernels import needs_kernels
from tests.platforms.engine_run import EngineRun
from tests.platforms.packed_models import FP8_KINDS, save_fp8, save_packed, save_words
from tests.platforms.tiny_models import save_family

ROOT = Path(__file__).parents[3]
WRITTEN = ROOT / "tests/fixtures/compressed_tensors"
WEIGHTS_ALONE = ("w4a16", "w4a16-asymmetric", "w4a16-channel", "w8a16", "fp8-weights", "fp8-block-weights")
NATIVE = ("w8a8", "w4a16", "w4a16-asymmetric", "w4a16-channel", "w8a16")
ROUNDING = 1e-4  # of a log probability, in float32
Packed = Callable[..., tuple[Path, Path]]


@pytest.fixture(autouse=True)
def children_find_tessera(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "core"), str(ROOT / "platforms/cpu")]))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """packed("llama", "w4a16"): the packed model, and the one that it stands for."""
    made: dict[Any, tuple[Path, Path]] = {}

    def make(family: str, kind: str, ignore: tuple[str, ...] = ("lm_head",), **differs: Any) -> tuple[Path, Path]:
        key = family, kind, ignore, tuple(differs.items())
        if key not in made:
            folder = tmp_path_factory.mktemp("packed")
            plain = save_family(family, folder, **differs)
            if kind in FP8_KINDS:
                made[key] = save_fp8(plain, folder, kind)
            else:
                made[key] = save_packed(plain, folder, kind, ignore=ignore)
        return made[key]

    return make


def most_apart(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))


# ---- the numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", sorted(WRITTEN.glob("*/config.json")), ids=lambda path: path.parent.name)
def test_files_of_the_library_give_its_own_numbers(folder: Path) -> None:
    """Written, and answered in float32, by compressed-tensors itself (tests/fixtures/compressed_tensors/write.py).
    Where it divides by 127.5, in dynamic int8, its numbers are near and those with 127 the same."""
    expected = load_file(folder.parent / "expected.safetensors")
    with EngineRun(folder.parent, "reference") as run:
        vocab = run.engine.config.model.vocab_size
        key = run.add(expected["tokens"].tolist(), 1, prompt_logprobs=vocab)
        run.finish()
        ids, said = (np.concatenate([getattr(one, name) for one in run.scored[key]]) for name in ("ids", "logprobs"))
    placed = np.empty((len(ids), vocab), np.float32)
    np.put_along_axis(placed, ids[:, 1:].astype(np.int64), said[:, 1:], axis=1)
    wanted = expected.get("logits_by_127", expected["logits"]).log_softmax(-1)[:-1].numpy()
    assert np.abs(placed - wanted).max() < ROUNDING
    assert np.abs(placed - expected["logits"].log_softmax(-1)[:-1].numpy()).mean() < 0.05 < 0.1 * wanted.std()


@pytest.mark.parametrize("platform", ["reference", "strict", "cpu"])
@pytest.mark.parametrize("kind", WEIGHTS_ALONE)
@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_weights_are_what_the_file_stands_for(family: str, kind: str, platform: str, packed: Packed) -> None:
    folder, meant = packed(family, kind)
    assert most_apart(scored(folder, platform), scored(meant, platform)) < ROUNDING


@pytest.mark.parametrize("kind", ["w4a16-asymmetric", "fp8-block-weights"])
@pytest.mark.parametrize("family", ["qwen2", "phi3", "falcon", "gemma2"])
def test_projections_with_biases_and_joined_ones(family: str, kind: str, packed: Packed) -> None:
    folder, meant = packed(family, kind)
    assert most_apart(scored(folder, "reference"), scored(meant, "reference")) < ROUNDING


@pytest.mark.parametrize("platform", ["reference", "strict", "cpu"])
def test_a_product_of_weights_that_are_stored_differently(platform: str, packed: Packed) -> None:
    """k of each layer, and up, are not quantized; q and v, and gate, are."""
    left = tuple(f"model.layers.{layer}.{name}" for layer in range(3) for name in ("self_attn.k_proj", "mlp.up_proj"))
    folder, meant = packed("qwen2", "w4a16", ("lm_head", *left))
    assert most_apart(scored(folder, platform), scored(meant, platform)) < ROUNDING


def left_unrounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a scheme says about activations is disregarded, in this process."""
    monkeypatch.setattr("tessera.ops.linear.rounded", lambda x, activation, scale: x)


@pytest.mark.parametrize("kind", FP8_KINDS)
@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "phi3"])
def test_fp8_weights_are_what_the_file_stands_for(
    family: str, kind: str, packed: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No size of these models is a multiple of both sides of a block."""
    folder, meant = packed(family, kind)
    expected, rounding = scored(meant, "reference"), scored(folder, "reference")
    assert 1e-3 < apart(rounding, expected) < 0.1
    left_unrounded(monkeypatch)
    for platform in ("reference", "strict", "cpu"):
        assert most_apart(scored(folder, platform), expected) < ROUNDING


def test_activations_are_rounded_in_groups(packed: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: each token, and each 12 of its elements, by its largest."""
    folder, meant = packed("llama", "blocks")
    found = scored(folder, "reference")

    def by_hand(x: torch.Tensor, activation: Any, scale: Any) -> torch.Tensor:
        rounded = []
        for group in x.split(12, -1):
            of_group = group.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
            rounded.append((group / of_group).to(torch.float8_e4m3fn).float() * of_group)
        return torch.cat(rounded, -1)

    monkeypatch.setattr("tessera.ops.linear.rounded", by_hand)
    assert most_apart(scored(folder, "reference"), found) < ROUNDING
    assert apart(scored(meant, "reference"), found) > 1e-3


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_int8_in_a_file_is_int8_at_load(family: str, packed: Packed, tmp_path: Path) -> None:
    """The same numbers, those of activations too, where the file holds what --quantization makes."""
    folder, _ = packed(family, "w8a8", ignore=())
    at_load = scored(save_family(family, tmp_path), "reference", quantization="int8")
    assert all(np.array_equal(a, b) for a, b in zip(scored(folder, "reference"), at_load, strict=True))


# The nightly kind is part of the quantized head on two ranks below.
@pytest.mark.parametrize("kind", [pytest.param("fp8-block-weights", marks=pytest.mark.nightly), "blocks"])
def test_two_ranks_with_blocks(kind: str, packed: Packed) -> None:
    """Blocks of 16 x 12: 36 of the 72 rows of q, 12 of the 24 of k, and 48 of the 96 inner ones are a rank's."""
    folder, meant = packed("llama", kind, intermediate_size=96)
    two = scored(folder, "reference", executor=None, tensor_parallel_size=2)
    one, plain = scored(folder, "reference"), scored(meant, "reference")
    if kind == "blocks":  # sums round otherwise on two ranks, and so do a few activations
        assert apart(two, one) < 0.3 * apart(one, plain)
    else:
        assert most_apart(two, one) < ROUNDING


def test_ranks_that_cut_the_inputs_of_blocks_are_refused(packed: Packed) -> None:
    """88 inputs in blocks of 12: 44 are a rank's."""
    with pytest.raises(
        ModelError,
        match=r"down_proj' is quantized in blocks of 16 x 12, which a shard of 44 of its 88 inputs cuts; use",
    ):
        scored(packed("llama", "blocks")[0], "reference", executor=None, tensor_parallel_size=2)


# The nightly kinds are parts of others: groups without zero points, rows with a scale each, a model with its head.
@pytest.mark.parametrize(
    "kind",
    [
        "w4a16-asymmetric",
        pytest.param("w4a16-channel", marks=pytest.mark.nightly),
        pytest.param("w8a8", marks=pytest.mark.nightly),
        pytest.param("w4a16", marks=pytest.mark.nightly),
        pytest.param("fp8-weights", marks=pytest.mark.nightly),
    ],
)
def test_two_ranks_are_as_one(kind: str, packed: Packed) -> None:
    """88 inputs in groups of 8 are 44 a rank, in groups of 4; activations are rounded by what a rank has of them."""
    folder, meant = packed("llama", kind)
    two = scored(folder, "cpu", executor=None, tensor_parallel_size=2)
    one, plain = scored(folder, "cpu"), scored(meant, "cpu")
    if kind == "w8a8":
        assert apart(two, plain) < 1.5 * apart(one, plain)
    else:
        assert most_apart(two, one) < ROUNDING


@needs_kernels
# AWQ on four ranks has what GPTQ on two has.
@pytest.mark.parametrize(("method", "ranks"), [pytest.param("gptq", 2, marks=pytest.mark.nightly), ("awq", 4)])
def test_ranks_that_cut_groups_multiply_with_what_is_stored(method: str, ranks: int, tmp_path: Path) -> None:
    """96 inputs of a rank, and 48 of each of four, in groups of 64: in groups of 32 and 16. Activations are rounded by
    what a rank has of them."""
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    }
    folder, meant = save_words(save_family("llama", tmp_path, **sizes), tmp_path, method, group=64)
    several = scored(folder, "cpu", dtype="bfloat16", executor=None, tensor_parallel_size=ranks)
    one, plain = scored(folder, "cpu", dtype="bfloat16"), scored(meant, "cpu")
    assert 0 < apart(several, one) < 2 * apart(one, plain) < 0.05
    with EngineRun(folder, "cpu", dtype="bfloat16") as run:
        chosen = {one.chosen for one in plan_here(run.engine.config).choices if one.place.startswith("weights of")}
    assert chosen == {"int4, one scale per group of 64; activations int8, one scale per token and group of 32"}


@needs_kernels
@pytest.mark.parametrize(
    ("differs", "stored"),
    [
        ({}, "int4, one scale per group of 8; activations int8, one scale per token and group of 32"),
        ({"modules_to_not_convert": ["gate", "experts.3.w2"]}, "awq int4 in groups of 8, decoded to bfloat16"),
    ],
    ids=["alike", "one differs"],
)
def test_experts_stay_as_they_are_stored_if_all_do(differs: dict[str, Any], stored: str, tmp_path: Path) -> None:
    folder, meant = save_words(save_family("mixtral", tmp_path), tmp_path, "awq", group=8, **differs)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in load_file(meant / "model.safetensors") if "experts.3.w2" in name and differs]:
        module = name.removesuffix(".weight")
        tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith(f"{module}.")}
        tensors[name] = load_file(meant / "model.safetensors")[name]
    save_file(tensors, folder / "model.safetensors")
    assert apart(scored(folder, "cpu", dtype="bfloat16"), scored(meant, "cpu")) < 0.05
    with EngineRun(folder, "cpu", dtype="bfloat16") as run:
        products = {one.chosen: one.place for one in plan_here(run.engine.config).choices if "weights of" in one.place}
    assert stored in products


@pytest.mark.parametrize(
    "kind",
    [
        "w4a16-asymmetric",
        pytest.param("w8a8", marks=pytest.mark.nightly),
        pytest.param("fp8-block-weights", marks=pytest.mark.nightly),
    ],
)
def test_a_quantized_head_on_two_ranks(kind: str, packed: Packed) -> None:
    """Of 101 rows, the last rank's 51st is not there."""
    folder, meant = packed("llama", kind, ignore=(), intermediate_size=96)
    two = scored(folder, "reference", executor=None, tensor_parallel_size=2)
    plain = scored(meant, "reference")
    assert apart(two, plain) < (ROUNDING if kind != "w8a8" else 1.5 * apart(scored(folder, "reference"), plain))


@pytest.mark.parametrize("kind", ["w4a16", "blocks"])
@pytest.mark.parametrize("ignore", [("lm_head",), ()])
def test_a_tied_head_is_the_table_of_the_embedding(
    ignore: tuple[str, ...], kind: str, packed: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, meant = packed("llama", kind, ignore=ignore, tie_word_embeddings=True)
    left_unrounded(monkeypatch)
    assert "lm_head.weight" not in load_file(meant / "model.safetensors")
    assert most_apart(scored(folder, "cpu"), scored(meant, "cpu")) < ROUNDING


@pytest.mark.parametrize("kind", ["w4a16", "blocks"])
def test_a_model_through_transformers_code(kind: str, packed: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, meant = packed("stablelm", kind, partial_rotary_factor=0.5)
    left_unrounded(monkeypatch)
    assert most_apart(scored(folder, "reference"), scored(meant, "reference")) < ROUNDING


# ---- kernels ---------------------------------------------------------------------------------------------------------


@needs_kernels
@pytest.mark.parametrize("kind", NATIVE)
@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_native_kernels_do_all_of_it_in_bfloat16(family: str, kind: str, packed: Packed) -> None:
    """As far from the float32 model as bfloat16 and int8 activations are, which is the case of w8a8."""
    folder, meant = packed(family, kind)
    exact, other = packed(family, "w8a8")
    rounding = apart(scored(exact, "reference", dtype="bfloat16"), scored(other, "reference"))
    with EngineRun(folder, "cpu", dtype="bfloat16") as run:
        assert not {"linear", "experts", "gated_mlp"} & set(run.engine.info.fallback_ops)
    assert apart(scored(folder, "cpu", dtype="bfloat16"), scored(meant, "reference")) < 1.5 * rounding


@needs_kernels
@pytest.mark.parametrize("kind", [pytest.param("fp8", marks=pytest.mark.nightly), "blocks"])
def test_what_kernels_do_not_take_is_decoded(kind: str, packed: Packed) -> None:
    """As the model that it stands for, on one rank and on two."""
    folder, meant = packed("llama", kind, intermediate_size=96)
    expected = scored(meant, "cpu", dtype="bfloat16")
    assert most_apart(scored(folder, "cpu", dtype="bfloat16"), expected) == 0
    ranks = {"executor": None, "tensor_parallel_size": 2}
    assert most_apart(scored(folder, "cpu", **ranks), scored(meant, "cpu", **ranks)) < ROUNDING
    with EngineRun(folder, "cpu", dtype="bfloat16", no_fallback=True) as run:
        chosen = {one.chosen for one in plan_here(run.engine.config).choices if one.place.startswith("weights of")}
    shared = "one scale per row" if kind == "fp8" else "one scale per block of 16 x 12"
    assert chosen == {f"fp8_e4m3, {shared}, decoded to bfloat16"}


# ---- figures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", ["reference", "cpu"])
@pytest.mark.parametrize("kind", ["w8a8", "w4a16-asymmetric", "fp8", "blocks"])
def test_a_plan_has_the_figures_of_a_start(kind: str, platform: str, packed: Packed) -> None:
    folder, meant = packed("mixtral", kind)
    with EngineRun(folder, platform, dtype="bfloat16") as run:
        info, planned = run.engine.info, plan_here(run.engine.config)
    assert (planned.weight_bytes, planned.num_weights) == (info.weight_bytes, info.num_weights)
    assert planned.choices == info.choices
    with EngineRun(meant, platform, dtype="bfloat16") as run:
        plain = run.engine.info
    assert info.num_weights == plain.num_weights
    if platform == "cpu" and kind in ("fp8", "blocks"):
        assert info.weight_bytes == plain.weight_bytes
    else:
        assert info.weight_bytes < 0.7 * plain.weight_bytes


def test_what_is_quantized_is_explained(packed: Packed) -> None:
    with EngineRun(packed("llama", "w4a16")[0], "reference") as run:
        found = [(one.place, one.chosen, one.others) for one in run.engine.info.choices if one.what == "quantization"]
    assert found[0] == ("weights of 8 products", "int4, one scale per group of 8", ())
    reason = "quantization_config.ignore names it"
    assert ("weight of lm_head", "none", (("compressed-tensors", reason),)) in found


@pytest.mark.parametrize("kind", ["w8a8", "w4a16-asymmetric", "fp8", "blocks", "static"])
def test_random_weights_in_the_format(kind: str, packed: Packed, tmp_path: Path) -> None:
    shutil.copy(packed("mixtral", kind)[0] / "config.json", tmp_path)
    with EngineRun(tmp_path, "cpu", load_format="dummy") as run:
        assert len(run.ask(QUESTIONS[:1], 3)[0]) > 0


@pytest.mark.parametrize("kind", ["w8a8", "blocks"])
def test_the_dtype_is_that_of_the_embedding_not_of_scales(kind: str, packed: Packed, tmp_path: Path) -> None:
    shutil.copytree(packed("llama", kind)[0], tmp_path / "model")
    file = tmp_path / "model/model.safetensors"
    tensors = load_file(file)
    kept = {name: one.bfloat16() for name, one in tensors.items() if one.dtype == torch.float32 and "scale" not in name}
    save_file({**tensors, **kept}, file)
    with EngineRun(tmp_path / "model", "cpu", dtype="auto") as run:
        assert run.engine.info.dtype == "bfloat16"


# ---- what cannot be --------------------------------------------------------------------------------------------------


def changed(folder: Path, target: Path, tensors: dict[str, Any]) -> Path:
    """tensors: None leaves one out."""
    shutil.copytree(folder, target)
    found = {**load_file(target / "model.safetensors"), **tensors}
    save_file({name: one for name, one in found.items() if one is not None}, target / "model.safetensors")
    return target


FIRST = "model.layers.0.self_attn.q_proj"
BROKEN = {
    "the checkpoint has no '{}.weight_packed', which this architecture needs": {"weight_packed": None},
    "the checkpoint has no '{}.weight_scale', which this architecture needs": {"weight_scale": None},
    "the checkpoint has no '{}.weight_zero_point', which this": {"weight_zero_point": None},
    "'{}.weight_packed' has shape (72, 8) where config.json implies (72, 9)": {
        "weight_packed": torch.zeros(72, 8, dtype=torch.int32)
    },
    "'{}.weight_scale' has shape (72, 1) where config.json implies (72, 9)": {"weight_scale": torch.ones(72, 1)},
    "'{}.weight_zero_point' has shape (72, 9) where config.json implies (9, 9)": {
        "weight_zero_point": torch.zeros(72, 9, dtype=torch.int8)
    },
    "'{}.weight_packed' is stored as int64 where config.json implies int32": {
        "weight_packed": torch.zeros(72, 9, dtype=torch.int64)
    },
    "'{}.weight_scale' is stored as uint8 where config.json implies bfloat16, float16 or float32": {
        "weight_scale": torch.ones(72, 9, dtype=torch.uint8)
    },
}


@pytest.mark.parametrize(("message", "tensors"), BROKEN.items(), ids=[f"{i}" for i in range(len(BROKEN))])
def test_broken_files_are_one_line(message: str, tensors: dict[str, Any], packed: Packed, tmp_path: Path) -> None:
    named = {f"{FIRST}.{part}": one for part, one in tensors.items()}
    folder = changed(packed("llama", "w4a16-asymmetric")[0], tmp_path / "model", named)
    with pytest.raises(ModelError) as raised:
        EngineRun(folder, "reference")
    assert message.format(FIRST) in raised.value.message
    if "is stored as" not in message:
        assert raised.value.message.endswith("; the folder's files and config.json do not belong together.")
    assert "\n" not in raised.value.message


def configured(folder: Path, target: Path, **differs: Any) -> Path:
    """differs: fields of quantization_config; None: no such thing."""
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    config["quantization_config"] = {**config["quantization_config"], **differs} if differs else None
    (target / "config.json").write_text(json.dumps(config))
    return target


def test_a_config_that_denies_what_the_file_has_is_one_line(packed: Packed, tmp_path: Path) -> None:
    plain = configured(packed("llama", "w8a8")[0], tmp_path / "plain")
    with pytest.raises(
        ModelError, match="_proj.weight' is stored as int8 where config.json implies bfloat16, float16 or float32"
    ):
        EngineRun(plain, "reference")
    some = configured(packed("llama", "w8a8")[0], tmp_path / "some", ignore=["re:.*k_proj", "lm_head"])
    with pytest.raises(
        ModelError, match="k_proj.weight' is stored as int8 where config.json implies bfloat16, float16 or float32"
    ):
        EngineRun(some, "reference")


def test_what_goes_with_no_packed_weights_is_one_line(packed: Packed) -> None:
    folder, _ = packed("llama", "w8a8")
    with pytest.raises(ConfigError, match=r"^the model is already quantized; remove --quantization\.$"):
        LLM(folder, quantization="int8", skip_tokenizer_init=True)
    with pytest.raises(PlatformError, match="'numpy' runs models its own way, which does not take quantized"):
        EngineRun(folder, "tests.platforms.own_runners:TakesNothing")


def test_llm_answers_from_a_packed_folder(packed: Packed) -> None:
    folder, meant = packed("llama", "w4a16")
    answers = []
    for path in (folder, meant):
        flags = {"platform": "tessera_cpu.platform:CpuPlatform", "dtype": "float32", "kv_cache_memory_bytes": 1 << 21}
        with LLM(path, **flags) as llm:
            answers.append(llm.generate("Hello", SamplingParams(temperature=0, max_tokens=12))[0].outputs[0].text)
    assert answers[0] == answers[1] != ""


@pytest.mark.parametrize("kind", ["w8a8", "w4a16", "blocks"])
def test_scales_that_are_not_finite_are_refused(packed: Packed, kind: str, tmp_path: Path) -> None:
    folder, _ = packed("llama", kind)
    shutil.copytree(folder, tmp_path / "model")
    stored = load_file(tmp_path / "model/model.safetensors")
    scale = next(tensor for name, tensor in stored.items() if "layers.1.mlp.up_proj.weight_scale" in name)
    scale.view(-1)[1] = torch.nan
    save_file(stored, tmp_path / "model/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\..*' are not finite; use another copy"):
        EngineRun(tmp_path / "model", "reference")
