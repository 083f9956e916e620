"""The images, videos and sounds that a caller of LLM passes: in `multi_modal_data` of a prompt, or as parts of a chat's
messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tessera.config.modalities import NOUNS
from tessera.errors import RequestError
from tessera.media.data_url import SCHEME, decode_base64, decode_data_url
from tessera.media.kinds import IMAGE, KINDS, SOUND, VIDEO, MediaKind
from tessera.media.sound import MAX_RATE, MIN_RATE, wav_file
from tessera.media.video import frames_file

_PARTS: Mapping[str, MediaKind] = MappingProxyType(
    {
        **dict.fromkeys(("image_url", "image_pil", "image"), IMAGE),
        **dict.fromkeys(("video_url", "video"), VIDEO),
        **dict.fromkeys(("audio_url", "input_audio", "audio"), SOUND),
    }
)
"""By the type of a chat's part."""


class MediaFile(NamedTuple):
    """An image, a video or a sound."""

    # "image", "video" or "audio"
    modality: str
    # Its file.
    data: bytes


class PromptWithMedia(NamedTuple):
    """A text that has the model's placeholder once for each image, video and sound."""

    text: str
    # In order, at least those of each modality.
    files: Sequence[MediaFile]


class MediaTaken(NamedTuple):
    """What the prompts of a model may hold."""

    # By modality, the most of a prompt.
    limits: Mapping[str, int]
    # Samples a second of a sound that comes without: as the model takes it.
    rate: int

    def check(self, modalities: Sequence[str]) -> None:
        """modalities: of each image and sound of a prompt. Raises RequestError for too many."""
        for modality, count in Counter(modalities).items():
            limit = self.limits.get(modality, 0)
            if limit == 0:
                raise RequestError(
                    f"No {NOUNS[modality]}s are taken here: the model has no tower for them, or --limit-mm-per-prompt "
                    "refuses them.",
                    param="prompts",
                )
            if count > limit:
                raise RequestError(
                    f"A prompt has at most {limit} {NOUNS[modality]}s here, and this one has {count} "
                    "(--limit-mm-per-prompt).",
                    param="prompts",
                )

    def encoded(self, kind: MediaKind, content: Any) -> MediaFile:
        """The file of an image, a video or a sound that is given as such, as a path, as a data URL, as an image of
        Pillow, as frames or samples, or as (frames or samples, their rate). Raises RequestError."""
        if isinstance(content, bytes | bytearray | memoryview):
            return MediaFile(kind.modality, bytes(content))
        if isinstance(content, str) and content.startswith(SCHEME):
            return MediaFile(kind.modality, decode_data_url(content, kind))
        if isinstance(content, str | Path):
            try:
                return MediaFile(kind.modality, Path(content).expanduser().read_bytes())
            except OSError as error:
                raise RequestError(f"The {kind.noun} cannot be read: {error.strerror}.", param="prompts") from error
        if kind is VIDEO:
            return MediaFile(kind.modality, _frames(content))
        return MediaFile(kind.modality, _picture(content) if kind is IMAGE else _samples(content, self.rate))


def media_of(data: Any, taken: MediaTaken) -> list[MediaFile]:
    """The images, videos and sounds of multi_modal_data. Raises RequestError."""
    if not isinstance(data, Mapping) or set(data) - set(KINDS):
        raise RequestError(
            'multi_modal_data takes {"image": an image or a list of images, "video": a video or a list of videos, '
            '"audio": a sound or a list of sounds}.',
            param="multi_modal_data",
        )
    contents = [(modality, content) for modality, said in data.items() for content in _listed(modality, said)]
    taken.check([modality for modality, _ in contents])
    return [taken.encoded(KINDS[modality], content) for modality, content in contents]


def without_media(
    conversation: Sequence[Mapping[str, Any]], taken: MediaTaken
) -> tuple[list[Mapping[str, Any]], list[MediaFile]]:
    """The messages as chat templates take them, with {"type": modality} in place of each image and sound, and these.
    Raises RequestError."""
    messages: list[Mapping[str, Any]] = []
    shown: list[tuple[Mapping[str, Any], MediaKind]] = []
    for message in conversation:
        content = message.get("content")
        if not isinstance(content, list | tuple):
            messages.append(message)
            continue
        parts = []
        for part in content:
            kind = _PARTS.get(str(part.get("type"))) if isinstance(part, Mapping) else None
            if kind is not None:
                shown.append((part, kind))
            parts.append(part if kind is None else {"type": kind.modality})
        messages.append({**message, "content": parts})
    taken.check([kind.modality for _, kind in shown])
    return messages, [_of_part(part, kind, taken) for part, kind in shown]


def _of_part(part: Mapping[str, Any], kind: MediaKind, taken: MediaTaken) -> MediaFile:
    name = str(part["type"])
    content = part.get(name)
    if name == "input_audio":
        data = content.get("data") if isinstance(content, Mapping) else None
        if not isinstance(data, str):
            raise RequestError("A part of type 'input_audio' must have input_audio.data.", param="messages")
        return MediaFile(kind.modality, decode_base64(data, kind))
    if isinstance(content, Mapping):
        content = content.get("url")
    if content is None:
        raise RequestError(f"A part of type '{name}' must have the field {name}.", param="messages")
    if name.endswith("_url") and not (isinstance(content, str) and content.startswith(SCHEME)):
        other = "image_pil" if kind is IMAGE else kind.modality
        raise RequestError(f"{name} must be a data URL here; read the file and pass it as {other}.", param="messages")
    return taken.encoded(kind, content)


def _listed(modality: str, content: Any) -> Sequence[Any]:
    """A sound may be a list of numbers, or a pair, and a video a pair too."""
    if not isinstance(content, list | tuple):
        return [content]
    numbers = modality != "image" and any(isinstance(one, int | float) for one in content[:2])
    return [content] if numbers else content


def _picture(content: Any) -> bytes:
    if not hasattr(content, "save"):
        raise RequestError(
            f"An image is one of Pillow, the bytes of a file, a path or a data URL, not {type(content).__name__}.",
            param="prompts",
        )
    file = BytesIO()
    content.save(file, format="PNG")
    return file.getvalue()


def _frames(content: Any) -> bytes:
    frames, rate = content if isinstance(content, tuple) and len(content) == 2 else (content, None)
    try:
        array = np.asarray(frames)
        per_second = None if rate is None else float(rate)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor on a device
        array, per_second = np.zeros(0), None
    known = array.ndim == 4 and array.shape[-1] == 3 and array.dtype == np.uint8 and array.size > 0
    if not known or (per_second is not None and not 0 < per_second <= 1000):
        raise RequestError(
            "A video is an array of uint8 [frames, height, width, 3], such an array with its frames a second, "
            "(array, rate), the bytes of a file, a path or a data URL.",
            param="prompts",
        )
    return frames_file(array, per_second)


def _samples(content: Any, rate: int) -> bytes:
    if isinstance(content, tuple) and len(content) == 2:
        content, rate = content
    try:
        array = np.asarray(content)
        whole_rate = int(rate)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor on a device
        array, whole_rate = np.zeros(0, np.int32), 0
    if array.ndim != 1 or array.dtype.kind != "f" or whole_rate != rate:
        raise RequestError(
            "A sound is an array of floats with one dimension, such an array with its rate, (array, rate), the bytes "
            "of a file, a path or a data URL.",
            param="prompts",
        )
    if not MIN_RATE <= whole_rate <= MAX_RATE:
        raise RequestError(f"A sound has {MIN_RATE} to {MAX_RATE} samples a second.", param="prompts")
    return wav_file(array, whole_rate)
