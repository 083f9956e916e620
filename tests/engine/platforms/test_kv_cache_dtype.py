"""--kv-cache-dtype int8 and fp8: the same numbers on every platform that has it, in fewer bytes, refused elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tessera import LLM
from tessera.engine.plan import plan_here
from tessera.errors import ConfigError, ModelError, PlatformError
from tests.engine.platforms.test_packed import most_apart
from tests.engine.platforms.test_quantization import apart, scored
from tests.engine.platforms.test_tokens_on_every_platform import prompts
from tests.platforms.cpu_kernels import needs_kernels
from tests.platforms.engine_run import EngineRun
from tests.platforms.packed_models import save_packed
from tests.platforms.tiny_models import save_family

INT8, FP8 = {"kv_cache_dtype": "int8"}, {"kv_cache_dtype": "fp8"}
SCALES = {"k_scale": 1.5 / 448, "v_scale": 0.4 / 448}
"""Keys beyond 1.5 and values beyond 0.4 are out of range, which some are."""
ROUNDING = 1e-4  # of a log probability, in float32
DIM = 16


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    """A model with heads that the CPU's kernels take, of random weights."""
    folder = tmp_path_factory.mktemp("narrow")
    config = {**json.loads((llama / "config.json").read_text()), "head_dim": DIM}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module", params=["llama", "mistral", "gemma2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of every token, of windows, of both with soft caps."""
    return save_family(request.param, tmp_path_factory.mktemp("kept"))


def test_platforms_agree(model: Path) -> None:
    expected = scored(model, "reference", **INT8)
    assert 1e-4 < apart(scored(model, "reference"), expected) < 0.1
    assert apart(scored(model, "strict", **INT8), expected) < 1e-4


def test_fp8_is_the_reference_s_where_no_kernel_takes_it(model: Path) -> None:
    expected = scored(model, "reference", **FP8)
    assert 1e-4 < apart(scored(model, "reference"), expected) < 0.1
    for platform in ("strict", "cpu"):
        assert apart(scored(model, platform, **FP8), expected) < 1e-4


@needs_kernels
def test_what_runs_fp8_and_why_is_explained(narrow: Path) -> None:
    with EngineRun(narrow, "cpu", load_format="dummy", dtype="bfloat16", **FP8) as run:
        info = run.engine.info
        found = [(one.place, one.chosen, one.others) for one in info.choices if one.what == "attention"]
    (place, chosen, others), *_ = found
    assert "keys and values in float8_e4m3fn" in place
    assert chosen == "reference"
    assert ("native", "no kernels for bfloat16 with keys and values in float8_e4m3fn") in others
    assert "attention" in info.fallback_ops
    assert "keys and values are kept in fp8; the checkpoint has no scales for them, so they are 1" in info.notes
    with pytest.raises(PlatformError, match=r"attention of layer 0 \(.*\) would run on the reference .*--no-fallback"):
        EngineRun(narrow, "cpu", load_format="dummy", dtype="bfloat16", no_fallback=True, **FP8)


# ---- scales of a checkpoint


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model with scales of keys and values, and one of the same weights without."""
    folder = tmp_path_factory.mktemp("calibrated")
    return save_packed(save_family("llama", folder), folder, "fp8-weights", kv=SCALES)


def rounded_by_hand(
    planes: Sequence[Tensor], block: Tensor, offset: Tensor, k: Tensor, v: Tensor, scales: Sequence[Tensor] = ()
) -> None:
    for plane, one, scale in zip(planes, (k, v), SCALES.values(), strict=True):
        kept = torch.stack([(one / scale).minimum(torch.tensor(448.0)), torch.full_like(one, -448.0)]).amax(0)
        plane[block, offset] = kept.to(torch.float8_e4m3fn).float() * scale


