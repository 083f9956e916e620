"""The layers divided into stages, each on devices of its own: the same tokens as on one, with steps in flight on all of
them."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tessera import LLM, SamplingParams
from tessera.engine.plan import plan_here
from tessera.errors import EngineStepError, ModelError, PlatformError, RefusedError
from tests.engine.platforms.test_structured_outputs import GRAMMARS, HOT
from tests.engine.platforms.test_tokens_on_every_platform import FILTERED, SAMPLED, prompts
from tests.platforms.cpu_kernels import needs_kernels
from tests.platforms.engine_run import EngineRun
from tests.platforms.mixed_model import save_mixed
from tests.platforms.mixed_plugin import MIXED_PLUGIN
from tests.platforms.threads import THREADS
from tests.platforms.tiny_models import VOCAB, save_family

QUESTIONS = prompts(7, longest=60, seed=23)
EVERYTHING = {
    "logprobs": 2, "prompt_logprobs": 1, "presence_penalty": 0.5, "repetition_penalty": 1.2, "logit_bias": {7: 2.0},
    "min_tokens": 3, **FILTERED,
}  # fmt: skip
LAYERS = {"num_hidden_layers": 3}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", LAYERS),
    "tied": ("llama", {**LAYERS, "tie_word_embeddings": True}),
    "windows on the last stage": ("qwen2", {}),
    "no residual": ("gemma2", LAYERS),
    "layer norms": ("falcon", {"num_hidden_layers": 4, "tie_word_embeddings": True}),
    "linear biases": ("bloom", {**LAYERS, "tie_word_embeddings": True}),
    "experts": ("mixtral", LAYERS),
    "shared experts": ("glm4_moe", LAYERS),
    "a state beside keys and values": ("qwen3_5_text", {"num_hidden_layers": 4}),
    "a state on the last stage": ("lfm2", LAYERS),
    "layers of one part each": (
        "nemotron_h",
        {"layers_block_type": ["mlp", "full_attention", "mlp", "linear_attention"]},
    ),
    "two states of a layer": ("jamba", {}),
    "latent attention": ("deepseek_v3", LAYERS),
    "an indexer on each stage": ("glm_moe_dsa", {}),
    "native": ("llama", {**LAYERS, "head_dim": 16, "intermediate_size": 96}),
}
ROOT = Path(__file__).parents[3]
Model = Callable[[str], Path]


@pytest.fixture(autouse=True)
def children_find_tessera(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "core"), str(ROOT / "platforms/cpu")]))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            family, differs = MODELS[name]
            made[name] = save_family(family, tmp_path_factory.mktemp("staged"), **differs)
        return made[name]

    return make


def ask(run: EngineRun) -> tuple[Any, ...]:
    answers = [run.ask(QUESTIONS, 12, **params) for params in ({}, SAMPLED, EVERYTHING)]
    logprobs = [[row.ids.tolist() for row in rows] for rows in run.logprobs.values()]
    scored = [[ids for part in parts for ids in part.ids.tolist()] for parts in run.scored.values()]
    return answers, logprobs, scored


def staged(model: Path, platform: str = "cpu", stages: int = 2, **flags: Any) -> EngineRun:
    """With a thread for each worker."""
    flags = {"executor": THREADS, "depth": stages, **flags}
    return EngineRun(model, platform, pipeline_parallel_size=stages, **flags)


def runners(run: EngineRun) -> list[Any]:
    executor: Any = run.engine._executor
    return [worker.runner for worker in executor.workers]


@pytest.mark.parametrize("name", MODELS)
def test_two_stages_give_the_same_tokens(name: str, model: Model) -> None:
    with EngineRun(model(name), "cpu") as alone:
        expected = ask(alone)
    with staged(model(name)) as run:
        assert ask(run) == expected


@pytest.mark.parametrize(
    "flags",
    [
        {"stages": 3, "depth": 4},
        {"stages": 3, "depth": 1},
        {"depth": 3, "max_num_batched_tokens": 16, "max_num_seqs": 3},
        {"depth": 2, "max_num_batched_tokens": 8, "max_num_seqs": 8, "enable_prefix_caching": False},
        {"tensor_parallel_size": 2, "max_num_batched_tokens": 24},
        {"platform": "strict", "depth": 3},
        {"platform": "strict-separate", "depth": 3},
    ],
    ids=lambda flags: " ".join(f"{name}={value}" for name, value in flags.items()),
)
def test_whatever_is_in_flight(flags: dict[str, Any], model: Model) -> None:
    """Prompts in chunks; more stages and more steps than requests; shards within a stage; steps of prompts or of
    answers alone."""
    with EngineRun(model("llama"), "reference") as alone:
        expected = ask(alone)
    with staged(model("llama"), **flags) as run:
        assert ask(run) == expected


def test_preemption_changes_no_token(model: Model) -> None:
    room = {"max_model_len": 96, "kv_cache_memory_bytes": 300 * 384}
    questions = prompts(8, longest=30, seed=7)
    with EngineRun(model("llama"), "reference") as alone:
        expected = alone.ask(questions, 60, ignore_eos=True, **SAMPLED)
    with staged(model("llama"), depth=3, **room) as run:
        assert run.ask(questions, 60, ignore_eos=True, **SAMPLED) == expected
        assert run.engine.stats.counters.preemptions > 0


def test_a_row_that_goes_to_another_request_gets_no_token_of_the_last(model: Model) -> None:
    """The first stage has not received what the last one drew for an answer that ended when its row is opened again:
    nothing embedded it. It must not come into the new request's prompt, of which a part is still to be computed."""
    rng = random.Random(5)
    lengths = [(30, 1), (60, 4), (60, 1)]  # the third takes the row of the first, and the second decodes meanwhile
    asked = [([rng.randrange(3, VOCAB) for _ in range(length)], answer) for length, answer in lengths]

    def answers(run: EngineRun) -> list[list[int]]:
        keys = [run.add(prompt, answer, ignore_eos=True) for prompt, answer in asked]
        run.finish()
        return [run.answers[key] for key in keys]

    flags = {"max_num_seqs": 2, "enable_prefix_caching": False}
    with EngineRun(model("llama"), "reference", **flags) as alone:
        expected = answers(alone)
    with staged(model("llama"), max_num_batched_tokens=8, **flags) as run:
        assert answers(run) == expected


