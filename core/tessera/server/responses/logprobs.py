"""The log probabilities of an answer's texts: each message has those of its own tokens, however they arrive."""

from __future__ import annotations

from collections import deque

import msgspec

from tessera.parsing.response import Content
from tessera.request import CompletionOutput
from tessera.server.generation.logprobs import LogprobWriter, TextOffsets, TokenLogprob


class TextLogprobs:
    """Hands the log probabilities of one answer's tokens to the texts that they are in.

    skipped: tokens that have no text. A token is in a text if they share a character; one that is a part of a character
    shares the whole.
    """

    def __init__(self, writer: LogprobWriter, skipped: frozenset[int]) -> None:
        self._writer = writer
        self._skipped = skipped
        self._offsets = TextOffsets(writer.names.tokenizer)
        self._waiting: deque[tuple[int, int, TokenLogprob]] = deque()
        """Tokens of no text so far: where each begins and ends in what the model wrote."""

    def add(self, answer: CompletionOutput) -> None:
        """answer: what is new, before its texts are told."""
        shown = self._writer.tokens(answer)
        for token, position, entry in zip(answer.token_ids, answer.logprobs or (), shown, strict=True):
            begin = self._offsets.next
            if token not in self._skipped:
                self._offsets.add(token, position[token].decoded_token)
            self._waiting.append((begin, max(self._offsets.next, begin + 1), entry))

    def take(self, text: Content, *, begins: bool) -> bytes:
        """Those of a piece of a message, as elements of a JSON array. begins: it is the first of the message."""
        waiting = self._waiting
        while begins and waiting and waiting[0][1] <= text.begin:
            waiting.popleft()
        taken = []
        while waiting and waiting[0][0] < text.end:
            taken.append(waiting.popleft()[2])
        return msgspec.json.encode(taken)[1:-1]