@pytest.mark.parametrize("flags", [{}, FP8, {"kv_cache_dtype": "fp8_e4m3"}], ids=str)
def test_a_checkpoint_s_scales_are_used_without_a_flag(
    flags: dict[str, str], calibrated: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, meant = calibrated
    found, plain = scored(folder, "reference", **flags), scored(meant, "reference")
    monkeypatch.setattr("tessera.reference.attention.write", rounded_by_hand)
    assert most_apart(scored(meant, "reference"), found) < ROUNDING
    assert apart(found, plain) > 1e-2


def test_a_flag_for_int8_comes_before_the_checkpoint(calibrated: tuple[Path, Path]) -> None:
    folder, meant = calibrated
    assert most_apart(scored(folder, "reference", **INT8), scored(meant, "reference", **INT8)) < ROUNDING


def test_two_ranks_have_the_same_scales(calibrated: tuple[Path, Path]) -> None:
    two = scored(calibrated[0], "reference", executor=None, tensor_parallel_size=2)
    assert apart(two, scored(calibrated[0], "reference")) < 1e-3


def test_older_names_of_scales(calibrated: tuple[Path, Path], tmp_path: Path) -> None:
    older = {f"{name[0]}_proj.output_scale": scale for name, scale in SCALES.items()}
    folder, _ = save_packed(save_family("llama", tmp_path), tmp_path, "fp8-weights", kv=older)
    assert most_apart(scored(folder, "reference"), scored(calibrated[0], "reference")) == 0.0


def test_a_missing_scale_is_one_line(tmp_path: Path) -> None:
    folder, _ = save_packed(save_family("llama", tmp_path), tmp_path, "fp8-weights", kv={"k_scale": 0.1})
    with pytest.raises(ModelError, match=r"^the checkpoint has no 'model.layers.0.self_attn.v_scale', which this "):
        EngineRun(folder, "reference")


def test_the_start_and_a_plan_say_where_scales_come_from(calibrated: tuple[Path, Path]) -> None:
    with EngineRun(calibrated[0], "reference") as run:
        info, planned = run.engine.info, plan_here(run.engine.config)
    assert "keys and values are kept in fp8, with the scales of the checkpoint" in info.notes
    assert info.notes == planned.notes
    assert (planned.weight_bytes, planned.num_weights) == (info.weight_bytes, info.num_weights)


def test_a_model_through_transformers_code_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = save_family("stablelm", tmp_path, partial_rotary_factor=0.5)
    folder, meant = save_packed(plain, tmp_path, "fp8-weights", kv=SCALES)
    found = scored(folder, "reference")
    monkeypatch.setattr("tessera.reference.attention.write", rounded_by_hand)
    assert most_apart(scored(meant, "reference"), found) < ROUNDING


@needs_kernels
def test_native_kernels_are_as_near_as_the_definition(narrow: Path) -> None:
    """bfloat16 itself rounds about as much as int8 does."""
    flags = {"load_format": "dummy", "dtype": "bfloat16"}
    plain = scored(narrow, "reference", load_format="dummy")
    expected = apart(scored(narrow, "reference", **flags, **INT8), plain)
    assert 0.8 < apart(scored(narrow, "cpu", **flags, **INT8), plain) / expected < 1.25
    with EngineRun(narrow, "cpu", **flags, **INT8) as run:
        assert "attention" not in run.engine.info.fallback_ops


@pytest.mark.parametrize(
    ("platform", "kept"), [("reference", INT8), pytest.param("cpu", INT8, marks=needs_kernels), ("reference", FP8)]
)
def test_answers_outlive_copies_hits_and_preemption(narrow: Path, platform: str, kept: dict[str, str]) -> None:
    """Scales go wherever the numbers go: into a copied block, with a prefix that is found, into another block."""
    flags = {"load_format": "dummy", "dtype": "bfloat16", **kept}
    shared = prompts(1, longest=40, seed=3)[0] * 2
    questions = [shared + rest for rest in prompts(5, longest=20, seed=4)]
    with EngineRun(narrow, platform, enable_prefix_caching=False, max_num_seqs=1, **flags) as run:
        alone = run.ask(questions, 30, ignore_eos=True)
    with EngineRun(narrow, platform, max_model_len=160, kv_cache_memory_bytes=1 << 17, **flags) as run:
        run.ask([shared], 1)
        found = run.ask(questions, 30, ignore_eos=True)
        assert sum(run.cached.values()) > 0
    same = sum(a == b for one, other in zip(found, alone, strict=True) for a, b in zip(one, other, strict=True))
    assert same > 0.9 * 30 * len(questions)  # batches round in other orders


@pytest.mark.parametrize(
    ("platform", "kept"), [("reference", INT8), pytest.param("cpu", INT8, marks=needs_kernels), ("reference", FP8)]
)
def test_a_plan_counts_the_true_bytes(narrow: Path, platform: str, kept: dict[str, str]) -> None:
    dtype = "float32" if platform == "reference" else "bfloat16"
    with EngineRun(narrow, platform, load_format="dummy", dtype=dtype, **kept) as run:
        planned = plan_here(run.engine.config)
        plain_run = EngineRun(narrow, platform, load_format="dummy", dtype=dtype)
    with plain_run as run:
        plain = plan_here(run.engine.config)
    (group,), (before,) = planned.groups, plain.groups
    heads = group.block_size * len(group.layers) * 2
    assert group.block_bytes == 2 * heads * (DIM + (4 if kept == INT8 else 0))
    assert before.block_bytes == 2 * heads * DIM * (4 if dtype == "float32" else 2)
    assert planned.num_cache_tokens * group.block_bytes == pytest.approx(
        plain.num_cache_tokens * before.block_bytes, rel=0.05
    )


def test_where_it_is_not_served_one_line_says_so(llama: Path, narrow: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"^kv_cache_dtype must be one of auto, int8, int8_per_token_head, fp8, fp8_e4m3, got 'fp4'\.$",
    ):
        LLM(llama, kv_cache_dtype="fp4", skip_tokenizer_init=True)
    with pytest.raises(
        PlatformError, match="'numpy' runs models its own way, which does not take --kv-cache-dtype int8;"
    ):
        EngineRun(llama, "numpy", **INT8)
    with pytest.raises(PlatformError, match="does not take --kv-cache-dtype fp8;"):
        EngineRun(llama, "numpy", **FP8)
    refusal = r"^--kv-cache-dtype int8 is not supported here: layer 0 \(.*\) would run .*\(.*\); remove the flag\.$"
    with pytest.raises(PlatformError, match=refusal):
        EngineRun(narrow, "cpu", load_format="dummy", **INT8)
    with pytest.raises(PlatformError, match=refusal.replace(r"\(.*\); leave", r"\(.*heads of 12.*\); leave")):
        EngineRun(llama, "cpu", dtype="bfloat16", **INT8)


def test_vllm_s_name_for_it_is_taken(narrow: Path) -> None:
    with EngineRun(narrow, "reference", load_format="dummy", kv_cache_dtype="int8_per_token_head") as run:
        assert run.engine.config.cache.dtype == "int8"
