"""Routes that other servers have and this one does not: a request for one is told so by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_EMBED = "Models that embed are not served yet"
_ADMIN = "This server's state is not changed over HTTP"

ROUTES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *("/v1/embeddings", "/embeddings", "/embedding", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score"),
                *("/score", "/classify", "/pooling", "/v2/embed", "/api/embed", "/api/embeddings"),
            ),
            _EMBED,
        ),
        **dict.fromkeys(
            ("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech", "/v1/realtime"),
            "Audio is not served yet",
        ),
        **dict.fromkeys(
            ("/v1/images/generations", "/v1/images/edits", "/v1/images/variations", "/v1/videos"),
            "Images and videos are not made here",
        ),
        **dict.fromkeys(("/v1/files", "/v1/batches", "/v1/uploads"), "Files and batches are not served yet"),
        **dict.fromkeys(("/v1/moderations", "/v1/fine_tuning/jobs"), "Moderation and fine-tuning are not served"),
        **dict.fromkeys(("/v1/assistants", "/v1/threads", "/v1/vector_stores"), "Use responses and conversations"),
        **dict.fromkeys(
            (
                *("/sleep", "/wake_up", "/is_sleeping", "/pause", "/resume", "/reset_prefix_cache", "/abort_requests"),
                *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/update_weights", "/collective_rpc"),
                *("/start_profile", "/stop_profile", "/server_info"),
            ),
            _ADMIN,
        ),
        **dict.fromkeys(
            ("/completion", "/infill", "/props", "/slots", "/apply-template", "/lora-adapters"),
            "llama.cpp's own routes are not served; use OpenAI's",
        ),
        **dict.fromkeys(
            ("/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs"),
            "Models are not managed over HTTP; `tessera serve` takes the model",
        ),
        **dict.fromkeys(("/generate", "/inference/v1/generate"), "Use completions, which take token ids too"),
    }
)  # fmt: skip
"""Why a path is not served, or what to use instead."""


def why_not(path: str) -> str | None:
    """What to say of a path that is no route here; None for one that nobody has."""
    found = next((known for known in ROUTES if path == known or path.startswith(f"{known}/")), None)
    return None if found is None else f"This route is known, and not served. {ROUTES[found]}."
