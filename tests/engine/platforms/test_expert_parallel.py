"""Experts that ranks have whole: the same tokens as on one device, whatever their number; a rank reads, and is planned
with, its own alone; and what has none to divide is refused by name."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from tessera.config import build_config
from tessera.engine.plan import plan_here
from tessera.errors import ConfigError, ModelError, PlatformError, RefusedError, TesseraError
from tessera.loader.checkpoint import Safetensors
from tessera.platform.quantization import Part
from tests.engine.platforms.test_lora import LORA, made
from tests.engine.platforms.test_packed import ROUNDING, most_apart
from tests.engine.platforms.test_quantization import apart, scored
from tests.engine.platforms.test_tokens_on_every_platform import SAMPLED, prompts
from tests.platforms.engine_run import PLATFORMS, EngineRun
from tests.platforms.fake_feature import EVEN_PLUGIN
from tests.platforms.own_runners import PATH as OWN_RUNNERS
from tests.platforms.packed_models import save_fp8
from tests.platforms.threads import THREADS
from tests.platforms.tiny_models import save_family

QUESTIONS = prompts(7, longest=50, seed=31)
ROOT = Path(__file__).parents[3]
# Four ranks divide the heads, and neither the experts nor the inner size of one.
FOUR: dict[str, Any] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_local_experts": 6,
    "intermediate_size": 90,
}


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with six experts in each layer."""
    return save_family("mixtral", tmp_path_factory.mktemp("six"), **FOUR)


def ask(run: EngineRun) -> tuple[Any, ...]:
    return run.ask(QUESTIONS, 30, ignore_eos=True), run.ask(QUESTIONS, 10, logprobs=2, **SAMPLED)


def workers(run: EngineRun) -> list[Any]:
    executor: Any = run.engine._executor
    return executor.workers


def divided(model: Path, platform: str = "cpu", ranks: int = 2, **flags: Any) -> EngineRun:
    """With whole experts on each rank, which is a thread."""
    flags = {"enable_expert_parallel": True, "executor": THREADS, **flags}
    return EngineRun(model, platform, tensor_parallel_size=ranks, **flags)


DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}


@pytest.mark.parametrize(
    "flags",
    [
        {"ranks": 4, "max_num_batched_tokens": 16, "max_num_seqs": 3},
        {"ranks": 4, "platform": "reference", "speculative_config": DRAFTS},
        {"ranks": 2, "platform": "strict", "depth": 2, "kv_cache_memory_bytes": 72 << 10, "max_model_len": 96},
        {"ranks": 2, "pipeline_parallel_size": 2, "depth": 3},
    ],
    ids=["prompts in chunks", "drafts", "preempted rows", "stages"],
)
def test_the_tokens_are_those_of_one_device(flags: dict[str, Any], six: Path) -> None:
    """2, 2, 1 and 1 of 6 experts, or 3 each. The second time, prompts are cached."""
    with EngineRun(six, "reference") as alone:
        expected = ask(alone), ask(alone)
    with divided(six, **flags) as run:
        assert (ask(run), ask(run)) == expected
        counters = run.engine.stats.counters
        assert ("kv_cache_memory_bytes" in flags) == (counters.preemptions > 0)


def test_masks_and_adapters(six: Path, tmp_path: Path) -> None:
    """An adapter of attention, whose layers are divided as without whole experts."""
    adapters = made(six, tmp_path, {"attention": {"rank": 5, "targets": ("q_proj", "o_proj")}})
    (folder,) = adapters.folders
    flags = {**LORA, "features": ["even=9", "lora"], "plugins": [EVEN_PLUGIN]}

    def answers(run: EngineRun, adapter: str = "") -> list[list[int]]:
        columns = ({"even": 8} if i % 2 else {} for i in range(len(QUESTIONS)))
        keys = [run.add(question, 10, columns=next(columns), adapter=adapter, **SAMPLED) for question in QUESTIONS]
        run.finish()
        return [run.answers[key] for key in keys]

    with (
        EngineRun(adapters.merged[folder], "reference", **flags) as merged,
        EngineRun(six, "reference", **flags) as run,
    ):
        expected = answers(merged), answers(run)
    assert expected[0] != expected[1]
    with divided(six, **flags) as run:
        assert (answers(run, folder), answers(run)) == expected


def test_a_stage_without_experts(tmp_path: Path) -> None:
    """Of three layers, the two dense ones are the first stage's; experts that are shared are divided as MLPs are."""
    model = save_family("glm4_moe", tmp_path, num_hidden_layers=3, first_k_dense_replace=2, n_shared_experts=2)
    with EngineRun(model, "reference") as alone:
        expected = ask(alone)
    with divided(model, pipeline_parallel_size=2, depth=2) as run:
        assert ask(run) == expected
        assert [bool(worker.runner.build.notes) for worker in workers(run)] == [False, False, True, True]


# ---- what a rank has -------------------------------------------------------------------------------------------------


