"""The token ids of the texts of a call: those with the same limits are one job for the text worker, since each job is a
round trip between processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tessera.errors import RequestError
from tessera.text.blocking_workers import BlockingTextWorkers
from tessera.text.tokenizer import EncodedPair, TruncationSide
from tessera.text_pair import TextPair


class EncodingLimit(NamedTuple):
    # Of the text, with what the tokenizer puts around it; None: any number.
    max_tokens: int | None
    # From which a longer text is cut; None: it is refused.
    side: TruncationSide | None = None


def encode_together(
    workers: BlockingTextWorkers, prompts: Sequence[Any], limits: Sequence[EncodingLimit | None]
) -> dict[int, list[int] | EncodedPair]:
    """By place, the token ids of prompts that are texts, or pairs of them, and have a limit. Those whose job fails are
    left out, as is a text without another like it: who encodes each alone learns which one is at fault."""
    alike: dict[tuple[bool, EncodingLimit], list[int]] = {}
    for place, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        if limit is not None and isinstance(prompt, str | TextPair):
            alike.setdefault((isinstance(prompt, TextPair), limit), []).append(place)
    encoded: dict[int, list[int] | EncodedPair] = {}
    for (are_pairs, limit), places in alike.items():
        if len(places) == 1:
            continue
        encode = workers.encode_pairs if are_pairs else workers.encode
        try:
            ids = encode([prompts[place] for place in places], max_tokens=limit.max_tokens, truncation_side=limit.side)
        except RequestError:
            continue
        encoded.update(zip(places, ids, strict=True))
    return encoded
