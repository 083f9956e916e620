"""The texts to score: dialogues of the demo's kind, English and code of Python's library, or random token ids."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import Random

from tessera.config.engine import ModelConfig
from tessera.config.locate import demo_folder
from tessera.text import Tokenizer
from tessera.text.scored_texts import WINDOW, ScoredText, library_windows
from tools.demo_model.generate import Dialogue, render, training_dialogues

SEED = 20_000  # for dialogues that training did not draw
LENGTH = 96
OPENING = "<|im_start|>assistant\n"


def texts_of(model: ModelConfig, count: int) -> list[ScoredText]:
    """Of the bundled demo, dialogues, counting only the assistant's answers; each at most as long as the context. Of
    another model with a tokenizer, windows of Python's help, which is English, and of two modules, in equal numbers.
    Random token ids otherwise."""
    longest = model.max_model_len - 1
    if not model.tokenizer:
        return [_random(Random(number), model.vocab_size, min(LENGTH, longest)) for number in range(count)]
    tokenizer = Tokenizer.from_folder(model.tokenizer)
    if model.path == str(demo_folder()):
        return [_dialogue(tokenizer, one, longest) for one in islice(training_dialogues(SEED), count)]
    size = min(WINDOW, longest)
    return library_windows(tokenizer, size, count)


def _random(random: Random, vocabulary: int, length: int) -> ScoredText:
    return ScoredText([random.randrange(vocabulary) for _ in range(length)], [True] * length)


def _dialogue(tokenizer: Tokenizer, dialogue: Dialogue, longest: int) -> ScoredText:
    text = ScoredText([], [])
    for piece, counted in _pieces(dialogue):
        ids = tokenizer.encode(piece, add_special_tokens=False)
        text.ids.extend(ids)
        text.counted.extend([counted] * len(ids))
    return ScoredText(text.ids[:longest], text.counted[:longest])


def _pieces(dialogue: Dialogue) -> Iterator[tuple[str, bool]]:
    for message in dialogue:
        said = render([message])
        if not said.startswith(OPENING):
            yield said, False
            continue
        yield OPENING, False
        yield said.removeprefix(OPENING).removesuffix("\n"), True
        yield "\n", False
