"""Whole engines answer as on the reference platform, whatever else happens to be going on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.platforms.test_speculation import DRAFTS, speculating, verified
from tests.engine.platforms.test_tokens_on_every_platform import FILTERED, SAMPLED, prompts
from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import text_of

HOST = "tessera_tpu.platform:HostPlatform"
FAMILIES = ("gemma2", "gemma3_text", "mixtral", "olmo2", "qwen2", "qwen3")
PENALIZED = {**SAMPLED, "presence_penalty": 1.5, "repetition_penalty": 1.4}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("params", [{}, SAMPLED, FILTERED], ids=["greedy", "sampled", "filtered"])
def test_tokens_are_the_references(start: Any, expected: Any, depth: int, params: dict) -> None:
    questions = prompts(11)
    assert start(depth=depth).ask(questions, 14, ignore_eos=True, **params) == expected(
        "llama", questions, 14, **params
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_families_answer_as_the_reference(start: Any, expected: Any, name: str) -> None:
    questions = prompts(4, seed=2)
    assert start(name).ask(questions, 10, ignore_eos=True) == expected(name, questions, 10)


def test_kernels_answer_as_the_reference(start: Any, expected: Any) -> None:
    """Gemma 2 has windows and a soft cap."""
    questions = prompts(3, longest=40, seed=2)
    run = start("gemma2", platform="InterpretedPlatform")
    assert run.ask(questions, 6, ignore_eos=True) == expected("gemma2", questions, 6)


@pytest.mark.parametrize(
    ("platform", "options"),
    [("HostPlatform", {}), ("HostPlatform", {"tensor_parallel_size": 2}), ("InterpretedPlatform", {})],
    ids=["plain", "two devices", "kernels"],
)
def test_int8_caches_answer_as_on_the_reference(start: Any, family: Any, platform: str, options: dict) -> None:
    """Rounding moves log probabilities further than two ways to compute them differ."""
    folder, found = family("gemma2"), []
    runs = (
        start("gemma2", platform=platform, kv_cache_dtype="int8", **options),
        EngineRun(folder, "reference", kv_cache_dtype="int8"), EngineRun(folder, "reference"),
    )  # fmt: skip
    for run in runs:
        keys = [run.add(question, 6, logprobs=0, ignore_eos=True) for question in prompts(3, longest=40, seed=2)]
        run.finish()
        found.append(np.array([[row.logprobs[0, 0] for row in run.logprobs[key]] for key in keys]))
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)
    assert np.abs(found[1] - found[2]).max() > 5e-4


def test_prompts_are_divided_where_a_step_ends(start: Any, expected: Any) -> None:
    questions = prompts(3, longest=90, seed=4)
    run = start(max_num_batched_tokens=24)
    assert run.ask(questions, 8, ignore_eos=True) == expected("llama", questions, 8)
    assert max(step.total_num_scheduled_tokens for step in run.steps) == 24


def test_blocks_are_shared_copied_and_taken_away(start: Any, expected: Any) -> None:
    shared = prompts(1, seed=8)[0] * 3
    questions = [shared + rest for rest in prompts(5, longest=9, seed=9)]
    run = start(kv_cache_memory_bytes=9 * 32 * 384)
    leader = run.add(questions[0], 30, seed=0, ignore_eos=True, **SAMPLED)
    run.add(questions[0], 30, seed=1, leader=leader, ignore_eos=True, **SAMPLED)
    for seed, question in enumerate(questions[1:], start=2):
        run.add(question, 30, seed=seed, ignore_eos=True, **SAMPLED)
    run.finish()
    asked = [questions[0], *questions]
    assert list(run.answers.values()) == expected("llama", asked, 30, **SAMPLED)
    counters = run.engine.stats.counters
    assert min(counters.forked_tokens, counters.cached_prompt_tokens, counters.preemptions) > 0
    assert any(step.copies for step in run.steps)


@pytest.mark.parametrize("params", [{}, SAMPLED, PENALIZED], ids=["greedy", "sampled", "penalized"])
def test_drafts_change_no_token(start: Any, expected: Any, params: dict) -> None:
    questions = prompts(6, seed=3)
    answers = expected("llama", questions, 20, **params)
    whole = [[*question, *answer] for question, answer in zip(questions, answers, strict=True)]
    with speculating(start(speculative_config=DRAFTS), whole) as run:
        assert run.ask(questions, 20, ignore_eos=True, **params) == answers
        verified(run)


def test_rows_are_masked_as_on_the_reference(start: Any, family: Any) -> None:
    folder, found = family("llama"), []
    options = {"features": ["structured_outputs"], "tokenizer": str(folder)}
    for run in (start(**options), EngineRun(folder, "reference", **options)):
        keys = [
            run.add(question, 12, seed=seed, structured_outputs={"regex": "[a-f]+[0-9]"} if seed % 2 else None)
            for seed, question in enumerate(prompts(5))
        ]
        run.finish()
        found.append([run.answers[key] for key in keys])
    assert found[0] == found[1]
    assert all(re.fullmatch("[a-f]+[0-9]?", text_of(answer)) for answer in found[0][1::2])


def test_log_probabilities_and_edits_are_the_references(start: Any, family: Any) -> None:
    found = []
    for run in (start(), EngineRun(family("llama"), "reference")):
        keys = [
            run.add(question, 5, seed=seed, logprobs=wanted, logit_bias={7: 3.0}, ignore_eos=True)
            for seed, (question, wanted) in enumerate(zip(prompts(3), (0, None, 4), strict=True))
        ]
        run.finish()
        found.append([run.logprobs[key] for key in keys])
    for mine, theirs in zip(*found, strict=True):
        assert [row.ids.tolist() for row in mine] == [row.ids.tolist() for row in theirs]
        for own, other in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(own.logprobs, other.logprobs, atol=1e-4)


def test_what_programs_have_no_room_for_is_sampled_on_the_host(start: Any, family: Any) -> None:
    """More edits than a launch takes, in one of its rows; executor: nobody counts what the host reads."""
    asked = [{}, {"logit_bias": {token: (token % 7) / 2 for token in range(290)}}, {"presence_penalty": 1.5}]
    found = []
    for run in (
        start(executor="tessera.executor.in_process:InProcessExecutor"),
        EngineRun(family("llama"), "reference"),
    ):
        keys = [
            run.add(question, 8, seed=seed, ignore_eos=True, **SAMPLED, **params)
            for seed, (question, params) in enumerate(zip(prompts(3, seed=7), asked, strict=True))
        ]
        run.finish()
        found.append([run.answers[key] for key in keys])
    assert found[0] == found[1]


def test_the_demo_answers(tmp_path: Path) -> None:
    from tessera import LLM, SamplingParams

    texts = []
    for platform in (HOST, "tessera.testing:ReferencePlatform"):
        settings = {"platform": platform, "dtype": "float32", "kv_cache_memory_bytes": 1 << 24, "max_model_len": 256}
        with LLM(max_num_seqs=4, max_num_batched_tokens=64, **settings) as llm:
            params = SamplingParams(temperature=0.0, max_tokens=12)
            texts.append(llm.chat([[{"role": "user", "content": "What is the capital of France?"}]], params)[0])
    mine, reference = (output.outputs[0].token_ids for output in texts)
    assert "Paris" in texts[0].outputs[0].text
    assert list(mine) == list(reference)
