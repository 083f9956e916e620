"""What rows ask for beside temperature and filters: against plain Python over transformers' logits on the reference,
and on every platform and at every depth the same, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.engine.platforms.conftest import Alone, Start
from tests.engine.platforms.test_tokens_on_every_platform import FILTERED, SAMPLED, prompts
from tests.platforms import sampling_oracle as oracle
from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import EOS, VOCAB

Logits = Callable[[Sequence[int]], torch.Tensor]

FIELDS: list[dict[str, Any]] = [
    {},
    {"presence_penalty": 1.5, "frequency_penalty": 0.7},
    {"repetition_penalty": 1.4},
    {"logit_bias": {7: 4.0, 20: -100.0, 55: 3.5}},
    {},
    {"allowed_token_ids": list(range(3, 60, 4))},
    {"allowed_token_ids": list(range(10, 90, 3)), "repetition_penalty": 0.8, "logit_bias": {10: 2.0}},
    {"frequency_penalty": -0.6},
    {"min_tokens": 9, "stop_token_ids": list(range(30, 90))},
]


@pytest.fixture(scope="module")
def logits(llama: Path) -> Logits:
    """tokens -> [tokens, vocabulary], by transformers in float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32).eval()

    def of(tokens: Sequence[int]) -> torch.Tensor:
        with torch.inference_mode():
            return model(torch.tensor([list(tokens)])).logits[0]

    return of


def greedy(logits: Logits, prompt: list[int], count: int, fields: dict[str, Any]) -> list[int]:
    """The definition, a token at a time."""
    given, answer = dict(fields), []
    stops = given.pop("stop_token_ids", ())
    for _ in range(count):
        values = logits(prompt + answer)[-1].tolist()
        edited = oracle.processed(values, prompt, answer, ends={EOS, *stops}, **given)
        answer.append(max(range(VOCAB), key=edited.__getitem__))
        if answer[-1] in stops:
            break
    return answer


def test_named_tokens_have_the_log_probabilities_of_the_definition(start: Start, logits: Logits) -> None:
    """Beside rows that ask for the most likely tokens, for none, and for a mask; of the logits before any edit."""
    named, questions = [5, 60, 5, 2, 33], prompts(4, seed=31)
    with_all: list[dict[str, Any]] = [
        {"logprob_token_ids": named},
        {"logprobs": 2},
        {"logprob_token_ids": [7], "allowed_token_ids": [40, 41], "presence_penalty": 1.0},
        {},
    ]
    run = start(max_num_seqs=7)
    keys = [run.add(q, 6, ignore_eos=True, **fields) for q, fields in zip(questions, with_all, strict=True)]
    run.finish()
    for key, question, fields in zip(keys, questions, with_all, strict=True):
        asked = fields.get("logprob_token_ids")
        if asked is None:
            continue
        assert len(run.logprobs[key]) == 6
        for place, row in enumerate(run.logprobs[key]):
            expected = logits(question + run.answers[key][:place])[-1].log_softmax(-1)
            assert row.ids[0].tolist() == [run.answers[key][place], *asked]
            assert row.logprobs[0].tolist() == pytest.approx(expected[row.ids[0].tolist()].tolist(), abs=2e-4)


def with_bad_words(alone: Alone, question: list[int], fields: dict[str, Any]) -> dict[str, Any]:
    """Forbids what the answer would say: its second token after its first, its fifth anywhere."""
    whole = alone(question, 12, ignore_eos=True)
    return {**fields, "bad_words_ids": [[whole[0], whole[1]], [whole[4]], [whole[7], whole[8], whole[9]]]}


def test_answers_are_those_of_the_definition(llama: Path, logits: Logits, alone: Alone) -> None:
    questions = prompts(12, seed=21)
    asked = [FIELDS[i % 9] if i % 3 else with_bad_words(alone, q, FIELDS[i % 9]) for i, q in enumerate(questions)]
    with EngineRun(llama, "reference") as run:
        keys = [run.add(q, 12, ignore_eos=True, **f) for q, f in zip(questions, asked, strict=True)]
        run.finish()
    changed = 0
    for key, question, fields in zip(keys, questions, asked, strict=True):
        assert run.answers[key] == greedy(logits, question, 12, fields), fields
        changed += run.answers[key] != alone(question, 12, ignore_eos=True)
    assert changed >= 8  # each field does something


@pytest.mark.parametrize("params", [{}, FILTERED], ids=["greedy", "filtered"])
def test_rows_that_ask_and_rows_that_do_not_share_a_batch(start: Start, alone: Alone, params: dict) -> None:
    run, questions = start(max_num_seqs=7), prompts(12, longest=40, seed=22)
    asked = [with_bad_words(alone, q, FIELDS[i % 9]) if i % 4 == 2 else FIELDS[i % 9] for i, q in enumerate(questions)]
    for seed, (question, fields) in enumerate(zip(questions, asked, strict=True)):
        run.add(question, 12, seed=seed, ignore_eos=True, **fields, **params)
    run.finish()
    for seed, (question, fields) in enumerate(zip(questions, asked, strict=True)):
        assert run.answers[seed] == alone(question, 12, seed=seed, ignore_eos=True, **fields, **params), fields