def test_a_rank_reads_its_own_experts_alone(six: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, names = Safetensors.read, defaultdict[int, list[str]](list)

    def read(self: Safetensors, part: Part) -> Tensor:
        names[id(self)].append(part.name)
        return original(self, part)

    monkeypatch.setattr(Safetensors, "read", read)
    with divided(six, ranks=4) as run:
        of_ranks = [names[id(worker.runner.services.source)] for worker in workers(run)]
    layers = ["model.layers.0", "model.layers.1"]
    for rank, experts in enumerate(([0, 1], [2, 3], [4], [5])):
        own = [
            f"{layer}.block_sparse_moe.experts.{expert}.{weight}.weight"
            for layer in layers
            for expert in experts
            for weight in ("w1", "w2", "w3")
        ]
        assert sorted(name for name in of_ranks[rank] if ".experts." in name) == own
        routers = [name for name in of_ranks[rank] if name.endswith(".gate.weight")]
        assert routers == [f"{layer}.block_sparse_moe.gate.weight" for layer in layers]


@pytest.mark.parametrize("number", [4, 6])
def test_a_rank_takes_what_the_plan_says(number: int, tmp_path: Path) -> None:
    """With numbers that divide evenly, as much as where each expert's weights are divided."""
    model = save_family("mixtral", tmp_path, **{**FOUR, "num_local_experts": number, "intermediate_size": 88})
    with divided(model, "reference", ranks=4) as run:
        info, planned = run.engine.info, plan_here(run.engine.config)
        own = [sum(one.nbytes for one in worker.runner.build.parameters) for worker in workers(run)]
    assert planned.weight_bytes == info.weight_bytes
    assert planned.cache_bytes == info.cache_bytes
    assert planned.notes == info.notes
    (note,) = info.notes
    sizes = {4: "1", 6: "2 or 1"}[number]
    assert note == f"each device has {sizes} of a layer's {number} experts (--enable-expert-parallel)"
    expert = 2 * 3 * 88 * 72 * 4  # bytes in two layers
    with divided(model, "reference", ranks=4, enable_expert_parallel=False) as run:
        cut = [sum(one.nbytes for one in worker.runner.build.parameters) for worker in workers(run)]
    if number == 4:
        assert own == cut
    assert [one - own[3] for one in own[:3]] == ([0, 0, 0] if number == 4 else [expert, expert, 0])


@pytest.mark.nightly
def test_two_processes(six: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(ROOT / path) for path in ("", "core", "platforms/cpu")))
    with EngineRun(six, "cpu") as alone:
        expected = ask(alone)
    with divided(six, executor=None, depth=2) as run:
        assert ask(run) == expected


def test_blocks_that_ranks_would_cut_stay_whole(tmp_path: Path) -> None:
    """88 inputs in blocks of 12 are 44 for each rank if it has a part of each expert."""
    plain = save_family("mixtral", tmp_path)
    folder, meant = save_fp8(plain, tmp_path, "blocks")
    with pytest.raises(ModelError, match="w2' is quantized in blocks of 16 x 12, which a shard of 44 of its 88"):
        divided(folder, "reference", enable_expert_parallel=False)
    flags = {"tensor_parallel_size": 2, "enable_expert_parallel": True, "executor": THREADS}
    two, one = scored(folder, "reference", **flags), scored(folder, "reference")
    assert apart(two, one) < 0.3 * apart(one, scored(meant, "reference"))
    assert most_apart(scored(folder, "cpu", **flags), scored(meant, "cpu", **flags)) < ROUNDING


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_what_cannot_be_divided_is_one_line(six: Path, llama: Path, mixtral: Path) -> None:
    """The inner size of an expert only matters where its weights are divided."""
    own = f"{OWN_RUNNERS}:TakesNothing"
    one_device = (
        "enable_expert_parallel divides experts among as many devices as tensor_parallel_size says, which is 1; raise "
        "it, or remove this."
    )
    own_way = "runs models its own way, which does not take --enable-expert-parallel; remove the flag."
    inner = "the inner size of the experts (90) is not divisible by --tensor-parallel-size 4."
    none = "LlamaForCausalLM has no experts; remove --enable-expert-parallel."
    cases: list[tuple[type[TesseraError], str, Path, dict[str, Any]]] = [
        (ModelError, inner, six, {"ranks": 4, "enable_expert_parallel": False}),
        (RefusedError, none, llama, {}),
        (ConfigError, one_device, six, {"ranks": 1}),
        (PlatformError, f"platform 'numpy' {own_way}", six, {"platform": own}),
    ]
    for kind, message, model, flags in cases:
        with pytest.raises(kind) as raised:
            divided(model, **flags)
        assert str(raised.value) == message
    config = build_config(
        model=str(mixtral), platform=PLATFORMS["cpu"], skip_tokenizer_init=True, tensor_parallel_size=6,
        enable_expert_parallel=True,
    )  # fmt: skip
    with pytest.raises(
        ModelError, match=r"^the model has 5 experts, which is fewer than --tensor-parallel-size 6; rem"
    ):
        plan_here(config)
