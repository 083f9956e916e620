"""--quantization: the same numbers on every platform, in less memory, said where it is not done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera import LLM
from tessera.engine.plan import plan_here
from tessera.errors import ConfigError, ModelError, PlatformError
from tessera.platform import Explained
from tests.engine.platforms.test_tokens_on_every_platform import prompts
from tests.platforms.cpu_kernels import needs_kernels
from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import VOCAB, save_family

ROOT = Path(__file__).parents[3]
QUESTIONS = prompts(5, longest=40, seed=11)
SCHEMES = ("int8", "int4")


@pytest.fixture(autouse=True)
def children_find_tessera(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "core"), str(ROOT / "platforms/cpu")]))


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_family("mixtral", tmp_path_factory.mktemp("quantised"))


def scored(model: Path, platform: str, **flags: Any) -> list[np.ndarray]:
    """Log probabilities of each question's tokens."""
    with EngineRun(model, platform, **flags) as run:
        run.ask(QUESTIONS, 2, prompt_logprobs=VOCAB)
        return [_by_token(run, key) for key in run.scored if run.scored[key]]


def _by_token(run: EngineRun, key: int) -> np.ndarray:
    ids, said = (np.concatenate([getattr(one, name) for one in run.scored[key]]) for name in ("ids", "logprobs"))
    placed = np.empty((len(ids), VOCAB), np.float32)
    np.put_along_axis(placed, ids[:, 1:].astype(np.int64), said[:, 1:], axis=1)
    return placed


