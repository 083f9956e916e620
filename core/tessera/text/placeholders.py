"""Where the images, videos and sounds of a prompt stand in its text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tessera.config.modalities import NOUNS
from tessera.errors import RequestError


def with_replacements(prompt: str, placeholders: Mapping[str, str], replacements: Mapping[str, Sequence[str]]) -> str:
    """The prompt with each placeholder replaced, in order. placeholders: by modality; none for a prompt of text alone.
    replacements: by modality, in the order of the prompt. Raises RequestError if there are more or fewer placeholders
    than replacements."""
    if not placeholders:
        return prompt
    longest_first = sorted(placeholders, key=lambda modality: -len(placeholders[modality]))
    any_of = re.compile("|".join(f"(?P<{modality}>{re.escape(placeholders[modality])})" for modality in longest_first))
    places = [match.lastgroup for match in any_of.finditer(prompt)]
    for modality, placeholder in placeholders.items():
        wanted = replacements.get(modality, ())
        if places.count(modality) != len(wanted):
            noun = NOUNS[modality]
            raise RequestError(
                f"The request has {len(wanted)} {noun}s, and its prompt has places for {places.count(modality)}: the "
                f"text or the chat template must have {placeholder} once for each {noun}."
            )
    left = {modality: iter(texts) for modality, texts in replacements.items()}
    return any_of.sub(lambda match: next(left[str(match.lastgroup)]), prompt)
