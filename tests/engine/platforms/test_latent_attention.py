"""Models with latent attention: what their cache takes, samples of one prompt that share it, and checkpoints in fp8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tessera.engine.engine import Engine
from tessera.errors import ModelError, RefusedError
from tests.engine.platforms.test_tokens_on_every_platform import prompts
from tests.models.loader.folders import config_only, dummy_config
from tests.platforms.engine_run import EngineRun
from tests.platforms.packed_models import save_fp8
from tests.platforms.threads import THREADS
from tests.platforms.tiny_models import save_family

SAMPLED = {"temperature": 1.0, "ignore_eos": True}
QUESTION = prompts(1, longest=60, seed=4)[0]
SERVED = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "v_head_dim": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 12,
    "first_k_dense_replace": 1,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_family("deepseek_v3", tmp_path_factory.mktemp("latent"))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_token_takes_576_numbers_in_each_of_two_layers_on_each_rank(tmp_path: Path, ranks: int) -> None:
    executor = THREADS if ranks > 1 else None
    engine = Engine(dummy_config(config_only(tmp_path, **SERVED), tensor_parallel_size=ranks), executor=executor)
    engine.close()
    block_bytes = engine.info.cache_bytes // (engine.info.num_blocks + 1)
    assert block_bytes == 2 * engine.info.block_size * (512 + 64) * 2, "in bfloat16"


@pytest.mark.parametrize(("indexers", "numbers"), [(["full", "full"], 128 + 128), (["full", "shared"], 128)])
def test_an_indexer_keeps_128_numbers_more_where_a_layer_has_one(
    tmp_path: Path, indexers: list[str], numbers: int
) -> None:
    served = {**SERVED, "architectures": ["GlmMoeDsaForCausalLM"], "index_n_heads": 2, "indexer_types": indexers}
    engine = Engine(dummy_config(config_only(tmp_path, **served)))
    engine.close()
    block_bytes = engine.info.cache_bytes // (engine.info.num_blocks + 1)
    assert block_bytes == engine.info.block_size * (2 * (512 + 64) + numbers) * 2, "in bfloat16"


def test_a_stage_does_not_begin_with_a_layer_that_uses_another_s_selection(tmp_path: Path) -> None:
    served = {
        **SERVED,
        "architectures": ["GlmMoeDsaForCausalLM"],
        "index_n_heads": 2,
        "indexer_types": ["full", "shared"],
    }
    config = dummy_config(config_only(tmp_path, **served), pipeline_parallel_size=2)
    with pytest.raises(ModelError) as raised:
        Engine(config, executor=THREADS)
    assert "layer 1 has no indexer" in str(raised.value)
    assert "with --pipeline-parallel-size 2; choose another." in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kept", ["int8", "fp8"])
def test_a_quantized_cache_is_refused_by_name(tmp_path: Path, kept: str) -> None:
    with pytest.raises(RefusedError) as raised:
        Engine(dummy_config(config_only(tmp_path, **SERVED), kv_cache_dtype=kept))
    assert f"--kv-cache-dtype {'int8' if kept == 'int8' else 'float8_e4m3fn'} is not supported" in str(raised.value)
    assert "latent attention" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("platform", ["cpu", "strict"])
def test_samples_of_one_prompt_share_its_blocks(model: Path, platform: str) -> None:
    with EngineRun(model, platform, depth=2) as run:
        leader = run.add(QUESTION, 12, **SAMPLED)
        keys = [leader] + [run.add(QUESTION, 12, seed=seed, leader=leader, **SAMPLED) for seed in (1, 2)]
        run.finish()
        together = [run.answers[key] for key in keys]
        assert any(step.copies for step in run.steps), "no block was shared and then written"
    with EngineRun(model, platform, enable_prefix_caching=False) as run:
        keys = [run.add(QUESTION, 12, seed=seed, **SAMPLED) for seed in range(3)]
        run.finish()
        assert together == [run.answers[key] for key in keys]


def test_what_keys_and_values_come_from_is_decoded(model: Path, tmp_path: Path) -> None:
    packed, meant = save_fp8(model, tmp_path, "blocks")
    answers: list[Any] = []
    for folder in (packed, meant):
        with EngineRun(folder, "cpu") as run:
            answers.append(run.ask([QUESTION], 12, ignore_eos=True))
    assert answers[0] == answers[1]
