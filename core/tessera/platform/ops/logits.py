"""What is done to logits before a token is drawn: masks, edits, penalties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tessera.platform.device import Tensor


class History(NamedTuple):
    """The tokens that S rows have. tokens [N, M] int32: of row rows[s] of this table the first num_tokens[s] are known,
    and of these num_prompt_tokens[s] are the prompt. rows, num_prompt_tokens, num_tokens [S] int32."""

    tokens: Tensor
    rows: Tensor
    num_prompt_tokens: Tensor
    num_tokens: Tensor


class Penalties(NamedTuple):
    """[S] float32 each: subtracted from logits of tokens that the answer has, once (presence) and for each time
    (frequency); repetition divides the positive logits of tokens that prompt or answer have, and multiplies the
    others. 0, 0 and 1 change nothing."""

    presence: Tensor
    frequency: Tensor
    repetition: Tensor


class Edits(NamedTuple):
    """E changes of one logit each. row, one of the S, and token [E] int32; value [E] float32 is added, -inf forbids.
    It holds while the row has fewer tokens than until [E] int32, and where the answer ends in the tokens of prefix
    [E, P] int32, of which -1 at the front stands for none."""

    row: Tensor
    token: Tensor
    value: Tensor
    until: Tensor
    prefix: Tensor


@dataclass(frozen=True)
class MaskLogitsSpec:
    """Logits [S, vocab] of tokens whose bit is 0 become -inf, in place."""

    vocab: int


@dataclass(frozen=True)
class EditLogitsSpec:
    """prefix: tokens that edits may have in their prefix."""

    vocab: int
    prefix: int = 0


@dataclass(frozen=True)
class PenaliseSpec:
    """Penalties over logits [S, vocab], in place."""

    vocab: int
