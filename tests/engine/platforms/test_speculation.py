"""Speculative decoding on every platform: an answer has the tokens that it has without drafts, whatever else is going
on, and the tokens that are drawn have the model's distribution."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.arrays import Array, int32
from tessera.errors import PlatformError
from tessera.sampling_params import ReasoningParams
from tessera.testing.conformance.drafts import KnownAnswers, Longest
from tests.engine.platforms.conftest import Alone, Start
from tests.engine.platforms.test_tokens_on_every_platform import FILTERED, SAMPLED, prompts
from tests.platforms.engine_run import EngineRun
from tests.platforms.fake_feature import EVEN_PLUGIN
from tests.platforms.mixed_model import save_mixed
from tests.platforms.mixed_plugin import MIXED_PLUGIN
from tests.platforms.own_runners import PATH as OWN_RUNNERS
from tests.platforms.tiny_models import VOCAB, save_family

THINKING = ReasoningParams("<think>", "</think>", begun=True)
ROOT = Path(__file__).parents[3]
MOST, ROWS = 3, 256
DRAFTS = {"method": "ngram", "num_speculative_tokens": MOST, "prompt_lookup_max": 2}
QUESTIONS = prompts(9, seed=41)


def speculating(run: EngineRun, answers: Sequence[Sequence[int]]) -> EngineRun:
    """The run with drafts of these tokens, prompts included."""
    speculation = run.engine._scheduler.speculation
    assert speculation is not None
    speculation.proposer, speculation.lengths = KnownAnswers(answers, VOCAB), Longest(ROWS, MOST)
    return run


def verified(run: EngineRun) -> None:
    """Drafts were accepted, and others were not."""
    counters = run.engine.stats.counters
    assert 0 < counters.accepted_tokens < counters.draft_tokens


FIELDS: list[dict[str, Any]] = [
    {},
    SAMPLED,
    {**SAMPLED, "presence_penalty": 1.5, "frequency_penalty": 0.7, "repetition_penalty": 1.4},
    {"repetition_penalty": 1.3},
    {**SAMPLED, "min_tokens": 9, "stop_token_ids": list(range(30, 90))},
    {**SAMPLED, **FILTERED},
    {**SAMPLED, "bad_words_ids": [[7], [20, 21]], "logit_bias": {5: 2.0}},
    {"allowed_token_ids": list(range(3, 90, 4)), "frequency_penalty": 0.5},
    {**SAMPLED, "stop_token_ids": list(range(0, 60, 3))},
]


def test_answers_are_the_same(start: Start, alone: Alone) -> None:
    """In a cache that is too small for all of them."""
    expected = [
        alone(question, 45, seed=i, **fields)
        for i, (question, fields) in enumerate(zip(QUESTIONS, FIELDS, strict=True))
    ]
    run = start(speculative_config=DRAFTS, max_num_seqs=5, max_model_len=96, kv_cache_memory_bytes=160 * 384)
    speculating(run, [question + answer for question, answer in zip(QUESTIONS, expected, strict=True)])
    keys = [
        run.add(question, 45, seed=i, **fields)
        for i, (question, fields) in enumerate(zip(QUESTIONS, FIELDS, strict=True))
    ]
    run.finish()
    assert [run.answers[key] for key in keys] == expected
    verified(run)
    assert run.engine.stats.counters.preemptions > 0


def test_siblings_prefixes_and_log_probabilities(start: Start) -> None:
    question = max(QUESTIONS, key=len) * 2
    asked: dict[str, Any] = {"logprobs": 2, **SAMPLED}

    def ask(run: EngineRun) -> list[int]:
        leader = run.add(question, 20, seed=50, **asked)
        keys = [leader, *(run.add(question, 20, seed=50 + i, leader=leader, **asked) for i in range(1, 4))]
        run.finish()
        keys.append(run.add(question, 20, seed=77, prompt_logprobs=1, **asked))
        keys.append(run.add(question, 20, seed=78, **asked))
        run.finish()
        return keys

    plain = start(max_num_seqs=4)
    keys = ask(plain)
    run = speculating(start(max_num_seqs=4, speculative_config=DRAFTS), [question + plain.answers[key] for key in keys])
    assert ask(run) == keys
    verified(run)
    assert run.cached[keys[-1]] > 0
    for key in keys:
        assert run.answers[key] == plain.answers[key]
        assert ids_of(run, key) == ids_of(plain, key)
        assert len(ids_of(run, key)) == len(run.answers[key])
        found, expected = (np.concatenate([row.logprobs for row in one.logprobs[key]]) for one in (run, plain))
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def ids_of(run: EngineRun, key: int) -> list[int]:
    return [int(token) for row in run.logprobs[key] for token in row.ids[:, 0]]


def test_masks_and_columns_hold_at_each_position(start: Start, llama: Path) -> None:
    """Grammars, and a stranger's feature that changes logits in the workers."""
    options = {
        "features": ["structured_outputs", "even=9"], "plugins": [EVEN_PLUGIN], "tokenizer": str(llama),
        "max_num_seqs": 5,
    }  # fmt: skip

    def ask(run: EngineRun) -> list[int]:
        keys = []
        for i, question in enumerate(QUESTIONS):
            grammar = {"regex": "[a-f]{3,9}(-[0-9]+)?"} if i % 3 == 0 else None
            columns = {"push": 6.0} if i % 3 == 1 else {}
            first = {"reasoning": THINKING, "thinking_token_budget": i} if i % 2 else {}
            keys.append(run.add(question, 20, seed=i, columns=columns, structured_outputs=grammar, **first, **SAMPLED))
        keys.append(run.add(QUESTIONS[0], 20, seed=99, columns={"even": 8.0}, **SAMPLED))
        run.finish()
        return keys

    plain = start(**options)
    keys = ask(plain)
    asked = [*QUESTIONS, QUESTIONS[0]]
    whole = [question + plain.answers[key] for question, key in zip(asked, keys, strict=True)]
    run = speculating(start(**options, speculative_config=DRAFTS), whole)
    assert [run.answers[key] for key in ask(run)] == [plain.answers[key] for key in keys]
    verified(run)


