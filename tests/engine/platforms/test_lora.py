"""Adapters: each row answers as the model does that its adapter is merged into, whatever else is in the batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tessera.engine.plan import plan_here
from tessera.errors import ModelError, PlatformError, RequestError
from tessera.testing.conformance.lora import save_adapter
from tessera.testing.conformance.tiny import save_checkpoint
from tests.engine.platforms.conftest import Start
from tests.engine.platforms.test_tape import SETTINGS as SETTINGS_OF_TAPES
from tests.engine.platforms.test_tokens_on_every_platform import SAMPLED, prompts
from tests.platforms.adapters import save_merged
from tests.platforms.cpu_kernels import needs_kernels
from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import save_family

ROOT = Path(__file__).parents[3]
QUESTIONS = prompts(9, longest=40, seed=23)
LORA: dict[str, Any] = {"features": ["lora"], "enable_lora": True, "max_loras": 3}
SETTINGS: dict[str, dict[str, Any]] = {
    "all": {"rank": 4},
    "attention": {"rank": 7, "targets": ("q_proj", "v_proj"), "use_rslora": True},
    "mlp": {"rank": 16, "targets": ("up_proj", "down_proj"), "lora_alpha": 8},
}
LONG = [3 + 7 * place % 90 for place in range(60)]
Merged = Callable[..., list[int]]


@dataclass(frozen=True)
class Adapters:
    """folders: of adapters. merged: of models with each of them merged in, by the adapter's folder; "" is the model
    without."""

    folders: list[str]
    merged: dict[str, Path]


def made(model: Path, folder: Path, settings: dict[str, dict[str, Any]] = SETTINGS) -> Adapters:
    merged = {"": model}
    for seed, (name, said) in enumerate(settings.items()):
        adapter = save_adapter(model, folder / name, seed=seed, **said)
        merged[str(adapter)] = save_merged(model, adapter, folder / f"{name}-merged")
    return Adapters([name for name in merged if name], merged)


@pytest.fixture(scope="session")
def adapters(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Adapters:
    return made(llama, tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="session")
def merged(adapters: Adapters) -> Iterator[Merged]:
    """merged(adapter, prompt, 12): what the merged model answers on the reference platform to this alone."""
    runs: dict[str, EngineRun] = {}

    def answer(adapter: str, prompt: list[int], max_tokens: int = 12, **params: Any) -> list[int]:
        if adapter not in runs:
            runs[adapter] = EngineRun(adapters.merged[adapter], "reference", enable_prefix_caching=False)
        key = runs[adapter].add(prompt, max_tokens, **params)
        runs[adapter].finish()
        return runs[adapter].answers[key]

    yield answer
    for run in runs.values():
        run.close()


def turns(adapters: Adapters) -> list[str]:
    """The adapter of each question: all of them, and none."""
    return [("", *adapters.folders)[i % 4] for i in range(len(QUESTIONS))]


def expected(merged: Merged, asked: Sequence[str], max_tokens: int = 12, **params: Any) -> list[list[int]]:
    return [merged(adapter, QUESTIONS[i], max_tokens, seed=i, **params) for i, adapter in enumerate(asked)]


def ask(run: EngineRun, asked: Sequence[str], max_tokens: int = 12, **params: Any) -> list[list[int]]:
    keys = [run.add(QUESTIONS[i], max_tokens, seed=i, adapter=adapter, **params) for i, adapter in enumerate(asked)]
    run.finish()
    return [run.answers[key] for key in keys]


@pytest.mark.parametrize("params", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_each_row_answers_as_the_merged_model(start: Start, adapters: Adapters, merged: Merged, params: Any) -> None:
    asked = turns(adapters)
    answers = expected(merged, asked, 40, ignore_eos=True, **params)
    assert answers != expected(merged, [""] * len(asked), 40, ignore_eos=True, **params)
    run = start(**LORA, max_num_seqs=5, max_model_len=96, kv_cache_memory_bytes=130 * 384)
    assert ask(run, asked, 40, ignore_eos=True, **params) == answers
    assert run.engine.stats.counters.preemptions > 0


def test_adapters_take_turns_in_the_slots(start: Start, adapters: Adapters, merged: Merged) -> None:
    asked = turns(adapters)
    run = start(**{**LORA, "max_loras": 1})
    assert ask(run, asked) == expected(merged, asked)
    assert len(run.executor.runner.features[0].loaded) == 1


def test_a_prefix_is_found_by_its_own_adapter_alone(start: Start, adapters: Adapters, merged: Merged) -> None:
    run = start(**LORA)
    one, other, _ = adapters.folders
    keys = []
    for adapter in ("", one, other, one, ""):
        keys.append(run.add(LONG, adapter=adapter))
        run.finish()
    assert [run.cached[key] > 0 for key in keys] == [False, False, False, True, True]
    assert [run.answers[key] for key in keys] == [merged(adapter, LONG) for adapter in ("", one, other, one, "")]


def test_siblings_share_their_adapter(start: Start, adapters: Adapters, merged: Merged) -> None:
    run = start(**LORA)
    adapter = adapters.folders[0]
    first = run.add(LONG, adapter=adapter, seed=0, **SAMPLED)
    others = [run.add(LONG, adapter=adapter, leader=first, seed=seed, **SAMPLED) for seed in (1, 2)]
    run.finish()
    for seed, key in enumerate((first, *others)):
        assert run.answers[key] == merged(adapter, LONG, seed=seed, **SAMPLED)


def test_steps_without_an_adapter_run_none_of_it(
    llama: Path, adapters: Adapters, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EngineRun(llama, "reference", **LORA) as run:
        refused = "sampling is one composite unless a feature changes logits"
        monkeypatch.setattr(run.executor.runner.model, "logits", lambda rows: pytest.fail(refused))
        runs = run.executor.runner.build.ops.fallbacks
        ask(run, [""] * 4)
        assert runs["lora"] == 0
        ask(run, ["", adapters.folders[0]])
        assert runs["lora"] > 0


def test_launches_with_and_without_adapters_are_captured_apart(llama: Path, adapters: Adapters) -> None:
    with EngineRun(llama, "strict", **LORA, depth=2) as run:
        runner = run.executor.runner
        assert {key.bits for key in runner.executables} == {frozenset(), frozenset(("lora",))}
        mlp = next(choice for choice in runner.build.ops.choices.values() if choice.op == "gated_mlp")
        assert mlp.how == "native"
        replays = runner.graphs.replays
        ask(run, turns(adapters))
        assert runner.graphs.replays > replays


@needs_kernels
def test_decode_steps_are_one_native_call(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, SETTINGS_OF_TAPES, "bfloat16")
    with EngineRun(tmp_path, "cpu", **LORA, dtype="bfloat16") as run:
        recorded = {key.bits: type(made).__name__ for key, made in run.executor.runner.executables.items()}
        assert recorded == {frozenset(): "Recorded", frozenset(("lora",)): "Recorded"}


@pytest.mark.parametrize(
    "family", ["phi3", "qwen2", "gemma2", "falcon", "olmo2", "mixtral", "glm4_moe", "deepseek_v3", "lfm2", "mamba"]
)
def test_other_families(family: str, tmp_path: Path) -> None:
    """Joined and grouped weights, biases, windows, no norm before a product, experts."""
    model = save_family(family, tmp_path)
    targets = {
        "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
        "falcon": ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
        "mixtral": ("q_proj", "k_proj", "v_proj", "o_proj", "gate"),
        "glm4_moe": ("q_proj", "k_proj", "v_proj", "o_proj", "gate"),
        "deepseek_v3": ("q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "o_proj"),
        "lfm2": ("in_proj", "out_proj", "q_proj", "w1", "w2", "w3"),
        "mamba": ("in_proj", "x_proj", "dt_proj", "out_proj"),
    }.get(family)
    said = {"rank": 5} if targets is None else {"rank": 5, "targets": targets}
    adapters = made(model, tmp_path / "adapters", {"one": said, "other": {**said, "rank": 3}})
    asked = [("", *adapters.folders)[i % 3] for i in range(6)]
    answers = []
    for i, adapter in enumerate(asked):
        with EngineRun(adapters.merged[adapter], "reference") as run:
            answers.append(run.ask([QUESTIONS[i]])[0])
    for platform in ("cpu", "strict"):
        with EngineRun(model, platform, **LORA, depth=2) as run:
            assert ask(run, asked) == answers


def test_two_ranks(llama: Path, adapters: Adapters, merged: Merged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(ROOT / path) for path in ("", "core", "platforms/cpu")))
    asked = turns(adapters)
    modules = [f"a{number}={folder}" for number, folder in enumerate(adapters.folders)]
    flags = {**LORA, "lora_modules": modules, "tensor_parallel_size": 2, "depth": 2}
    with EngineRun(llama, "cpu", executor=None, **flags) as run:
        assert ask(run, asked) == expected(merged, asked)
        assert plan_here(run.engine.config).weight_bytes == run.engine.info.weight_bytes


def test_the_base_may_be_quantized(llama: Path, adapters: Adapters) -> None:
    """With the base rounded, an adapter changes the answers of its rows and no others."""
    asked = turns(adapters)
    options: dict[str, Any] = {"quantization": "int8", "dtype": "float32"}
    with EngineRun(llama, "reference", **options) as run:
        plain = ask(run, [""] * len(asked))
    with EngineRun(llama, "reference", **options, **LORA) as run:
        assert run.executor.runner.build.weights.quantised
        answers = ask(run, asked)
        alone = [ask(run, [""] * i + [adapter])[i] for i, adapter in enumerate(asked[:4])]
    assert answers[:4] == alone
    assert [answer == other for answer, other in zip(answers, plain, strict=True)] == [not adapter for adapter in asked]


# ---- what cannot be served is one line -------------------------------------------------------------------------------


def test_a_layer_that_the_model_does_not_have_is_refused_at_the_start(llama: Path, tmp_path: Path) -> None:
    other = save_family("qwen2", tmp_path, num_hidden_layers=3)
    adapter = save_adapter(other, tmp_path / "adapter", seed=0)
    with pytest.raises(ModelError, match=r"'model\.layers\.2\..*', which is not a linear layer of this model"):
        EngineRun(llama, "cpu", **LORA, lora_modules=[f"other={adapter}"])
    with EngineRun(llama, "cpu", **LORA) as run:
        with pytest.raises(RequestError, match="is not a linear layer of this model"):
            run.add([1, 2], adapter=str(adapter))
        wide = save_family("llama", tmp_path, hidden_size=96)
        with pytest.raises(RequestError, match=r"has 72 outputs and 96 inputs, but the model's has 72 outputs and 72"):
            run.add([1, 2], adapter=str(save_adapter(wide, tmp_path / "wide", seed=0, targets=["q_proj"])))
        assert not run.engine.has_work


def test_weights_that_are_no_numbers_are_refused(llama: Path, tmp_path: Path) -> None:
    adapter = save_adapter(llama, tmp_path / "adapter", seed=0)
    weights = load_file(adapter / "adapter_model.safetensors")
    next(iter(weights.values()))[0, 0] = float("nan")
    save_file(weights, adapter / "adapter_model.safetensors")
    with pytest.raises(ModelError, match="holds NaN or infinity in float32; train it again"):
        EngineRun(llama, "cpu", **LORA, lora_modules=[f"nan={adapter}"])


def test_a_request_cannot_choose_a_slot(start: Start) -> None:
    run = start(**LORA)
    with pytest.raises(RequestError, match="Unknown extra_args"):
        run.add([1, 2], columns={"lora_slot": 0})


def test_where_they_are_off_a_request_for_one_is_refused(start: Start, adapters: Adapters) -> None:
    run = start()
    with pytest.raises(RequestError, match=r"lora is off here \(--features does not name it\)"):
        run.add([1, 2], adapter=adapters.folders[0])


def test_a_platform_with_a_runner_of_its_own_refuses_the_flag(llama: Path) -> None:
    with pytest.raises(PlatformError, match="does not take --enable-lora"):
        EngineRun(llama, "numpy", **LORA)
