"""Merges of a vocabulary that has none, from the order of its pieces.

A piece of several characters is made by merging any two pieces that spell it. Of two possible merges the one whose
result comes first in the order is made first, as SentencePiece does with scores and tiktoken with ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tessera.errors import ModelError
from tessera.gguf.tokenizer.metadata import REMEDY

# A piece of n characters takes about n * n steps: any cut of it is copied and looked up.
_MAX_STEPS = 2**27


def merges_by_rank(vocabulary: Sequence[str], order: Iterable[int]) -> list[tuple[str, str]]:
    """Pairs of pieces, the one to merge first at the start.

    vocabulary: text by token id. order: token ids, the piece to make first at the start; those that are not in it are
    never made by a merge. The pairs that make one piece are in the order of their parts' ids, as in the files of the
    models that have such merges.
    """
    token_id_of = {text: token_id for token_id, text in enumerate(vocabulary)}.get
    pairs: list[tuple[int, int]] = []
    steps = 0
    for token_id in order:
        piece = vocabulary[token_id]
        steps += len(piece) ** 2
        if steps > _MAX_STEPS:
            raise ModelError(f"The pieces of the GGUF file's vocabulary are too long to find their merges. {REMEDY}")
        made = [
            (left, right)
            for at in range(1, len(piece))
            if (right := token_id_of(piece[at:])) is not None and (left := token_id_of(piece[:at])) is not None
        ]
        made.sort()
        pairs += made
    return [(vocabulary[left], vocabulary[right]) for left, right in pairs]
