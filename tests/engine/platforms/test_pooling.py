"""Requests that pool on every platform: a vector is that of transformers, whatever else is going on, and what runs
beside it has the tokens that it has alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tessera.errors import RequestError
from tessera.scheduler.rows import NO_ROW
from tests.engine.platforms.conftest import Alone, Start
from tests.engine.platforms.test_tokens_on_every_platform import prompts
from tests.platforms.engine_run import EngineRun

TEXTS = prompts(9, seed=5)
TOLERANCE = 2e-5
"""Of float32 states whose elements are about 1."""

States = Callable[[Sequence[int]], torch.Tensor]

BY_HAND: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "LAST": lambda states: states[-1],
    "CLS": lambda states: states[0],
    "MEAN": lambda states: states.mean(0),
    "MAX": lambda states: states.amax(0),
    "MEAN_SQRT_LEN": lambda states: states.sum(0) / len(states) ** 0.5,
    "WEIGHTED_MEAN": lambda states: (
        (torch.arange(1.0, len(states) + 1)[:, None] * states).sum(0) / (len(states) * (len(states) + 1) / 2)
    ),
}


@pytest.fixture(scope="session")
def states(llama: Path) -> States:
    """The hidden states after the final norm, of transformers."""
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32).eval()

    @torch.inference_mode()
    def forward(tokens: Sequence[int]) -> torch.Tensor:
        hidden: torch.Tensor = model.model(torch.tensor([list(tokens)])).last_hidden_state[0]
        return hidden

    return forward


@pytest.fixture
def embedder(start: Start) -> Callable[..., EngineRun]:
    """embedder("MEAN", max_num_seqs=4): the tiny Llama with a head that pools beside the one that samples."""

    def make(pooling: str = "LAST", **options: Any) -> EngineRun:
        return start(convert="embed", pooler_config={"pooling_type": pooling}, **options)

    return make


def check(run: EngineRun, key: int, expected: torch.Tensor) -> None:
    assert run.ended[key] == "stop"
    assert run.answers[key] == []
    np.testing.assert_allclose(run.pooled[key], expected.numpy(), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("pooling", [*BY_HAND])
def test_prompts_in_chunks(embedder: Callable[..., EngineRun], states: States, pooling: str) -> None:
    run = embedder(pooling, max_num_seqs=5, max_num_batched_tokens=11, enable_prefix_caching=False)
    keys = [run.pool(text) for text in TEXTS]
    run.finish()
    assert any(len(step.rows) > 1 for step in run.steps)
    for key, text in zip(keys, TEXTS, strict=True):
        check(run, key, BY_HAND[pooling](states(text)))


def test_an_instruction_is_seen_and_not_pooled(embedder: Callable[..., EngineRun], states: States) -> None:
    for pooling, cut in (("MEAN", 3), ("CLS", 5), ("MAX", 9)):
        run = embedder(pooling, max_num_batched_tokens=8)
        text = max(TEXTS, key=len)
        pooler = run.engine.config.model.pooler
        assert pooler is not None
        object.__setattr__(pooler, "include_prompt", False)
        key = run.pool(text, start=cut)
        run.finish()
        check(run, key, BY_HAND[pooling](states(text)[cut:]))


def test_every_token(embedder: Callable[..., EngineRun], states: States) -> None:
    run = embedder(max_num_seqs=4, max_num_batched_tokens=9)
    keys = [run.pool(text, "token_embed") for text in TEXTS]
    other = run.pool(TEXTS[0])
    run.finish()
    for key, text in zip(keys, TEXTS, strict=True):
        check(run, key, states(text))
    check(run, other, states(TEXTS[0])[-1])


@pytest.mark.parametrize("pooling", ["LAST", "MEAN"])
def test_beside_answers_in_a_cache_that_is_too_small(
    embedder: Callable[..., EngineRun], states: States, alone: Alone, pooling: str
) -> None:
    questions = prompts(6, seed=41)
    expected = [alone(question, 40, seed=i, temperature=0.9) for i, question in enumerate(questions)]
    run = embedder(
        pooling, max_num_seqs=6, max_model_len=96, kv_cache_memory_bytes=160 * 384, max_num_batched_tokens=24
    )
    texts = [text * 2 for text in TEXTS]
    answers, keys = [], []
    for number, (question, text) in enumerate(zip(questions, texts, strict=False)):
        answers.append(run.add(question, 40, seed=number, temperature=0.9))
        keys.append(run.pool(text))
    lost = 0
    while not lost:
        run.step()
        lost = preempt(run, keys)
    keys += [run.pool(text) for text in texts]
    run.finish()
    assert [run.answers[key] for key in answers] == expected
    for key, text in zip(keys, [*texts[: len(questions)], *texts], strict=True):
        check(run, key, BY_HAND[pooling](states(text)))


def preempt(run: EngineRun, keys: Sequence[int]) -> int:
    """Takes the rows of those requests whose prompt is partly computed. Returns how many these are."""
    requests = run.engine._scheduler._requests
    running = [request for key in keys if (request := requests.get(key)) is not None and request.row != NO_ROW]
    begun = [request for request in running if 0 < request.num_computed_tokens < request.num_prompt_tokens]
    for request in begun:
        requests.preempt(request)
    return len(begun)


def test_a_vector_of_the_last_token_starts_from_a_cached_prefix(
    embedder: Callable[..., EngineRun], states: States
) -> None:
    text = (max(TEXTS, key=len) * 4)[:64]
    run = embedder()
    first = run.pool(text)
    run.finish()
    second = run.pool([*text[:-2], 7])
    run.finish()
    assert (run.cached[first], run.cached[second] > 0) == (0, True)
    check(run, second, states([*text[:-2], 7])[-1])
    mean = embedder("MEAN")
    for _ in range(2):
        key = mean.pool(text)
        mean.finish()
        assert mean.cached[key] == 0, "its states are in no cache"
        check(mean, key, states(text).mean(0))


def test_beside_drafts(embedder: Callable[..., EngineRun], states: States, alone: Alone) -> None:
    question = [5, 6, 7, 8] * 6
    expected = alone(question, 30)
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
    run = embedder(speculative_config=drafts, max_num_seqs=4)
    text = (max(TEXTS, key=len) * 4)[:49]
    warm = run.pool(text)
    answer = run.add(question, 30)
    for _ in range(6):
        run.step()
    keys = [run.pool(text), run.pool(text)]  # one token each, beside rows with drafts
    run.finish()
    assert run.answers[answer] == expected
    for key in (warm, *keys):
        check(run, key, states(text)[-1])


def test_a_prompt_may_fill_the_context(embedder: Callable[..., EngineRun], states: States) -> None:
    run = embedder("MEAN", max_model_len=20)
    text = (max(TEXTS, key=len) * 2)[:20]
    key = run.pool(text)
    run.finish()
    check(run, key, states(text).mean(0))
    with pytest.raises(RequestError, match="1 to 20 tokens, got 21"):
        run.pool([*text, 1])


def test_an_aborted_request_leaves_nothing(embedder: Callable[..., EngineRun], states: States) -> None:
    run = embedder("MEAN", max_num_seqs=1, max_num_batched_tokens=8)
    text = (max(TEXTS, key=len) * 4)[:40]
    gone, other = run.pool(text), run.pool(text)
    run.step()
    run.step()
    run.engine.abort([gone])
    run.finish()
    assert gone not in run.pooled
    check(run, other, states(text).mean(0))


def test_a_model_that_only_pools(start: Start, states: States) -> None:
    run = start(runner="pooling", pooler_config={"pooling_type": "MEAN"}, max_num_seqs=3)
    keys = [run.pool(text) for text in TEXTS]
    run.finish()
    for key, text in zip(keys, TEXTS, strict=True):
        check(run, key, states(text).mean(0))
