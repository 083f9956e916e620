"""Turns the stream of dialogues into padded batches of token ids and masks of the tokens whose loss counts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import Random

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tools.demo_model.generate import render, training_dialogues

Ids = NDArray[np.int64]
Marks = NDArray[np.bool_]
CHUNK = 4096  # dialogues sorted by length together


def batches(tokenizer: Tokenizer, seed: int, tokens: int, context: int) -> Iterator[tuple[Ids, Marks]]:
    """Yields endless (ids [rows, length] int64, counts [rows, length - 1] bool) of at most `tokens` ids each.

    counts[r, i] says that the assistant writes ids[r, i + 1]. Dialogues of similar length share a batch, so there is
    little padding. Each starts at position 0, as it does when it is served.
    """
    dialogues, rng = training_dialogues(seed), Random(seed)
    start = tokenizer.encode("<|im_start|>assistant\n").ids
    end = tokenizer.encode("<|im_end|>").ids[0]
    while True:
        texts = [render(dialogue) for dialogue in islice(dialogues, CHUNK)]
        rows = sorted((encoding.ids[:context] for encoding in tokenizer.encode_batch(texts)), key=len)
        groups = list(_grouped(rows, tokens))
        rng.shuffle(groups)
        for group in groups:
            ids = np.zeros((len(group), len(group[-1])), dtype=np.int64)
            for row, line in enumerate(group):
                ids[row, : len(line)] = line
            yield ids, answered(ids, start, end)[:, 1:]


def _grouped(rows: list[list[int]], tokens: int) -> Iterator[list[list[int]]]:
    """Splits rows, sorted by length, into groups of at most `tokens` including padding."""
    group: list[list[int]] = []
    for row in rows:
        if group and (len(group) + 1) * len(row) > tokens:
            yield group
            group = []
        group.append(row)
    yield group


def answered(ids: Ids, start: list[int], end: int) -> Marks:
    """A mask [rows, length] bool of what follows `start`, up to and including the next `end`."""
    opened = np.ones_like(ids, dtype=bool)
    for offset, token in enumerate(reversed(start)):
        opened &= np.roll(ids == token, offset, axis=1)
    opened[:, : len(start) - 1] = False
    marks = np.zeros_like(opened)
    inside = np.zeros(len(ids), dtype=bool)
    for column in range(ids.shape[1]):
        marks[:, column] = inside
        inside = (inside & (ids[:, column] != end)) | opened[:, column]
    return marks
