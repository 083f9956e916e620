"""The ops that change logits before a draw, against plain Python, in odd shapes and mixed batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera.arrays import int32
from tessera.ops.sampling import edit_logits, logprobs
from tessera.platform import EditLogitsSpec, Edits, History, LogprobsSpec, Sampled, SamplingRows
from tessera.runner.host_sampler import reference_call
from tessera.runner.input_batch import SamplingColumns
from tessera.runner.logits_editor import LogitsEditor
from tessera.sampling_params import SamplingParams
from tessera.step import RowOpened
from tests.platforms import sampling_oracle as oracle

EOS = (3, 5)
Asked = tuple[list[int], list[int], dict[str, Any]]


def histories(vocab: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, vocab - 1), max_size=9)


@st.composite
def requests(draw: Any, vocab: int) -> Asked:
    """A prompt, an answer so far, and some of the fields; words that the answer is about to complete are likely."""
    prompt, answer = draw(histories(vocab).filter(bool)), draw(histories(vocab))
    ids = st.integers(0, vocab - 1)
    ends = st.sampled_from([answer[-k:] for k in range(len(answer) + 1)]) if answer else st.just([])
    words = st.lists(st.tuples(ends | st.lists(ids, max_size=3), ids).map(lambda w: [*w[0], w[1]]), max_size=4)
    penalty = st.floats(-2, 2, width=16)
    fields = {
        "presence_penalty": penalty,
        "frequency_penalty": penalty,
        "repetition_penalty": st.sampled_from([0.5, 1.0, 1.3, 2.0]),
        "logit_bias": st.dictionaries(ids, st.floats(-100, 100, width=16), max_size=5),
        "allowed_token_ids": st.lists(ids, min_size=1, max_size=8),
        "bad_words_ids": words,
        "min_tokens": st.integers(0, 12),
        "stop_token_ids": st.lists(ids, max_size=3),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(fields))))
    return prompt, answer, {name: draw(fields[name]) for name in sorted(chosen)}


_CALL = 1000
"""A token of the stand-in below is the number of its call times this, plus the place of the row in the call."""


def edited(logits: torch.Tensor, asked: list[Asked], padding: int, *, keep: bool) -> torch.Tensor:
    """What each row is drawn from, through the runner's editor: rows stand in a table in reverse order, padding and
    stale tokens beside them."""
    rows, vocab = len(asked), logits.shape[-1]
    columns = SamplingColumns(rows + 1, EOS, vocab)
    table = torch.full((rows + 1, 40), 1, dtype=torch.int32)
    order = int32(range(rows - 1, -1, -1))
    positions = int32([len(prompt) + len(answer) for prompt, answer, _ in asked])
    for row, (prompt, answer, fields) in zip(order.tolist(), asked, strict=True):
        tokens = int32(prompt + answer)
        table[row, : len(tokens)] = torch.from_numpy(tokens)
        params = SamplingParams(**{"max_tokens": 100, **fields})
        columns.open(RowOpened(row, "", tokens, len(prompt), 0, params, row))
    editor = LogitsEditor(columns, table, reference_call, torch.from_numpy)
    seen = []

    def sample(given: torch.Tensor, sampling: SamplingRows) -> Sampled:
        seen.append((given.clone(), sampling))
        return Sampled(torch.arange(len(given), dtype=torch.int32) + _CALL * (len(seen) - 1))

    place = torch.arange(rows + padding)
    sampling = SamplingRows(*[place] * 4, seed=torch.from_numpy(columns.seed[order]), position=place)
    before = logits.clone()
    tokens = editor.draw(sample, logits, sampling, order, positions, None, keep=keep)
    assert tokens.shape == (rows + padding,)
    if keep:
        assert torch.equal(torch.nan_to_num(logits), torch.nan_to_num(before))
    drawn = [(*seen[token // _CALL], token % _CALL) for token in tokens.tolist()]
    for row, number, (_, own, at) in zip(order.tolist(), positions.tolist(), drawn, strict=False):
        assert own.seed[at].tolist() == [row, 0]
        assert own is sampling or int(own.position[at]) == number
    return torch.stack([of[at] for of, _, at in drawn])


def expected(logits: list[float], prompt: list[int], answer: list[int], fields: dict[str, Any]) -> list[float]:
    given = {name: value for name, value in fields.items() if name != "stop_token_ids"}
    return oracle.processed(logits, prompt, answer, ends={*EOS, *fields.get("stop_token_ids", ())}, **given)


@given(
    data=st.data(),
    vocab=st.sampled_from([7, 32, 33, 97]),
    padding=st.integers(0, 2),
    seed=st.integers(0, 99),
    keep=st.booleans(),
)
def test_each_row_gets_what_it_asks_for_and_no_other(
    data: Any, vocab: int, padding: int, seed: int, keep: bool
) -> None:
    """Of many rows without a wish, only the others are copied."""
    asked = data.draw(st.lists(requests(vocab), min_size=1, max_size=5))
    asked += [([1], [], {})] * data.draw(st.sampled_from([0, 1, 8]))
    given = torch.randn(len(asked) + padding, vocab, generator=torch.Generator().manual_seed(seed)) * 3
    given[len(asked) :] = torch.nan
    logits = given.clone()
    result = edited(given, asked, padding, keep=keep)
    for row, request in enumerate(asked):
        wanted = torch.tensor(expected(logits[row].tolist(), *request))
        torch.testing.assert_close(result[row], wanted, rtol=1e-5, atol=1e-5)
        if not request[2]:
            assert torch.equal(result[row], logits[row])


def test_a_prefix_holds_only_within_the_answer() -> None:
    """The prompt ends in what begins the word: that does not count."""
    edits = Edits(
        row=torch.tensor([0, 1], dtype=torch.int32),
        token=torch.tensor([2, 2], dtype=torch.int32),
        value=torch.tensor([-torch.inf, -torch.inf]),
        until=torch.tensor([99, 99], dtype=torch.int32),
        prefix=torch.tensor([[-1, 8, 9], [-1, 8, 9]], dtype=torch.int32),
    )
    tokens = torch.tensor([[1, 8, 9, 0], [1, 8, 9, 0]], dtype=torch.int32)
    lengths = torch.tensor([3, 3], dtype=torch.int32)
    history = History(tokens, torch.tensor([0, 1], dtype=torch.int32), torch.tensor([1, 2], dtype=torch.int32), lengths)
    logits = torch.zeros(2, 10)
    edit_logits(EditLogitsSpec(10, 3), logits, history, edits)
    assert logits[:, 2].tolist() == [-torch.inf, 0.0]


def test_a_row_that_is_opened_again_forgets_what_was_asked_for_before() -> None:
    columns = SamplingColumns(2, EOS, 40)
    editor = LogitsEditor(columns, torch.zeros(2, 40, dtype=torch.int32), reference_call, torch.from_numpy)
    rows, place, seen = int32([0]), torch.zeros(1), []

    def sample(logits: torch.Tensor, _: SamplingRows) -> Sampled:
        seen.append(logits[0].tolist())
        return Sampled(torch.zeros(1, dtype=torch.int32))

    def run(**fields: Any) -> list[float]:
        columns.open(RowOpened(0, "", int32([1, 2]), 2, 0, SamplingParams(**fields), 0))
        editor.draw(sample, torch.zeros(1, 40), SamplingRows(*[place] * 6), rows, int32([2]), None, keep=True)
        return seen.pop()

    first = run(logit_bias={4: 2.0}, allowed_token_ids=[4, 5])
    assert [first[4], first[5], first[6]] == [2.0, 0.0, -torch.inf]
    second = run(logit_bias={7: 1.0})
    assert [second[4], second[5], second[6], second[7]] == [0.0, 0.0, 0.0, 1.0]
    assert run() == [0.0] * 40


@given(vocab=st.sampled_from([2, 33, 97]), rows=st.integers(1, 5), count=st.integers(0, 97), seed=st.integers(0, 99))
def test_log_probabilities_and_ranks(vocab: int, rows: int, count: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    logits, count = torch.randn(rows, vocab, generator=random) * 4, min(count, vocab)
    tokens = torch.randint(0, vocab, (rows,), generator=random, dtype=torch.int32)
    ids, values, ranks = logprobs(LogprobsSpec(vocab, count), logits, tokens)
    for row in range(rows):
        wanted = oracle.logprobs(logits[row].tolist())
        best = sorted(range(vocab), key=lambda token: -wanted[token])[:count]
        assert ids[row].tolist() == [int(tokens[row]), *best]
        assert values[row].tolist() == pytest.approx([wanted[token] for token in ids[row].tolist()], abs=1e-5)
        assert int(ranks[row]) == oracle.rank(wanted, int(tokens[row]))
