"""Adapters: each row answers as the model does that its adapter is merged into, whatever else is in the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tessera.ops import LoraSpec
from tessera.ops.lora import lora
from tessera.testing.conformance.lora import save_adapter
from tessera_tpu.arrays import host_array
from tessera_tpu.ops import adapted
from tests.engine.platforms.test_speculation import DRAFTS
from tests.engine.platforms.test_tokens_on_every_platform import SAMPLED, prompts
from tests.platforms.adapters import save_merged
from tests.platforms.engine_run import EngineRun

LORA: dict[str, Any] = {"features": ["lora"], "enable_lora": True, "max_loras": 2, "max_lora_rank": 16}
UNWATCHED: dict[str, Any] = {**LORA, "executor": "tessera.executor.in_process:InProcessExecutor"}
"""Nobody counts what is read on the host, where adapters are until they are copied to the device."""
QUESTIONS = prompts(7, longest=40, seed=23)
SETTINGS = (
    {"rank": 4},
    {"rank": 7, "targets": ("q_proj", "v_proj")},
    {"rank": 16, "targets": ("up_proj", "down_proj")},
)


@pytest.fixture(scope="module")
def merged(family: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models with an adapter merged in, by the adapter's folder; "" is the model without."""
    folder, model = tmp_path_factory.mktemp("adapters"), family("llama")
    found = {"": model}
    for seed, said in enumerate(SETTINGS):
        adapter = save_adapter(model, folder / str(seed), seed=seed, **said)
        found[str(adapter)] = save_merged(model, adapter, folder / f"{seed}-merged")
    return found


def asked(merged: dict[str, Path]) -> list[str]:
    """The adapter of each question."""
    names = list(merged)
    return [names[number % len(names)] for number in range(len(QUESTIONS))]


def expected(merged: dict[str, Path], max_tokens: int, **params: Any) -> list[list[int]]:
    answers: dict[int, list[int]] = {}
    for name, folder in merged.items():
        with EngineRun(folder, "reference") as run:
            own = {
                n: run.add(QUESTIONS[n], max_tokens, seed=n, **params)
                for n, of in enumerate(asked(merged))
                if of == name
            }
            run.finish()
            answers |= {number: run.answers[key] for number, key in own.items()}
    return [answers[number] for number in range(len(QUESTIONS))]


def answered(run: EngineRun, merged: dict[str, Path], max_tokens: int, **params: Any) -> list[list[int]]:
    keys = [
        run.add(question, max_tokens, seed=number, adapter=adapter, **params)
        for number, (question, adapter) in enumerate(zip(QUESTIONS, asked(merged), strict=True))
    ]
    run.finish()
    return [run.answers[key] for key in keys]


@pytest.mark.parametrize("params", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_each_row_answers_as_the_merged_model(start: Any, merged: Any, params: dict) -> None:
    """Three adapters take turns in two slots."""
    right = expected(merged, 12, **params)
    assert right != expected({"": merged[""]}, 12, **params)
    assert answered(start(**UNWATCHED), merged, 12, **params) == right


@pytest.mark.parametrize(
    "options", [{"tensor_parallel_size": 2}, {"speculative_config": DRAFTS}], ids=["two devices", "drafts"]
)
def test_adapters_with(start: Any, merged: Any, options: dict) -> None:
    assert answered(start(**UNWATCHED, **options), merged, 12) == expected(merged, 12)


def test_adapters_beside_int8_weights(start: Any, merged: Any) -> None:
    """As on the reference, since a merged model has other weights to round."""
    found = []
    for run in (
        start(**UNWATCHED, quantization="int8"), EngineRun(merged[""], "reference", **LORA, quantization="int8"),
    ):  # fmt: skip
        found.append(answered(run, merged, 8))
        run.close()
    assert found[0] == found[1]


def test_programs_are_compiled_when_it_starts(start: Any, merged: Any) -> None:
    run = start(**UNWATCHED)
    programs = run.executor.worker.runner.programs
    before = len(programs.compiled_keys) + len(programs.cached_keys)
    answered(run, merged, 5)
    assert len(programs.compiled_keys) + len(programs.cached_keys) == before
    bits = {key[1].bits for key in (*programs.compiled_keys, *programs.cached_keys) if key[0] == "forward"}
    assert bits == {frozenset(), frozenset({"lora"})}


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_all_slots_in_one_product(dtype: str, tolerance: float) -> None:
    spec, tokens, kind = LoraSpec((23, 9, 9), 40, 5, 3, dtype), 13, getattr(torch, dtype)
    torch.manual_seed(7)
    y, x = torch.randn(tokens, 41).to(kind), torch.randn(tokens, 40).to(kind)
    a, b = (torch.randn(3, 15, 40) / 6).to(kind), (torch.randn(3, 5, 41) / 2).to(kind)
    x[4] = torch.nan  # which must not reach other tokens
    scales, slots = torch.rand(3) + 0.5, torch.randint(-1, 3, (tokens,), dtype=torch.int32)
    slots[:5] = torch.tensor([-1, 0, 1, 2, 1])
    found = adapted(spec, *map(host_array, (y, x, a, b, scales, slots)))
    lora(spec, y, x, a, b, scales, slots)
    right = y.float().numpy()
    assert np.isnan(right[4]).all()
    assert not np.isnan(np.delete(right, 4, 0)).any()
    np.testing.assert_allclose(np.asarray(found, np.float32), right, atol=tolerance, rtol=tolerance)
