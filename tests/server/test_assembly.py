"""Large answers: encoded as msgspec encodes them, but in pieces and on another thread."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.server.assembly import SLICE, Assembly, encoded, in_one_piece, taken
from tessera.server.generation.logprobs import LogprobWriter, TokenLogprob, TopLogprob
from tessera.server.openai.protocol import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    CompletionLogprobs,
    Usage,
)
from tests.server.conftest import Api


def token(number: int) -> TokenLogprob:
    return TokenLogprob(f"<{number}>", -1.0, [number % 256], [TopLogprob("é", -0.5, [1, 2])])


@given(
    tokens=st.integers(0, 2 * SLICE + 1),
    ids=st.one_of(st.just(msgspec.UNSET), st.lists(st.integers(0, 9), max_size=3)),
    choices=st.integers(0, 3),
    text=st.text(max_size=5),
)
def test_pieces_join_to_what_msgspec_encodes(tokens: int, ids: Any, choices: int, text: str) -> None:
    def choice(index: int) -> ChatChoice:
        logprobs = ChatLogprobs([token(number) for number in range(tokens)]) if index else None
        return ChatChoice(
            index=index, message=AnswerMessage(text), logprobs=logprobs, finish_reason="stop", stop_reason=None,
            token_ids=ids,
        )  # fmt: skip

    whole = ChatCompletion(
        id=text, created=1, model="m", choices=[*map(choice, range(choices))], usage=Usage(1, 2, 3, None),
        system_fingerprint="f", prompt_logprobs=[None] * tokens,
    )  # fmt: skip
    assert b"".join(encoded(whole)) == msgspec.json.encode(whole)
    made = taken(list(whole.choices))
    assert b"".join(encoded(msgspec.structs.replace(whole, choices=[]), choices=made)) == msgspec.json.encode(whole)


@pytest.mark.parametrize("length", [1, SLICE + 1])
def test_one_piece_is_what_msgspec_encodes(length: int) -> None:
    value = ChatLogprobs([token(number) for number in range(length)])
    assert in_one_piece(value, length) == msgspec.json.encode(value)


def test_no_piece_holds_more_than_a_slice_of_a_list() -> None:
    of = CompletionLogprobs([], [], [{"a": -1.0}] * (5 * SLICE), [])
    assert max(piece.count(b'"a"') for piece in encoded(of)) == SLICE


async def test_an_event_of_a_stream_costs_no_look_at_types_and_no_thread(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Any] = []
    fields, run = msgspec.structs.fields, Assembly.run
    monkeypatch.setattr(msgspec.structs, "fields", lambda kind: looks.append(kind) or fields(kind))
    monkeypatch.setattr(Assembly, "run", lambda *given: looks.append(given) or run(*given))
    assert (await api.chat(stream=True, logprobs=True, top_logprobs=20)).text.count('"logprobs":{"content"') == 5
    assert (await api.complete(stream=True, logprobs=20)).text.count('"logprobs":{"tokens"') == 5
    assert not looks


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the threads on which log probabilities are written."""
    names: set[str] = set()
    write = LogprobWriter.best

    def noted(writer: LogprobWriter, position: Any) -> Any:
        names.add(threading.current_thread().name.split("_")[0])
        return write(writer, position)

    monkeypatch.setattr(LogprobWriter, "best", noted)
    return names


@pytest.mark.parametrize("n", [1, 64])
async def test_only_large_answers_leave_the_loops_thread(api: Api, threads: set[str], n: int) -> None:
    chat = await api.chat(n=n, seed=1, logprobs=True, top_logprobs=20)
    assert len(chat.json()["choices"]) == n
    await api.complete(n=n, seed=1, logprobs=20)
    own = threading.current_thread().name
    assert threads == {own if n == 1 else "assembly"}


async def test_the_logprobs_of_many_echoed_prompts_are_written_beside_the_loop(api: Api, threads: set[str]) -> None:
    prompts = ["x" * 100] * 8
    for stream in (False, True):
        answer = await api.complete(prompt=prompts, echo=True, logprobs=2, stream=stream)
        assert answer.status_code == 200
    assert "assembly" in threads
