"""Log probabilities as users get them: by token, for each token of an answer or of a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tessera.request import Logprob
from tessera.sampling_params import RequestOutputKind

if TYPE_CHECKING:
    from tessera.step import PromptLogprobs, RowLogprobs
    from tessera.text import Vocabulary


def by_token(new: RowLogprobs | PromptLogprobs, count: int, vocabulary: Vocabulary | None) -> list[dict[int, Logprob]]:
    """Of the first `count` tokens: the token itself, then the alternatives, the most likely first."""
    rows = zip(new.ids[:count].tolist(), new.logprobs[:count].tolist(), new.ranks[:count].tolist(), strict=True)
    positions = []
    for ids, values, rank in rows:
        position = {ids[0]: Logprob(values[0], rank, _text(ids[0], vocabulary))}
        for order, (token, value) in enumerate(zip(ids[1:], values[1:], strict=True), start=1):
            if token not in position:
                position[token] = Logprob(value, order, _text(token, vocabulary))
        positions.append(position)
    return positions


class PromptLogprobsBuffer:
    """A prompt's, as chunks of it are computed: in any order, and again where a request was preempted."""

    def __init__(self, num_prompt_tokens: int, vocabulary: Vocabulary | None) -> None:
        self._vocabulary = vocabulary
        self._positions: list[Mapping[int, Logprob] | None] = [None] * num_prompt_tokens
        self._taken = False

    def add(self, scored: PromptLogprobs) -> None:
        count = len(scored.ids)
        self._positions[scored.start : scored.start + count] = by_token(scored, count, self._vocabulary)

    def take(self, kind: RequestOutputKind) -> list[Mapping[int, Logprob] | None] | None:
        """All of them; once, where each output holds what is new."""
        given = None if kind is RequestOutputKind.DELTA and self._taken else self._positions
        self._taken = True
        return given


def _text(token: int, vocabulary: Vocabulary | None) -> str | None:
    return None if vocabulary is None else vocabulary.token_text(token).text


def total(positions: Sequence[Mapping[int, Logprob]]) -> float:
    """Of the tokens themselves, which come first."""
    return sum(next(iter(position.values())).logprob for position in positions)
