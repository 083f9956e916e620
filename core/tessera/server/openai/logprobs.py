"""Log probabilities in the two forms of OpenAI's answers."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.request import CompletionOutput, Logprob
from tessera.server.openai.protocol import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from tessera.text import Tokenizer

# JSON has no infinity; OpenAI's own answers stand at this for the impossible.
LOWEST = -9999.0


class LogprobWriter:
    """alternatives: how many of each token's alternatives are shown."""

    def __init__(self, tokenizer: Tokenizer | None, alternatives: int) -> None:
        self._tokenizer = tokenizer
        self._alternatives = alternatives

    def chat(self, answer: CompletionOutput) -> ChatLogprobs:
        """Of the tokens of one output."""
        positions = zip(answer.token_ids, answer.logprobs or (), strict=True)
        return ChatLogprobs([self._position(token, position) for token, position in positions])

    def completion(self, answer: CompletionOutput, offset: int) -> CompletionLogprobs:
        """offset: characters of the choice's text before this output."""
        result = CompletionLogprobs([], [], [], [])
        for token, position in zip(answer.token_ids, answer.logprobs or (), strict=True):
            text = self._text(token, position[token])
            result.tokens.append(text)
            result.token_logprobs.append(_finite(position[token].logprob))
            shown = {token: position[token], **dict(self._best(position))}.items()
            result.top_logprobs.append({self._text(other, entry): _finite(entry.logprob) for other, entry in shown})
            result.text_offset.append(offset)
            offset += len(text)
        return result

    def _position(self, token: int, position: Mapping[int, Logprob]) -> TokenLogprob:
        chosen = position[token]
        best = [
            TopLogprob(self._text(other, entry), _finite(entry.logprob), self._bytes(other, entry))
            for other, entry in self._best(position)
        ]
        return TokenLogprob(self._text(token, chosen), _finite(chosen.logprob), self._bytes(token, chosen), best)

    def _best(self, position: Mapping[int, Logprob]) -> list[tuple[int, Logprob]]:
        """The most likely ones, whether or not the chosen token is among them."""
        return sorted(position.items(), key=lambda item: -item[1].logprob)[: self._alternatives]

    def _text(self, token: int, entry: Logprob) -> str:
        return f"token_id:{token}" if entry.decoded_token is None else entry.decoded_token

    def _bytes(self, token: int, entry: Logprob) -> list[int]:
        if self._tokenizer is not None:
            return list(self._tokenizer.token_bytes(token))
        return list(self._text(token, entry).encode())


def _finite(logprob: float) -> float:
    return max(LOWEST, logprob)