def apart(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    """The mean difference of a token, the median of all: another expert is chosen for some."""
    return float(np.median(np.concatenate([np.abs(a - b).mean(-1) for a, b in zip(one, other, strict=True)])))


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_platforms_agree_under_a_scheme(family: str, name: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(family)
    plain, expected = scored(model, "reference"), scored(model, "reference", quantization=name)
    changed = apart(plain, expected)
    assert 0.001 < changed < 0.5
    assert apart(scored(model, "strict", quantization=name), expected) < 0.1 * changed
    assert apart(scored(model, "cpu", quantization=name), expected) < 0.4 * changed  # activations round the other way


@pytest.mark.parametrize("family", [pytest.param("llama", marks=pytest.mark.nightly), "mixtral"])
def test_platforms_agree_in_fp8(family: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(family)
    plain, expected = scored(model, "reference"), scored(model, "reference", quantization="fp8")
    changed = apart(plain, expected)
    assert 0.001 < changed < 0.5
    assert apart(scored(model, "strict", quantization="fp8"), expected) < 0.1 * changed
    two = scored(model, "reference", quantization="fp8", executor=None, tensor_parallel_size=2)
    assert apart(two, plain) < 1.5 * changed


def test_a_platform_without_fp8_says_so_before_it_loads(llama: Path) -> None:
    message = r"^platform 'cpu' does not take --quantization fp8 \(this kernel takes int8 .*\); remove the flag\.$"
    with pytest.raises(PlatformError, match=message):
        EngineRun(llama, "cpu", quantization="fp8")


@needs_kernels
@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_native_kernels_do_all_of_it_in_bfloat16(family: str, name: str, request: pytest.FixtureRequest) -> None:
    """As far from the plain model as the definition is; bfloat16 itself rounds nearly as much as int8 does."""
    model = request.getfixturevalue(family)
    plain, expected = scored(model, "reference"), scored(model, "reference", quantization=name, dtype="bfloat16")
    found = scored(model, "cpu", quantization=name, dtype="bfloat16")
    assert 0.8 < apart(found, plain) / apart(expected, plain) < 1.25
    with EngineRun(model, "cpu", quantization=name, dtype="bfloat16") as run:
        assert not {"linear", "experts", "gated_mlp"} & set(run.engine.info.fallback_ops)


@pytest.mark.parametrize("name", SCHEMES)
def test_two_ranks_are_as_near_as_their_groups(name: str, llama: Path) -> None:
    """int8 rounds activations by what a rank has of them, so the ranks' sums are not those of one."""
    alone, plain = scored(llama, "cpu", quantization=name), scored(llama, "cpu")
    two = scored(llama, "cpu", quantization=name, executor=None, tensor_parallel_size=2)
    assert apart(two, plain) < 1.5 * apart(alone, plain)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("platform", ["reference", "cpu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_plan_has_the_figures_of_a_start(name: str, platform: str, dtype: str, mixtral: Path) -> None:
    with EngineRun(mixtral, platform, quantization=name, dtype=dtype) as run:
        info, planned = run.engine.info, plan_here(run.engine.config)
    assert (planned.weight_bytes, planned.num_weights) == (info.weight_bytes, info.num_weights)
    assert planned.choices == info.choices
    with EngineRun(mixtral, platform, dtype=dtype) as run:
        plain = run.engine.info
    assert plain.num_weights == info.num_weights
    # The inputs of these small layers are padded to multiples of 32 where the CPU's kernels take them.
    padded = platform == "cpu" and dtype == "bfloat16"
    assert info.weight_bytes < (0.68 if padded else 0.65 if dtype == "bfloat16" else 0.4) * plain.weight_bytes


def test_what_is_quantised_and_what_is_not_is_explained(mixtral: Path) -> None:
    with EngineRun(mixtral, "reference", quantization="int4") as run:
        found = [one for one in run.engine.info.choices if one.what == "quantization"]
    assert found[0] == Explained(
        "quantization", "weights of 9 products", "int4, one scale per group of 8; activations int8, one scale per token"
    )
    assert {(one.place, one.others[0]) for one in found[1:3]} == {
        ("weight of model.embed_tokens", ("int4", "a table to look up in, which is no product")),
        ("weight of model.layers.0.block_sparse_moe.gate and 1 more", ("int4", "routers choose, and are small")),
    }


def test_weights_that_no_group_divides_stay_and_the_start_says_so(tmp_path: Path, llama: Path) -> None:
    config = {**json.loads((llama / "config.json").read_text()), "intermediate_size": 44}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with EngineRun(tmp_path, "reference", quantization="int4", load_format="dummy") as run:
        assert len(run.ask(QUESTIONS[:1], 3)[0]) > 0
        (note,) = run.engine.info.notes
    assert note.startswith(
        "--quantization int4 leaves 2 weights as they are (the first is model.layers.0.mlp.down_proj)"
    )
    assert note.endswith("input size 44 is not divisible by any of 64, 32, 16, 8")


def test_what_cannot_be_quantised_is_one_line(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^quantization must be one of int8, int4, fp8, got 'awq'\.$"):
        LLM(llama, quantization="awq", skip_tokenizer_init=True)
    with pytest.raises(PlatformError, match="'numpy' runs models its own way, which does not take --quantization"):
        EngineRun(llama, "tests.platforms.own_runners:TakesNothing", quantization="int8")
    config = {**json.loads((llama / "config.json").read_text()), "quantization_config": {"quant_method": "exl2"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    known = "auto-round, awq, bitsandbytes, compressed-tensors, fp8, gptq, modelopt, mxfp4, and"
    with pytest.raises(ModelError, match=rf"quantization format 'exl2' is not supported; there is {known}"):
        EngineRun(tmp_path, "cpu", quantization="int8", load_format="dummy")


# A scheme has its platform each day; the other pairs are nightly.
@pytest.mark.parametrize(
    ("name", "platform"),
    [
        pytest.param(name, platform, marks=[pytest.mark.nightly] if (row + column) % 2 else [])
        for row, name in enumerate(SCHEMES)
        for column, platform in enumerate(("cpu", "reference"))
    ],
)
def test_loading_takes_the_result_and_a_layer_at_most(name: str, platform: str, llama: Path, tmp_path: Path) -> None:
    hidden, inner, layers = 1024, 4096, 4
    shape = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "head_dim": 64}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 512}
    config = {**json.loads((llama / "config.json").read_text()), **shape, **heads}
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "tests.platforms.memory_of_a_load", str(tmp_path), platform, name]
    returning = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 16)}  # what is freed is not kept for later
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=returning)
    weights, most = json.loads(done.stdout)
    layer = 2 * (4 * hidden * hidden + 3 * hidden * inner)
    assert weights < 0.6 * layers * layer
    assert most < weights + layer
