"""Where the images of a prompt stand in its text."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.errors import RequestError


def with_replacements(prompt: str, placeholder: str, replacements: Sequence[str]) -> str:
    """The prompt with each placeholder replaced, in order. placeholder: "" for a prompt without images. Raises
    RequestError if there are more or fewer of them than replacements."""
    if not placeholder:
        return prompt
    first, *rest = prompt.split(placeholder)
    if len(rest) != len(replacements):
        raise RequestError(
            f"The request has {len(replacements)} images, and its prompt has places for {len(rest)}: the text or the "
            f"chat template must have {placeholder} once for each image."
        )
    return first + "".join(replacement + text for replacement, text in zip(replacements, rest, strict=True))
