"""Reasoning before an answer: where it ends, token by token, and how long it may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tessera.sampling_params import ReasoningParams

Phase = Literal["before", "within", "after"]


class Place(NamedTuple):
    """Where an answer is. tail: its last bytes, which may begin the end. tokens: of reasoning so far. forced: how many
    tokens of the end were demanded."""

    phase: Phase
    tail: bytes = b""
    tokens: int = 0
    forced: int = 0


class Spelling:
    """The tokens of a vocabulary by their bytes."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens
        self._ids: Mapping[bytes, int] = {text: token for token, text in reversed(list(enumerate(tokens)))}

    def id_of(self, text: bytes) -> int | None:
        return self._ids.get(text)

    def spelled(self, text: bytes) -> tuple[int, ...]:
        """Tokens that make a text, each as long as it can be; () if there are none."""
        ids: list[int] = []
        while text:
            size = next((size for size in range(len(text), 0, -1) if text[:size] in self._ids), 0)
            if not size:
                return ()
            ids.append(self._ids[text[:size]])
            text = text[size:]
        return tuple(ids)


@dataclass(frozen=True)
class Gate:
    """What follows an answer through its reasoning. begin: the token that begins reasoning, if one does. end: the text
    that ends it, and its tokens. budget: how many tokens it may have before the end is demanded; None is no limit."""

    tokens: Sequence[bytes]
    begin: int | None
    end: bytes
    end_ids: tuple[int, ...]
    begun: bool
    budget: int | None

    @classmethod
    def from_params(cls, params: ReasoningParams, budget: int | None, spelling: Spelling) -> Gate:
        begin, end = params.begin.strip().encode(), params.end.encode()
        ids = spelling.spelled(end)
        return cls(spelling.tokens, spelling.id_of(begin), end, ids, params.begun, budget if ids else None)

    def start(self) -> Place:
        if self.begun:
            return Place("within")
        return Place("after" if self.begin is None else "before")

    def step(self, place: Place, token: int) -> Place:
        """The place after a token, which is the answer's own unless one of both places is `within`."""
        if place.phase == "before":
            return Place("within" if token == self.begin else "after")
        if place.phase == "after":
            return place
        text = place.tail + (self.tokens[token] if token < len(self.tokens) else b"")
        if self.end in text:
            return Place("after")
        due = self.demanded(place)
        tail = text[-len(self.end) + 1 :] if len(self.end) > 1 else b""
        forced = place.forced + 1 if due is not None else 0
        return Place("within", tail, place.tokens + 1, forced)

    def demanded(self, place: Place) -> int | None:
        """The token that must come next, because there was enough reasoning; None if any may."""
        if place.phase != "within" or self.budget is None or place.tokens < self.budget:
            return None
        return self.end_ids[min(place.forced, len(self.end_ids) - 1)]

    def is_reasoning(self, place: Place, token: int) -> bool:
        """Whether the next token belongs to the reasoning or its markers."""
        return place.phase == "within" or (place.phase == "before" and token == self.begin)
