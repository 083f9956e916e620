"""The oracle, transformers: prompts of different lengths, their greedy tokens and the logits of every position."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tessera.media.placed import PlacedMedia
from tools.parity.encoder_inputs import EncoderInputs
from tools.parity.family import MAX_POSITIONS, Family, num_prompt_tokens
from tools.parity.images import Images

NUM_TOKENS = 32
"""Of an answer that does not reach the end of what the model can read."""
CONTINUED_AFTER = 16
"""How many tokens of an answer a longer prompt takes."""
LENGTHS = (29, 1, 16, 40, 5, 33, 17, 2, 24, 36)
STEM = 26


@dataclass(frozen=True)
class Answer:
    """A prompt and its continuation. tokens: prompt and greedy answer; logits [len(tokens), vocabulary] float32: after
    each token."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logits: Tensor
    # The prompt's.
    media: tuple[PlacedMedia, ...] = ()

    @property
    def answer(self) -> tuple[int, ...]:
        return self.tokens[len(self.prompt) :]

    def gap(self, index: int) -> float:
        """The difference of the two best logits at token `index` of the answer."""
        best = self.logits[len(self.prompt) + index - 1].topk(2).values
        return float(best[0] - best[1])

    def continued(self, count: int) -> Answer:
        """The same text with the first `count` tokens of the answer moved to the prompt."""
        return replace(self, prompt=self.tokens[: len(self.prompt) + count])


def make_prompts(vocab: int, count: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Random token ids. Every third prompt, if longer than STEM, starts with the same STEM tokens."""
    draw = random.Random(seed)
    stem = [draw.randrange(vocab) for _ in range(STEM)]
    prompts = []
    for number in range(count):
        length = LENGTHS[number % len(LENGTHS)]
        tokens = [draw.randrange(vocab) for _ in range(length)]
        prompts.append(tuple((stem + tokens[STEM:]) if length > STEM and number % 3 == 0 else tokens))
    return prompts


def ask_family(family: Family, model: Any, count: int) -> list[Answer]:
    """model: of this family. count: of prompts. Raises ValueError if one leaves no room for an answer to continue."""
    vocab, longest = num_prompt_tokens(model.config), family.max_model_len or MAX_POSITIONS
    if family.images is None:
        return ask(model, make_prompts(vocab, count), longest=longest)
    if isinstance(family.images, EncoderInputs):
        prompts = make_prompts(vocab, count)
        return ask(model, prompts, family.images.placed(prompts), family.images, longest=longest)
    return ask(model, *family.images.prompts(vocab, count), family.images, longest=longest)


@torch.inference_mode()
def ask(
    model: Any,
    prompts: Sequence[Sequence[int]],
    media: Sequence[Sequence[PlacedMedia]] = (),
    images: Images | EncoderInputs | None = None,
    *,
    longest: int = MAX_POSITIONS,
) -> list[Answer]:
    """Greedy answers, one prompt at a time, recomputing the whole text for each token: nothing is cached or padded.
    media: of each prompt; () if none has any. images: of the model's family, where a prompt has any. longest: of a
    prompt and its answer, which ends there as an engine's does. Raises ValueError if a prompt leaves less room than
    CONTINUED_AFTER tokens and one."""
    answers = []
    for prompt, placed in zip(prompts, media or [()] * len(prompts), strict=True):
        tokens, room = list(prompt), longest - len(prompt)
        if room <= CONTINUED_AFTER:
            raise ValueError(f"A prompt of {len(prompt)} tokens leaves no room in a text of {longest}.")
        for _ in range(min(NUM_TOKENS, room)):
            tokens.append(int(_logits(model, tokens, images, placed, len(prompt))[-1].argmax()))
        logits = _logits(model, tokens, images, placed, len(prompt))
        answers.append(Answer(tuple(prompt), tuple(tokens), logits.float().clone(), tuple(placed)))
    return answers


def _logits(
    model: Any, tokens: Sequence[int], images: Images | EncoderInputs | None, placed: Sequence[PlacedMedia], prompt: int
) -> Tensor:
    """[tokens, vocabulary]. prompt: how many of the tokens are its."""
    media = {} if images is None else images.arguments(placed, len(tokens), prompt)
    named = images.tokens if isinstance(images, EncoderInputs) else "input_ids"
    logits: Tensor = model(**{named: torch.tensor([tokens])}, **media, use_cache=False).logits[0]
    return logits
