"""Routes of OpenAI's API and of other servers that clients ask for and that are not served; a 404 names them."""

from __future__ import annotations

_TEXT_ONLY = "models here generate text."
_NATIVE = "use OpenAI's completions or chat completions."
_AT_START = "the operator decides it when the server starts."

ROUTES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Embeddings are", _TEXT_ONLY, ("embeddings", "embedding", "embed", "api/embed", "api/embeddings")),
    ("Audio is", _TEXT_ONLY, ("audio",)),
    ("Images are", _TEXT_ONLY, ("images",)),
    ("Videos are", _TEXT_ONLY, ("videos",)),
    ("Moderations are", _TEXT_ONLY, ("moderations",)),
    ("Reranking is", _TEXT_ONLY, ("rerank", "reranking")),
    ("Scoring is", _TEXT_ONLY, ("score",)),
    ("Pooling is", _TEXT_ONLY, ("pooling",)),
    ("Classification is", _TEXT_ONLY, ("classify",)),
    ("Fine-tuning is", _TEXT_ONLY, ("fine_tuning", "fine-tunes")),
    ("Vector stores are", _TEXT_ONLY, ("vector_stores",)),
    ("Assistants and threads are", "use responses and conversations.", ("assistants", "threads")),
    ("Compaction is", "send the items that still matter.", ("responses/compact",)),
    ("Realtime is", "use OpenAI's chat completions, streamed.", ("realtime",)),
    ("Uploads in parts are", "use files.", ("uploads",)),
    ("Anthropic's batches are", "use OpenAI's files and batches.", ("messages/batches",)),
    ("Sleep mode is", _AT_START, ("sleep", "wake_up", "is_sleeping", "pause", "resume")),
    ("Loading adapters at run time is", _AT_START, ("load_lora_adapter", "unload_lora_adapter", "lora-adapters")),
    ("Changing weights at run time is", _AT_START, ("update_weights", "collective_rpc")),
    ("Resetting caches is", "a cache_salt keeps prompts apart.", ("reset_prefix_cache", "reset_mm_cache")),
    ("Ending other clients' requests is", "a client ends its own by closing the connection.", ("abort_requests",)),
    ("Profiling is", "tessera bench measures a server.", ("start_profile", "stop_profile")),
    ("vLLM's server information is", "/version and /metrics have some of it.", ("server_info",)),
    ("Filling in the middle is", "completions with a suffix have it.", ("infill",)),
    ("llama.cpp's own API is", _NATIVE, ("completion", "props", "slots", "apply-template")),
    ("This API for token ids is", "completions take token ids too.", ("generate", "generate_stream", "inference")),
    ("Text Generation Inference's own API is", _NATIVE, ("info",)),
    (
        "Managing models over HTTP is",
        "`tessera serve MODEL` takes the model.",
        ("api/pull", "api/push", "api/create", "api/copy", "api/delete", "api/blobs"),
    ),
)
"""What is not served, what to do instead, and the paths without /v1; the paths below them are meant too."""


def why_not(path: str) -> str | None:
    """What to tell a client that asked for a path that is no route; None if it is not one of these."""
    wanted = path.removeprefix("/v1").removeprefix("/v2").strip("/")
    for what, instead, routes in ROUTES:
        if any(wanted == route or wanted.startswith(f"{route}/") for route in routes):
            return f"{what} not served: {instead}"
    return None
