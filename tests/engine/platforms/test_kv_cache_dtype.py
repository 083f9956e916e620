"""--kv-cache-dtype int8: the same numbers on every platform that has it, in fewer bytes, refused elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tessera import LLM
from tessera.engine.plan import plan_here
from tessera.errors import ConfigError, PlatformError
from tests.engine.platforms.test_quantization import apart, scored
from tests.engine.platforms.test_tokens_on_every_platform import prompts
from tests.platforms.cpu_kernels import needs_kernels
from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import save_family

INT8 = {"kv_cache_dtype": "int8"}
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


@needs_kernels
def test_native_kernels_are_as_near_as_the_definition(narrow: Path) -> None:
    """bfloat16 itself rounds about as much as int8 does."""
    flags = {"load_format": "dummy", "dtype": "bfloat16"}
    plain = scored(narrow, "reference", load_format="dummy")
    expected = apart(scored(narrow, "reference", **flags, **INT8), plain)
    assert 0.8 < apart(scored(narrow, "cpu", **flags, **INT8), plain) / expected < 1.25
    with EngineRun(narrow, "cpu", **flags, **INT8) as run:
        assert "attention" not in run.engine.info.fallback_ops


@pytest.mark.parametrize("platform", ["reference", pytest.param("cpu", marks=needs_kernels)])
def test_answers_outlive_copies_hits_and_preemption(narrow: Path, platform: str) -> None:
    """Scales go wherever the numbers go: into a copied block, with a prefix that is found, into another block."""
    flags = {"load_format": "dummy", "dtype": "bfloat16", **INT8}
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


@pytest.mark.parametrize("platform", ["reference", pytest.param("cpu", marks=needs_kernels)])
def test_a_plan_counts_the_true_bytes(narrow: Path, platform: str) -> None:
    dtype = "float32" if platform == "reference" else "bfloat16"
    with EngineRun(narrow, platform, load_format="dummy", dtype=dtype, **INT8) as run:
        planned = plan_here(run.engine.config)
        plain_run = EngineRun(narrow, platform, load_format="dummy", dtype=dtype)
    with plain_run as run:
        plain = plan_here(run.engine.config)
    (group,), (before,) = planned.groups, plain.groups
    heads = group.block_size * len(group.layers) * 2
    assert group.block_bytes == 2 * heads * (DIM + 4)
    assert before.block_bytes == 2 * heads * DIM * (4 if dtype == "float32" else 2)
    assert planned.num_cache_tokens * group.block_bytes == pytest.approx(
        plain.num_cache_tokens * before.block_bytes, rel=0.05
    )


def test_where_it_is_not_served_one_line_says_so(llama: Path, narrow: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^kv_cache_dtype must be one of auto, int8, int8_per_token_head, got 'fp4'\.$"
    ):
        LLM(llama, kv_cache_dtype="fp4", skip_tokenizer_init=True)
    with pytest.raises(
        PlatformError, match="'numpy' runs models its own way, which does not take --kv-cache-dtype int8;"
    ):
        EngineRun(llama, "numpy", **INT8)
    refusal = r"^--kv-cache-dtype int8 is not supported here: layer 0 \(.*\) would run .*\(.*\); remove the flag\.$"
    with pytest.raises(PlatformError, match=refusal):
        EngineRun(narrow, "cpu", load_format="dummy", **INT8)
    with pytest.raises(PlatformError, match=refusal.replace(r"\(.*\); leave", r"\(.*heads of 12.*\); leave")):
        EngineRun(llama, "cpu", dtype="bfloat16", **INT8)


def test_vllm_s_name_for_it_is_taken(narrow: Path) -> None:
    with EngineRun(narrow, "reference", load_format="dummy", kv_cache_dtype="int8_per_token_head") as run:
        assert run.engine.config.cache.dtype == "int8"
