"""Log probabilities of tokens, kept as arrays, as the engine sends them. An entry is made when it is asked for: a large
answer has millions of them, and whoever reads them chooses the thread."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar, overload

import numpy as np

from tessera.arrays import Array
from tessera.request import Logprob
from tessera.sampling_params import RequestOutputKind

if TYPE_CHECKING:
    from tessera.step import PromptLogprobs, RowLogprobs
    from tessera.text import Vocabulary

E_co = TypeVar("E_co", bound=Mapping[int, Logprob] | None, covariant=True)


class LogprobArrays(Sequence[E_co], Generic[E_co]):
    """One entry for each of some tokens, by index."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Log probabilities of the last token."""

    @abstractmethod
    def entry(self, index: int) -> E_co: ...

    @overload
    def __getitem__(self, index: int) -> E_co: ...

    @overload
    def __getitem__(self, index: slice) -> list[E_co]: ...

    def __getitem__(self, index: int | slice) -> E_co | list[E_co]:
        if isinstance(index, slice):
            return [self.entry(one) for one in range(*index.indices(len(self)))]
        return self.entry(index)


class TokenLogprobs(LogprobArrays[Mapping[int, Logprob]]):
    """Those of an answer's tokens, as they come."""

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self._vocabulary = vocabulary
        self._ids, self._values, self._ranks = array("i"), array("f"), array("i")
        self._width = 1

    def add(self, new: RowLogprobs, count: int) -> None:
        """The first `count` tokens of `new`. All of an answer have as many alternatives."""
        self._width = new.ids.shape[1]
        self._ids.frombytes(new.ids[:count].astype(np.int32).tobytes())
        self._values.frombytes(new.logprobs[:count].astype(np.float32).tobytes())
        self._ranks.frombytes(new.ranks[:count].astype(np.int32).tobytes())

    def copy(self) -> TokenLogprobs:
        """As they are now."""
        copied = TokenLogprobs(self._vocabulary)
        copied._width = self._width
        copied._ids, copied._values, copied._ranks = self._ids[:], self._values[:], self._ranks[:]
        return copied

    @property
    def width(self) -> int:
        return self._width

    def entry(self, index: int) -> Mapping[int, Logprob]:
        rank = self._ranks[index]
        start = index % len(self) * self._width
        of = slice(start, start + self._width)
        return by_token(self._ids[of].tolist(), self._values[of].tolist(), rank, self._vocabulary)

    def __len__(self) -> int:
        return len(self._ranks)


class PromptLogprobsBuffer(LogprobArrays[Mapping[int, Logprob] | None]):
    """Those of a prompt, which come as its chunks are computed: in any order, and again after a preemption. None for
    its first token."""

    def __init__(self, num_prompt_tokens: int, vocabulary: Vocabulary | None) -> None:
        self._vocabulary = vocabulary
        self._chunks: list[PromptLogprobs] = []
        self._places: Array = np.full((num_prompt_tokens, 2), -1, np.int32)
        """[tokens, 2]: the chunk of each token and its row there."""
        self._taken = False

    def add(self, scored: PromptLogprobs) -> None:
        places = self._places[scored.start : scored.start + len(scored.ids)]
        places[:, 0], places[:, 1] = len(self._chunks), np.arange(len(scored.ids))
        self._chunks.append(scored)

    def take(self, kind: RequestOutputKind) -> PromptLogprobsBuffer | None:
        """With DELTA, only the first call returns them."""
        given = None if kind is RequestOutputKind.DELTA and self._taken else self
        self._taken = True
        return given

    @property
    def width(self) -> int:
        return int(self._chunks[-1].ids.shape[1]) if self._chunks else 1

    def entry(self, index: int) -> Mapping[int, Logprob] | None:
        chunk, row = self._places[index].tolist()
        if chunk < 0:
            return None
        of = self._chunks[chunk]
        return by_token(of.ids[row].tolist(), of.logprobs[row].tolist(), of.ranks[row].item(), self._vocabulary)

    def __len__(self) -> int:
        return len(self._places)


def by_token(
    ids: Sequence[int], logprobs: Sequence[float], rank: int, vocabulary: Vocabulary | None
) -> dict[int, Logprob]:
    """The token itself first, then the alternatives, most likely first. ids, logprobs: those of both; rank: of the
    token."""
    entries = {ids[0]: Logprob(logprobs[0], rank, _text(ids[0], vocabulary))}
    for order in range(1, len(ids)):
        token = ids[order]
        if token not in entries:
            entries[token] = Logprob(logprobs[order], order, _text(token, vocabulary))
    return entries


def _text(token: int, vocabulary: Vocabulary | None) -> str | None:
    return None if vocabulary is None else vocabulary.token_text(token).text
