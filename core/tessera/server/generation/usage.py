"""The tokens of an answer, as counted, and as OpenAI's newer APIs write them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class TokenUsage(NamedTuple):
    """The tokens of an answer so far."""

    # of all prompts, each counted once
    num_prompt_tokens: int
    # of all choices
    num_output_tokens: int
    # of those of the prompts, the ones that were in the prefix cache
    num_cached_tokens: int
    # of those of the choices; None where nothing reads reasoning
    num_reasoning_tokens: int | None = None

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens


class ResponseInputTokensDetails(msgspec.Struct):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class ResponseOutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: ResponseInputTokensDetails
    output_tokens: int
    output_tokens_details: ResponseOutputTokensDetails
    total_tokens: int

    @classmethod
    def from_tokens(cls, tokens: TokenUsage) -> ResponseUsage:
        return cls(
            tokens.num_prompt_tokens,
            ResponseInputTokensDetails(tokens.num_cached_tokens),
            tokens.num_output_tokens,
            ResponseOutputTokensDetails(tokens.num_reasoning_tokens or 0),
            tokens.num_tokens,
        )
