"""Images inside of URLs: data:image/png;base64,... (RFC 2397)."""

from __future__ import annotations

import binascii
from urllib.parse import unquote

from tessera.errors import RequestError

SCHEME = "data:"
_MEDIA_TYPES = ("image/", "application/octet-stream", "binary/octet-stream")
_SHOWN_CHARS = 100


def decode_data_url(url: str, max_bytes: int | None = None) -> bytes:
    """The file. max_bytes: the most it may have. Raises RequestError."""
    head, comma, text = url.partition(",")
    kind, *parameters = head[len(SCHEME) :].split(";")
    if not comma or "base64" not in parameters:
        raise RequestError("An image's data: URL has the form data:image/png;base64,...")
    check_media_type(kind)
    if max_bytes is not None and len(text) > max_bytes * 4 // 3 + 4:
        raise too_large(max_bytes)
    try:
        return binascii.a2b_base64((unquote(text) if "%" in text else text).strip(), strict_mode=True)
    except ValueError as error:
        raise RequestError("An image's data: URL is no base64.") from error


def check_media_type(kind: str) -> None:
    """Raises RequestError for what says that it is no image. What it is is seen by its bytes."""
    if not kind.strip().lower().startswith(_MEDIA_TYPES):
        raise RequestError(f"The URL is of {kind[:_SHOWN_CHARS]!r}, and not of an image.")


def too_large(max_bytes: int) -> RequestError:
    return RequestError(f"An image has at most {max_bytes} bytes.")
