"""The part of a prompt that a request keeps of one that is too long: vLLM's truncate_prompt_tokens and
truncation_side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tessera.errors import RequestError
from tessera.sampling_params import check_side
from tessera.text.tokenizer import TruncationSide


class TextLimit(NamedTuple):
    """What becomes of texts that are too long for a model that pools them. It is for the tokenizer, which leaves whole
    what it puts around a text."""

    # With what the tokenizer puts around a text.
    max_tokens: int
    # From which a text is cut; None: it is refused.
    side: TruncationSide | None = None

    @classmethod
    def from_params(cls, num_tokens: int | None, side: str | None, max_model_len: int) -> TextLimit:
        """num_tokens: truncate_prompt_tokens; -1 is the longest that the model takes. side: truncation_side; None is
        right: what begins a text says most of it. Raises RequestError."""
        truncation = Truncation.from_params(num_tokens, side, max_model_len=max_model_len, max_tokens=0)
        if truncation is None:
            return cls(max_model_len)
        return cls(truncation.num_tokens, "left" if side == "left" else "right")

    def apply(self, ids: Sequence[int]) -> Sequence[int]:
        """The token ids that are kept of a text's; all of one that is refused."""
        return ids if self.side is None else Truncation(self.max_tokens, self.side == "right").apply(ids)


@dataclass(frozen=True)
class Truncation:
    """How many tokens of a prompt are kept, and which."""

    num_tokens: int
    # The prompt's first tokens are kept, because it is cut on its right.
    right: bool = False

    @classmethod
    def from_params(
        cls, num_tokens: int | None, side: str | None, *, max_model_len: int, max_tokens: int
    ) -> Truncation | None:
        """num_tokens: truncate_prompt_tokens; -1 leaves room for the answer's max_tokens.
        side: truncation_side; None is left. None if the prompt is to stay whole. Raises RequestError."""
        check_side(side)
        if num_tokens is None:
            return None
        if num_tokens == -1:
            num_tokens = max(max_model_len - max_tokens, 1)
        if not 1 <= num_tokens <= max_model_len:
            raise RequestError(
                f"truncate_prompt_tokens must be 1 to {max_model_len}, the model's context, or -1 for what fits in it, "
                f"got {num_tokens}.",
                param="truncate_prompt_tokens",
            )
        return cls(num_tokens, side == "right")

    def apply(self, ids: Sequence[int]) -> Sequence[int]:
        """The token ids that are kept of a prompt's."""
        return ids[: self.num_tokens] if self.right else ids[-self.num_tokens :]
