"""Files inside of URLs: data:image/png;base64,... (RFC 2397)."""

from __future__ import annotations

import binascii
from urllib.parse import unquote

from tessera.errors import RequestError
from tessera.media.kinds import MediaKind

SCHEME = "data:"
_SHOWN_CHARS = 100


def decode_data_url(url: str, kind: MediaKind, max_bytes: int | None = None) -> bytes:
    """The file. max_bytes: the most it may have. Raises RequestError."""
    head, comma, text = url.partition(",")
    media_type, *parameters = head[len(SCHEME) :].split(";")
    if not comma or "base64" not in parameters:
        raise RequestError(f"The data: URL of {kind.with_article} has the form data:{kind.example};base64,...")
    check_media_type(media_type, kind)
    return decode_base64(unquote(text) if "%" in text else text, kind, max_bytes)


def decode_base64(text: str, kind: MediaKind, max_bytes: int | None = None) -> bytes:
    """As decode_data_url(), of what is behind the comma."""
    if max_bytes is not None and len(text) > max_bytes * 4 // 3 + 4:
        raise too_large(kind, max_bytes)
    try:
        return binascii.a2b_base64(text.strip(), strict_mode=True)
    except ValueError as error:
        raise RequestError(f"The {kind.noun} is no base64.") from error


def check_media_type(media_type: str, kind: MediaKind) -> None:
    """Raises RequestError for what says that it is of another kind. What it is is seen by its bytes."""
    if not media_type.strip().lower().startswith(kind.media_types):
        raise RequestError(f"The URL is of {media_type[:_SHOWN_CHARS]!r}, and not of {kind.with_article}.")


def too_large(kind: MediaKind, max_bytes: int) -> RequestError:
    return RequestError(f"{kind.with_article.capitalize()} has at most {max_bytes} bytes.")
