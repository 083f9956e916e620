"""What differs between images, videos and sounds on their way to a model: names, and types of files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tessera.config.modalities import NOUNS

_ANY = ("application/octet-stream", "binary/octet-stream")


@dataclass(frozen=True)
class MediaKind:
    """A modality."""

    # As transformers and vLLM call it: "image", "video", "audio".
    modality: str
    # As messages call one of it, with its article.
    with_article: str
    # How the media types of its files begin, as a URL or an HTTP server says. What a file is, its bytes say.
    media_types: tuple[str, ...]
    # A media type, for messages.
    example: str
    # The header Accept, where a file is fetched.
    accept: bytes

    @property
    def noun(self) -> str:
        """As messages call it."""
        return NOUNS[self.modality]


IMAGE = MediaKind("image", "an image", ("image/", *_ANY), "image/png", b"image/*")
VIDEO = MediaKind("video", "a video", ("video/", "image/gif", *_ANY), "video/mp4", b"video/*, image/gif;q=0.9")
SOUND = MediaKind(
    "audio", "a sound", ("audio/", "video/", "application/ogg", *_ANY), "audio/wav", b"audio/*, application/ogg;q=0.9"
)
KINDS: Mapping[str, MediaKind] = MappingProxyType({kind.modality: kind for kind in (IMAGE, VIDEO, SOUND)})
"""By modality."""