def test_drafts_are_looked_up_in_the_row(start: Start) -> None:
    """With the real proposer: an answer that repeats itself."""
    asked = {"logit_bias": {5: 30.0, 9: 30.0}, "repetition_penalty": 1.0}
    plain = start()
    expected = plain.ask(QUESTIONS[:4], 40, **asked)
    run = start(speculative_config={**DRAFTS, "prompt_lookup_min": 1})
    speculation = run.engine._scheduler.speculation
    assert speculation is not None
    speculation.lengths = Longest(ROWS, MOST)
    assert run.ask(QUESTIONS[:4], 40, **asked) == expected
    assert run.engine.stats.counters.accepted_tokens > 0
    assert len(run.steps) < len(plain.steps)


def test_windows_are_given_back_beside_drafts(start: Start, tmp_path: Path) -> None:
    model = save_family("gemma2", tmp_path)
    questions = prompts(4, longest=60, seed=3)
    expected = start(model).ask(questions, 40, **SAMPLED)
    whole = [question + answer for question, answer in zip(questions, expected, strict=True)]
    run = speculating(start(model, speculative_config=DRAFTS), whole)
    assert run.ask(questions, 40, **SAMPLED) == expected
    verified(run)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_mixed(tmp_path_factory.mktemp("mixed"))


def test_states_behind_drafts(start: Start, mixed: Path) -> None:
    """Linear attention beside full attention and a window, with the fields of FIELDS: a row goes on from the state
    behind the last draft that was accepted. Rows are preempted, and prompts begin with copies of states."""
    options: dict[str, Any] = {"plugins": [MIXED_PLUGIN], "max_num_seqs": 5, "max_model_len": 128}
    plain = start(mixed, **options, enable_prefix_caching=False)
    asked = list(zip(QUESTIONS, FIELDS, strict=True))

    def ask(run: EngineRun) -> list[list[int]]:
        keys = []
        for _ in range(2):
            keys += [run.add(question, 45, seed=i, **fields) for i, (question, fields) in enumerate(asked)]
            leader = run.add(QUESTIONS[0], 20, seed=50, **SAMPLED)
            keys += [leader, run.add(QUESTIONS[0], 20, seed=51, leader=leader, **SAMPLED)]
            run.finish()
        return [run.answers[key] for key in keys]

    expected = ask(plain)
    run = start(mixed, **options, speculative_config=DRAFTS)
    run.engine._scheduler._budget.least_before_border = 1  # prompts here are short
    speculating(run, [question + answer for (question, _), answer in zip(asked, expected, strict=False)])
    assert ask(run) == expected
    verified(run)
    assert run.engine.stats.counters.cached_prompt_tokens > 0