def ask_masked(run: EngineRun) -> list[list[int]]:
    """Each grammar, and every third request without one."""
    keys = []
    for i, question in enumerate(QUESTIONS):
        grammar = GRAMMARS[i % len(GRAMMARS)] if i % 3 else None
        keys.append(run.add(question, 20, seed=i, structured_outputs=grammar, ignore_eos=not grammar, **HOT))
    run.finish()
    return [run.answers[key] for key in keys]


@pytest.mark.parametrize(
    "flags",
    [
        {"depth": 1},
        {"depth": 3, "max_num_seqs": 3, "max_num_batched_tokens": 16},
        {"tensor_parallel_size": 2},
        pytest.param({"executor": None}, marks=pytest.mark.nightly),
    ],
    ids=lambda flags: " ".join(f"{name}={value}" for name, value in flags.items()),
)
def test_grammars_mask_what_the_last_stage_draws(flags: dict[str, Any], model: Model) -> None:
    options = {"features": ["structured_outputs"], "tokenizer": str(model("llama"))}
    with EngineRun(model("llama"), "reference", **options) as alone:
        expected = ask_masked(alone)
        assert "stop" in alone.ended.values(), "no answer was limited by its grammar"
    with staged(model("llama"), **options, **flags) as run:
        assert ask_masked(run) == expected


def test_an_abort_while_steps_are_in_flight_leaves_the_others_as_they_are(model: Model) -> None:
    """Its row goes to a request that waits."""
    with EngineRun(model("llama"), "reference") as alone:
        expected = alone.ask(QUESTIONS, 12, ignore_eos=True)
    with staged(model("llama"), depth=3, max_num_seqs=3, max_num_batched_tokens=16) as run:
        keys = [run.add(question, 12, seed=seed, ignore_eos=True) for seed, question in enumerate(QUESTIONS)]
        for aborted in (0, 2, 4):
            for _ in range(4):
                run.step()
            run.engine.abort([keys[aborted]])
        run.finish()
        for number, key in enumerate(keys):
            assert run.ended[key] == ("abort" if number in (0, 2, 4) else "length")
            assert run.answers[key] == expected[number][: len(run.answers[key])]


def test_rows_take_turns_so_that_no_step_waits_for_a_token_of_the_one_before(model: Model) -> None:
    with staged(model("llama"), depth=2, enable_prefix_caching=False) as run:
        executor: Any = run.engine._executor
        run.ask(QUESTIONS[:6], 20, ignore_eos=True)
        steps = [set(step.rows.tolist()) for step in executor.steps]
        decodes = [step for step in executor.steps if (step.num_scheduled_tokens == 1).all()]
    assert len(decodes) > 20
    assert not any(before & after for before, after in zip(steps[2:-4], steps[3:-3], strict=True))
    assert max(step.after - step.step for step in decodes[1:-4]) == -2


