"""Image files as parts of a message."""

from __future__ import annotations

import mimetypes
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tessera.errors import RequestError
from tessera.media.rules import MediaRules

MAX_BYTES = MediaRules.max_bytes
"""The most that a server of the same program takes of an image's file."""


def image_url(path: str) -> str:
    """The file as a data URL. Raises RequestError."""
    file = Path(path).expanduser()
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise RequestError(f"The image {path} cannot be read: {error.strerror}.") from error
    if len(data) > MAX_BYTES:
        raise RequestError(f"The image {path} has more than {MAX_BYTES} bytes; make it smaller.")
    kind = mimetypes.guess_type(file.name)[0] or "image/png"
    return f"data:{kind};base64,{b64encode(data).decode()}"


def content_of(question: str, urls: Sequence[str]) -> str | list[dict[str, Any]]:
    """The content of a message that shows images, if any, and asks about them."""
    if not urls:
        return question
    shown = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [*shown, {"type": "text", "text": question}]
