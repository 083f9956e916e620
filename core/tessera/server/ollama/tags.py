"""Models as Ollama's lists have them."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

from tessera.config import ModelConfig
from tessera.server.ollama.chat import LATEST
from tessera.server.ollama.protocol import Details, Tag

_UNKNOWN = "unknown"


def tag_of(name: str, model: ModelConfig | None, since: float) -> Tag:
    """name: as requests give it. model: None where it is not known, as it was not loaded yet. since: seconds since
    1970."""
    named = name if ":" in name else f"{name}{LATEST}"
    digest = hashlib.sha256(name.encode()).hexdigest()
    return Tag(name=named, model=named, modified_at=time_of(since), size=0, digest=digest, details=details_of(model))


def details_of(model: ModelConfig | None) -> Details:
    family = _UNKNOWN if model is None else str(model.checkpoint.get("model_type") or _UNKNOWN)
    level = "" if model is None else model.dtype
    return Details(family=family, families=[family], parameter_size="", quantization_level=level)


def time_of(seconds: float) -> str:
    """As Ollama writes it. seconds: since 1970."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