def test_a_stage_has_its_own_layers_alone(model: Model) -> None:
    def names(runner: Any) -> set[str]:
        parameters = runner.build.parameters
        return {part.name for each in parameters for name in each.parts for join in each.joins(name) for part in join}

    with staged(model("llama")) as run:
        first, last = map(names, runners(run))
        assert {name for name in first if "layers" not in name} == {"model.embed_tokens.weight"}
        assert {name for name in last if "layers" not in name} == {"model.norm.weight", "lm_head.weight"}
        assert {int(name.split(".")[2]) for name in first if "layers" in name} == {0, 1}
        assert {int(name.split(".")[2]) for name in last if "layers" in name} == {2}
        assert [len(runner.caches) for runner in runners(run)] == [2, 1]
        planned, info = plan_here(run.engine.config), run.engine.info
        assert (planned.weight_bytes, planned.num_weights) == (info.weight_bytes, info.num_weights)
        assert (planned.cache_bytes, planned.choices) == (info.cache_bytes, info.choices)
        assert [one.place.partition(":")[0] for one in info.choices if one.what == "attention"] == [
            "layers 0-1", "layer 2",
        ]  # fmt: skip
    with staged(model("tied")) as run:
        table = "model.embed_tokens.weight"
        assert [table in names(runner) for runner in runners(run)] == [True, True]
        assert not any("lm_head.weight" in names(runner) for runner in runners(run))


@needs_kernels
@pytest.mark.parametrize("flags", [{}, {"quantization": "int8"}, {"quantization": "int4"}], ids=str)
def test_a_tied_head_is_looked_up_in_as_on_one_stage(flags: dict[str, Any], model: Model) -> None:
    """One request at a time: in few bits, how many rows there are may change a token."""
    flags = {"dtype": "bfloat16", **flags}
    with EngineRun(model("tied"), "cpu", **flags) as alone:
        expected = [alone.ask([question], 12) for question in QUESTIONS]
    with staged(model("tied"), **flags) as run:
        assert [run.ask([question], 12) for question in QUESTIONS] == expected


@needs_kernels
def test_each_stage_records_its_decode_steps(model: Model) -> None:
    with staged(model("native"), dtype="bfloat16") as run:
        recorded = [type(one).__name__ for runner in runners(run) for one in runner.executables.values()]
        found = run.ask(QUESTIONS, 12)
    assert recorded == ["Recorded", "Recorded"]
    with staged(model("native"), dtype="bfloat16", enforce_eager=True) as run:
        assert run.ask(QUESTIONS, 12) == found


# ---- worker processes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tensor", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_processes_give_the_same_tokens(tensor: int, model: Model) -> None:
    with EngineRun(model("tied"), "cpu") as alone:
        expected = ask(alone)
    with staged(model("tied"), depth=3, executor=None, tensor_parallel_size=tensor, max_num_batched_tokens=32) as run:
        executor: Any = run.engine._executor
        assert len(executor.workers) == 2 * tensor
        assert ask(run) == expected
        processes = [worker.process for worker in executor.workers]
    assert [process.wait(0) for process in processes] == [0] * len(processes)


@pytest.mark.parametrize("stage", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_stage_that_dies_is_one_line(stage: int, model: Model) -> None:
    run = staged(model("llama"), executor=None)
    executor: Any = run.engine._executor
    processes = [worker.process for worker in executor.workers]
    run.add(QUESTIONS[0], 60, ignore_eos=True)
    run.step()
    os.kill(processes[stage].pid, signal.SIGKILL)
    with pytest.raises(EngineStepError, match=r"worker [01] (ended with exit code|failed)") as raised:
        run.finish()
    assert "\n" not in raised.value.message
    run.close()
    assert not any(process.is_running for process in processes)


def test_it_is_a_keyword_of_llm(model: Model) -> None:
    flags = {"skip_tokenizer_init": True, "dtype": "float32", "kv_cache_memory_bytes": 1 << 21, "platform": "cpu"}
    params = SamplingParams(max_tokens=6, temperature=0.0)
    answers = []
    for stages in (1, 2):
        with LLM(str(model("llama")), pipeline_parallel_size=stages, **flags) as llm:
            outputs = llm.generate(prompt_token_ids=QUESTIONS[:2], sampling_params=params, use_tqdm=False)
            answers.append([list(output.outputs[0].token_ids) for output in outputs])
    assert answers[0] == answers[1]


# ---- what cannot be divided ------------------------------------------------------------------------------------------


def test_more_stages_than_layers_are_refused(model: Model) -> None:
    with pytest.raises(ModelError, match="the model has 3 layers, which is fewer than --pipeline-parallel-size 4"):
        staged(model("llama"), stages=4)


def test_a_model_without_stages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="cannot be divided into stages; remove --pipeline-parallel-size 2"):
        staged(save_mixed(tmp_path), plugins=[MIXED_PLUGIN])


def test_a_platforms_own_runner_is_refused(model: Model) -> None:
    with pytest.raises(PlatformError, match="which does not take --pipeline-parallel-size 2; remove the flag"):
        staged(model("llama"), "numpy")
