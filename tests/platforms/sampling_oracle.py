"""What is done to one row's logits, written from the definitions over lists and dictionaries, without torch."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

NEVER = -math.inf


def processed(
    logits: Sequence[float],
    prompt: Sequence[int],
    answer: Sequence[int],
    *,
    allowed_token_ids: Collection[int] | None = None,
    bad_words_ids: Sequence[Sequence[int]] = (),
    min_tokens: int = 0,
    ends: Collection[int] = (),
    logit_bias: Mapping[int, float] | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
) -> list[float]:
    """The logits that the next token is drawn from. ends: what min_tokens holds off."""
    forbidden = set()
    if allowed_token_ids is not None:
        forbidden |= {token for token in range(len(logits)) if token not in allowed_token_ids}
    for word in bad_words_ids:
        begun = list(word[:-1])
        if not begun or list(answer[-len(begun) :]) == begun:
            forbidden.add(word[-1])
    if len(answer) < min_tokens:
        forbidden |= set(ends)
    result = [NEVER if token in forbidden else value for token, value in enumerate(logits)]
    for token, bias in (logit_bias or {}).items():
        result[token] += bias
    for token in {*prompt, *answer}:
        value = result[token]
        result[token] = value / repetition_penalty if value > 0 else value * repetition_penalty
    times: dict[int, int] = {}
    for token in answer:
        times[token] = times.get(token, 0) + 1
    for token, count in times.items():
        result[token] -= frequency_penalty * count + presence_penalty
    return result


def logprobs(logits: Sequence[float]) -> list[float]:
    peak = max(logits)
    norm = peak + math.log(sum(math.exp(value - peak) for value in logits))
    return [value - norm for value in logits]


def rank(values: Sequence[float], token: int) -> int:
    return 1 + sum(value > values[token] for value in values)
