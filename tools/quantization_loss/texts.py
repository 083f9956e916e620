"""The texts to score: dialogues of the demo's kind, English and code of Python's library, or random token ids."""

from __future__ import annotations

import heapq
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pydoc_data.topics import topics
from random import Random

from tessera.config.engine import ModelConfig
from tessera.config.locate import demo_folder
from tessera.text import Tokenizer
from tools.demo_model.generate import Dialogue, render, training_dialogues

SEED = 20_000  # for dialogues that training did not draw
LENGTH = 96
WINDOW = 512
"""Tokens of a text from Python's library."""
LONG = 6000
"""Characters of the topics of Python's help that are read: shorter ones are mostly tables."""
OPENING = "<|im_start|>assistant\n"


@dataclass(frozen=True)
class Text:
    """counted: which tokens the model itself would write."""

    ids: list[int]
    counted: list[bool]


def texts_of(model: ModelConfig, count: int) -> list[Text]:
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
    english = "\n\n".join(text for text in topics.values() if len(text) > LONG)
    code = "".join(inspect.getsource(module) for module in (heapq, textwrap))
    return [*_windows(tokenizer, english, size, -(-count // 2)), *_windows(tokenizer, code, size, count // 2)]


def _windows(tokenizer: Tokenizer, text: str, size: int, count: int) -> Iterator[Text]:
    """Each with what the tokenizer writes before a text, such as a token that begins it."""
    first = tokenizer.encode("", add_special_tokens=True)
    ids, each = tokenizer.encode(text[: 8 * size * count], add_special_tokens=False), size - len(first)
    for start in range(0, min(len(ids), each * count), each):
        window = [*first, *ids[start : start + each]]
        yield Text(window, [True] * len(window))


def _random(random: Random, vocabulary: int, length: int) -> Text:
    return Text([random.randrange(vocabulary) for _ in range(length)], [True] * length)


def _dialogue(tokenizer: Tokenizer, dialogue: Dialogue, longest: int) -> Text:
    text = Text([], [])
    for piece, counted in _pieces(dialogue):
        ids = tokenizer.encode(piece, add_special_tokens=False)
        text.ids.extend(ids)
        text.counted.extend([counted] * len(ids))
    return Text(text.ids[:longest], text.counted[:longest])


def _pieces(dialogue: Dialogue) -> Iterator[tuple[str, bool]]:
    for message in dialogue:
        said = render([message])
        if not said.startswith(OPENING):
            yield said, False
            continue
        yield OPENING, False
        yield said.removeprefix(OPENING).removesuffix("\n"), True
        yield "\n", False