@pytest.mark.parametrize("size", [1, 7, 32])
def test_a_seed_gives_the_same_tokens_at_every_batch_size_with_penalties(start: Start, alone: Alone, size: int) -> None:
    fields = {**SAMPLED, "presence_penalty": 0.8, "repetition_penalty": 1.2, "logit_bias": {9: 1.5}}
    run, question = start(max_num_seqs=32), prompts(1, seed=1)[0]
    for i, other in enumerate(prompts(size - 1, seed=2)):
        run.add(other, 10, seed=100 + i, **SAMPLED, **FIELDS[i % len(FIELDS)])
    key = run.add(question, 10, seed=2**63 + 11, **fields)
    run.finish()
    assert run.answers[key] == alone(question, 10, seed=2**63 + 11, **fields)


def test_what_was_asked_for_comes_back_after_preemption(start: Start, alone: Alone) -> None:
    run, questions = start(max_model_len=96, kv_cache_memory_bytes=220 * 384), prompts(8, longest=30, seed=7)
    asked = [with_bad_words(alone, q, FIELDS[i % 8]) for i, q in enumerate(questions)]
    for seed, (question, fields) in enumerate(zip(questions, asked, strict=True)):
        run.add(question, 36, seed=seed, ignore_eos=True, **fields, **SAMPLED)
    run.finish()
    assert run.engine.stats.counters.preemptions > 0
    for seed, (question, fields) in enumerate(zip(questions, asked, strict=True)):
        assert run.answers[seed] == alone(question, 36, seed=seed, ignore_eos=True, **fields, **SAMPLED), fields


def test_ends_are_not_drawn_before_min_tokens(start: Start, alone: Alone) -> None:
    """Every token but a few ends the answer: until then only the few are drawn."""
    few, question = [11, 12, 13], prompts(1, seed=6)[0]
    stops = [token for token in range(3, VOCAB) if token not in few][:60]
    run = start(eos_token_ids=[token for token in range(VOCAB) if token not in few and token not in stops])
    keys = [run.add(question, 20, seed=seed, min_tokens=8, stop_token_ids=stops, **SAMPLED) for seed in range(3)]
    run.finish()
    for key in keys:
        assert len(run.answers[key]) >= 8
        assert set(run.answers[key][:8]) <= set(few)


def test_log_probabilities_are_of_the_logits_before_anything_was_done_to_them(start: Start, logits: Logits) -> None:
    run, questions = start(), prompts(5, seed=23)
    for i, question in enumerate(questions):
        run.add(question, 6, seed=i, logprobs=(0, 1, 5)[i % 3], ignore_eos=True, **SAMPLED, **FIELDS[i % 3 + 1])
    run.finish()
    for key, question in enumerate(questions):
        answer = run.answers[key]
        wanted = torch.log_softmax(logits(question + answer), -1)[len(question) - 1 :]
        for place, (token, row) in enumerate(zip(answer, run.logprobs[key], strict=True)):
            ids = row.ids[0].tolist()
            assert ids[0] == token
            assert row.ids.shape == (1, 1 + (0, 1, 5)[key % 3])
            assert row.logprobs[0].tolist() == pytest.approx([float(wanted[place, one]) for one in ids], abs=2e-4)
            assert int(row.ranks[0]) == oracle.rank(wanted[place].tolist(), token)


# ---- the prompt's own --------------------------------------------------------------------------------------------


def check_prompt(run: EngineRun, key: int, prompt: list[int], count: int, logits: Logits) -> None:
    """Each token but the first, in any number of pieces, some perhaps twice."""
    wanted, found = torch.log_softmax(logits(prompt), -1), {}
    for scored in run.scored[key]:
        assert scored.ids.shape == scored.logprobs.shape == (len(scored.ranks), 1 + count)
        for i in range(len(scored.ids)):
            found[scored.start + i] = (scored.ids[i], scored.logprobs[i], scored.ranks[i])
    assert sorted(found) == list(range(1, len(prompt)))
    for position, (ids, values, rank) in found.items():
        before = wanted[position - 1].tolist()
        assert ids[0] == prompt[position]
        assert values.tolist() == pytest.approx([before[token] for token in ids.tolist()], abs=2e-4)
        assert values[1:].tolist() == pytest.approx(sorted(before, reverse=True)[:count], abs=2e-4)
        assert abs(int(rank) - oracle.rank(before, prompt[position])) <= 1  # two may be within rounding


@pytest.mark.parametrize("budget", [24, 2048])
def test_prompt_log_probabilities_in_chunks(start: Start, alone: Alone, logits: Logits, budget: int) -> None:
    run = start(max_num_seqs=5, max_num_batched_tokens=budget)
    questions, counts = prompts(7, longest=120, seed=24), [0, None, 3, 1, None, 20, 0]
    questions[0] = questions[0][:1]
    for seed, (question, count) in enumerate(zip(questions, counts, strict=True)):
        run.add(question, 5, seed=seed, prompt_logprobs=count, ignore_eos=True, **SAMPLED)
    run.finish()
    for key, (question, count) in enumerate(zip(questions, counts, strict=True)):
        assert run.answers[key] == alone(question, 5, seed=key, ignore_eos=True, **SAMPLED)
        if count is None:
            assert run.scored[key] == []
        else:
            check_prompt(run, key, question, count, logits)