def test_two_ranks_verify_the_same_drafts(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "core"), str(ROOT / "platforms/cpu")]))
    with EngineRun(llama, "cpu") as plain:
        expected = plain.ask(QUESTIONS, 16, **SAMPLED)
    whole = [question + answer for question, answer in zip(QUESTIONS, expected, strict=True)]
    options: dict[str, Any] = {"executor": None, "tensor_parallel_size": 2, "speculative_config": DRAFTS}
    with EngineRun(llama, "cpu", depth=2, **options) as run:
        speculating(run, whole)
        assert run.ask(QUESTIONS, 16, **SAMPLED) == expected
        verified(run)


# ---- the distribution

BIAS = {10: 4.6, 11: 4.3, 12: 3.6, 13: 3.0}
DRAFT = 11


def test_tokens_have_the_model_s_distribution(llama: Path) -> None:
    """One draft behind a prompt of one token, against the probabilities that the model gives: how often the draft is
    accepted, what is drawn in its place, and what follows it."""
    draws = 1500
    with EngineRun(llama, "cpu", max_num_seqs=64, speculative_config=DRAFTS) as run:
        speculation = run.engine._scheduler.speculation
        assert speculation is not None
        speculation.proposer, speculation.lengths = Once(), Longest(ROWS, 1)
        likely, after = likely_after(run, [17]), likely_after(run, [17, DRAFT])
        before = run.engine.stats.counters.draft_tokens
        keys = [run.add([17], 2, seed=seed, temperature=1.0, ignore_eos=True, logit_bias=BIAS) for seed in range(draws)]
        run.finish()
        accepted = run.engine.stats.counters.accepted_tokens
    assert run.engine.stats.counters.draft_tokens - before == draws
    drawn = Counter(run.answers[key][0] for key in keys)
    agrees(drawn, likely, draws)
    assert accepted == drawn[DRAFT] > 100
    agrees(Counter(run.answers[key][1] for key in keys if run.answers[key][0] == DRAFT), after, drawn[DRAFT])


class Once:
    """One draft, behind a single token."""

    def propose(self, row: int, tokens: Array, most: int) -> Array:
        return int32([DRAFT]) if len(tokens) == 1 else int32()


def likely_after(run: EngineRun, prompt: list[int]) -> Array:
    """[VOCAB] float64: probabilities of the next token."""
    key = run.add(prompt, 1, logprobs=VOCAB)
    run.finish()
    (row,) = run.logprobs[key]
    weights = np.zeros(VOCAB)
    weights[row.ids[0]] = np.exp(row.logprobs[0])
    for token, bias in BIAS.items():
        weights[token] *= math.exp(bias)
    share: Array = weights / weights.sum()
    return share


def agrees(found: Counter[int], likely: Array, draws: int) -> None:
    """Pearson's chi-square over the tokens that are expected five times, and all others together: at most five standard
    deviations above its mean."""
    often = np.flatnonzero(likely * draws >= 5)
    expected = np.append(likely[often], 1 - likely[often].sum()) * draws
    seen = np.array([found[int(token)] for token in often])
    seen = np.append(seen, draws - seen.sum())
    square, degrees = float(((seen - expected) ** 2 / expected).sum()), len(expected) - 1
    assert square < degrees + 5 * math.sqrt(2 * degrees), (square, degrees)


# ---- what cannot verify drafts says so at start-up


def test_what_cannot_verify_is_refused(llama: Path) -> None:
    refused = {
        "launches on platform 'reference' have room for 0; lower num_speculative_tokens": (
            llama, "tests.platforms.leveled:LaunchNow", (),
        ),
        "does not take --speculative-config; remove the flag": (llama, f"{OWN_RUNNERS}:TakesNothing", ()),
    }  # fmt: skip
    for said, (model, platform, plugins) in refused.items():
        with pytest.raises(PlatformError, match=re.escape(said)) as error:
            EngineRun(model, platform, plugins=plugins, speculative_config=DRAFTS)
        assert "\n" not in str(error.value)
