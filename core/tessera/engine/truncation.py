"""The part of a prompt that a request keeps of one that is too long: vLLM's truncate_prompt_tokens and
truncation_side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.errors import RequestError
from tessera.sampling_params import check_side


@dataclass(frozen=True)
class Truncation:
    """num_tokens: how many tokens are kept. right: the prompt's first ones are, because it is cut on its right."""

    num_tokens: int
    right: bool = False

    @classmethod
    def of(
        cls, asked: int | None, side: str | None, *, max_model_len: int, max_tokens: int | None
    ) -> Truncation | None:
        """asked: truncate_prompt_tokens; -1 leaves room for the answer's max_tokens, of which None is one token. side:
        truncation_side; None is left. None if the prompt is to stay whole. Raises RequestError."""
        check_side(side)
        if asked is None:
            return None
        if asked == -1:
            asked = max(max_model_len - (max_tokens or 1), 1)
        if not 1 <= asked <= max_model_len:
            raise RequestError(
                f"truncate_prompt_tokens must be 1 to {max_model_len}, the model's context, or -1 for what fits in it, "
                f"got {asked}.",
                param="truncate_prompt_tokens",
            )
        return cls(asked, side == "right")

    def kept(self, ids: Sequence[int]) -> Sequence[int]:
        """The token ids that are kept of a prompt's."""
        return ids[: self.num_tokens] if self.right else ids[-self.num_tokens :]