def test_prompt_log_probabilities_ignore_prefix_hits(start: Start, logits: Logits) -> None:
    run, question = start(), prompts(1, seed=8)[0] * 3
    run.ask([question])
    asking = run.add(question, 4, prompt_logprobs=2)
    run.finish()
    plain = run.add(question, 4)
    run.finish()
    check_prompt(run, asking, question, 2, logits)
    assert (run.cached[asking], run.cached[plain] > 0) == (0, True)
    assert run.answers[asking] == run.answers[plain]


def test_prompt_log_probabilities_of_requests_that_were_preempted(start: Start, alone: Alone, logits: Logits) -> None:
    run = start(max_model_len=96, kv_cache_memory_bytes=220 * 384, max_num_batched_tokens=40)
    questions = prompts(8, longest=30, seed=7)
    for seed, question in enumerate(questions):
        run.add(question, 36, seed=seed, ignore_eos=True, prompt_logprobs=1, **SAMPLED)
    run.finish()
    assert run.engine.stats.counters.preemptions > 0
    for key, question in enumerate(questions):
        check_prompt(run, key, question, 1, logits)
        assert run.answers[key] == alone(question, 36, seed=key, ignore_eos=True, **SAMPLED)


def test_siblings_share_a_prompt_that_is_scored_once(start: Start, alone: Alone, logits: Logits) -> None:
    run, question = start(), prompts(1, longest=50, seed=3)[0] * 2
    leader = run.add(question, 8, seed=50, prompt_logprobs=1, **SAMPLED)
    others = [run.add(question, 8, seed=50 + i, leader=leader, **SAMPLED) for i in (1, 2)]
    run.finish()
    check_prompt(run, leader, question, 1, logits)
    assert [run.scored[key] for key in others] == [[], []]
    answers = [run.answers[key] for key in (leader, *others)]
    assert answers == [alone(question, 8, seed=50 + i, **SAMPLED) for i in range(3)]


def test_a_runner_of_another_depth_has_it_from_its_services(llama: Path, alone: Alone) -> None:
    with EngineRun(llama, "numpy", executor=None) as run:
        questions = prompts(9, longest=20, seed=26)
        asked = [FIELDS[i] if i % 4 else with_bad_words(alone, q, FIELDS[i]) for i, q in enumerate(questions)]
        for seed, (question, fields) in enumerate(zip(questions, asked, strict=True)):
            run.add(question, 10, seed=seed, ignore_eos=True, **fields, **FILTERED)
        run.finish()
        for seed, (question, fields) in enumerate(zip(questions, asked, strict=True)):
            assert run.answers[seed] == alone(question, 10, seed=seed, ignore_eos=True, **fields, **FILTERED), fields


def test_a_step_in_which_nobody_asks_is_one_composite(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start()
    sampler = run.executor.runner.sampler
    monkeypatch.setattr(sampler.editor, "draw", lambda *_, **__: pytest.fail("nobody asked"))
    monkeypatch.setattr(sampler.model, "logits", lambda _: pytest.fail("nobody asked"))
    run.ask(prompts(4, seed=25), 6, **SAMPLED)
    assert {name for name, _ in sampler._calls} == {"logits_sample"}


@pytest.mark.parametrize("params", [{}, SAMPLED, FILTERED], ids=["greedy", "sampled", "filtered"])
def test_a_row_that_may_draw_nothing_ends_with_an_error(start: Start, alone: Alone, params: dict) -> None:
    """At its first token or later, beside rows that go on."""
    run, questions = start(max_num_seqs=7), prompts(4, seed=41)
    nothing = run.add(questions[0], 8, allowed_token_ids=[5], bad_words_ids=[[5]], **params)
    later = run.add(questions[1], 8, allowed_token_ids=[5], bad_words_ids=[[5, 5, 5]], logprobs=1, **params)
    ends = run.add(questions[2], 8, allowed_token_ids=[40, 41], stop_token_ids=[40, 41], min_tokens=2, **params)
    free = run.add(questions[3], 8, seed=3, ignore_eos=True, **params)
    run.finish()
    for key, answer, fields in (
        (nothing, [], "allowed_token_ids and bad_words"),
        (later, [5, 5], "allowed_token_ids and bad_words"),
        (ends, [], "allowed_token_ids and min_tokens"),
    ):
        assert (run.ended[key], run.answers[key]) == ("error", answer)
        assert run.finished[key].message == f"No token is left to draw by {fields} together; change what they ask for."
        assert run.finished[key].param == "allowed_token_ids"
    assert run.answers[free] == alone(questions[3], 8, seed=3, ignore_eos=True, **params)
