"""The images that a caller of LLM passes: in `multi_modal_data` of a prompt, or as parts of a chat's messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from tessera.errors import RequestError
from tessera.media.data_url import SCHEME, decode_data_url

IMAGE: Mapping[str, str] = {"type": "image"}
"""A part of a message as chat templates take it."""
_PARTS = ("image_url", "image_pil", "image")


class PromptWithImages(NamedTuple):
    """A text that has the model's placeholder once for each image."""

    text: str
    # Files of the images.
    images: Sequence[bytes]


def images_of(data: Any, limit: int) -> list[bytes]:
    """The images of multi_modal_data. limit: of their number. Raises RequestError."""
    if not isinstance(data, Mapping) or set(data) - {"image"}:
        raise RequestError('multi_modal_data takes {"image": an image or a list of images}.', param="multi_modal_data")
    said = data.get("image", [])
    images = [encoded(image) for image in (said if isinstance(said, list | tuple) else [said])]
    check_count(len(images), limit)
    return images


def check_count(count: int, limit: int) -> None:
    """Raises RequestError."""
    if count > limit:
        raise RequestError(
            f"A prompt has at most {limit} images here, and this one has {count} (--limit-mm-per-prompt).",
            param="prompts",
        )


def encoded(image: Any) -> bytes:
    """The file of an image that is given as such, as a path, as a data URL or as an image of Pillow. Raises
    RequestError."""
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, str) and image.startswith(SCHEME):
        return decode_data_url(image)
    if isinstance(image, str | Path):
        try:
            return Path(image).expanduser().read_bytes()
        except OSError as error:
            raise RequestError(f"The image cannot be read: {error.strerror}.", param="prompts") from error
    if hasattr(image, "save"):
        file = BytesIO()
        image.save(file, format="PNG")
        return file.getvalue()
    raise RequestError(
        f"An image is one of Pillow, the bytes of a file, a path or a data URL, not {type(image).__name__}.",
        param="prompts",
    )


def without_images(
    conversation: Sequence[Mapping[str, Any]], limit: int
) -> tuple[list[Mapping[str, Any]], list[bytes]]:
    """The messages with IMAGE in place of each image, and the images. Raises RequestError."""
    messages: list[Mapping[str, Any]] = []
    images: list[bytes] = []
    for message in conversation:
        content = message.get("content")
        if not isinstance(content, list | tuple):
            messages.append(message)
            continue
        parts = []
        for part in content:
            image = _image_of(part)
            if image is not None:
                images.append(encoded(image))
            parts.append(part if image is None else IMAGE)
        messages.append({**message, "content": parts})
    check_count(len(images), limit)
    return messages, images


def _image_of(part: Any) -> Any:
    """None for a part of another kind. Raises RequestError for one without its image."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in _PARTS:
        return None
    image = part.get(kind)
    if isinstance(image, Mapping):
        image = image.get("url")
    if image is None:
        raise RequestError(f"A part of type '{kind}' must have the field {kind}.", param="messages")
    if kind == "image_url" and not (isinstance(image, str) and image.startswith(SCHEME)):
        raise RequestError(
            "image_url must be a data URL here; read the file and pass it as image_pil.", param="messages"
        )
    return image
