"""Routes of OpenAI's and Anthropic's APIs and of other servers that clients ask for and that are not served; a 404
names them."""

from __future__ import annotations

_TEXT_ONLY = "models here take text."
_NATIVE = "use OpenAI's completions or chat completions, whose paths begin with /v1."
_AGENTS = "this server answers an agent that runs elsewhere, by chat completions, responses or messages."
_AT_START = "the operator decides it when the server starts."
_ADMIN = "it needs --enable-lora and a file of keys of which one is an admin."

ROUTES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Embeddings at this path are", "use /v1/embeddings.", ("embedding", "encode", "/v1/embed", "embed_sparse")),
    ("Speaking is", "models here write text.", ("audio/speech", "audio/voices", "audio/voice_consents")),
    ("Images are", _TEXT_ONLY, ("images",)),
    ("Videos are", _TEXT_ONLY, ("videos",)),
    ("Moderations are", _TEXT_ONLY, ("moderations", "content_provenance_checks", "safety")),
    ("Reranking at this path is", "use /rerank.", ("reranking",)),
    ("Scoring by what a model generates is", "use /v1/decisions or /v1/systemone.", ("generative_scoring",)),
    ("Fine-tuning is", _TEXT_ONLY, ("fine_tuning", "fine-tunes")),
    ("Vector stores are", _TEXT_ONLY, ("vector_stores",)),
    ("Evaluation is", _TEXT_ONLY, ("evals",)),
    ("Assistants and threads are", "use responses and conversations.", ("assistants", "threads", "chatkit")),
    (
        "Hosted agents are",
        _AGENTS,
        (
            *("agents", "deployments", "deployment_runs", "dreams", "sessions"),
            *("containers", "environments", "skills", "vaults", "memory_stores", "tunnels"),
        ),
    ),
    (
        "Administration over HTTP is",
        "the operator gives the keys (--api-key) when the server starts.",
        ("organization", "organizations", "projects", "user_profiles", "webhook_endpoints", "webhook_event_types"),
    ),
    ("Compaction is", "send the items that still matter.", ("responses/compact",)),
    ("Realtime is", "use OpenAI's chat completions, streamed.", ("realtime", "live")),
    ("Uploads in parts are", "use files.", ("uploads",)),
    ("Several chats in one request are", "send each by itself, or use files and batches.", ("chat/completions/batch",)),
    ("Anthropic's batches are", "use OpenAI's files and batches.", ("messages/batches",)),
    ("Anthropic's older API is", "use messages.", ("complete",)),
    (
        "Rendering at this path is",
        "use /v1/completions/render or /v1/chat/completions/render.",
        (
            *("messages/render", "responses/render", "apply-template"),
            *("chat/completions/derender", "completions/derender", "chat_tokenize"),
        ),
    ),
    ("Counting a chat's tokens at this path is", "use /tokenize.", ("chat/completions/input_tokens",)),
    ("Tokenizing at this path is", "use /tokenize and /detokenize.", ("/v1/tokenize", "/v1/detokenize")),
    ("Health at this path is", "use /health.", ("/v1/health", "/health_generate")),
    (
        "Control of running answers is",
        "a client ends its own by closing the connection.",
        ("chat/completions/control",),
    ),
    (
        "Ending other clients' requests is",
        "a client ends its own by closing the connection.",
        ("abort_requests", "abort_request"),
    ),
    ("Resuming a stream is", "use responses in the background.", ("stream", "streams")),
    (
        "Sleep mode is",
        "it needs --enable-sleep-mode; its routes are /sleep, /wake_up and /is_sleeping.",
        (
            *("sleep", "wake_up", "is_sleeping"),
            *("release_memory_occupation", "resume_memory_occupation"),
        ),
    ),
    (
        "Pausing is",
        "a server with --enable-sleep-mode has /sleep, which ends its processes.",
        ("pause", "resume", "is_paused", "pause_generation", "continue_generation"),
    ),
    ("Loading adapters at run time is", _ADMIN, ("load_lora_adapter", "unload_lora_adapter", "lora-adapters")),
    (
        "Changing weights at run time is",
        _AT_START,
        (
            *("update_weights", "update_weights_from_disk", "update_weights_from_tensor", "update_weight_version"),
            *("update_weights_from_distributed", "update_weights_from_ipc", "init_weights_update_group"),
            *("init_weight_transfer_engine", "start_weight_update", "finish_weight_update", "weight_checker"),
            *("destroy_weights_update_group", "get_weights_by_name", "get_weight_version", "weight_info"),
            *("collective_rpc", "get_world_size"),
        ),
    ),
    ("Changing the number of devices at run time is", _AT_START, ("scale_elastic_ep", "is_scaling_elastic_ep")),
    ("Fault tolerance over HTTP is", "an engine that dies is started again.", ("fault_tolerance",)),
    (
        "Resetting caches is",
        "a cache_salt keeps prompts apart.",
        ("reset_prefix_cache", "reset_mm_cache", "reset_encoder_cache", "flush_cache"),
    ),
    ("Profiling is", "tessera bench measures a server.", ("start_profile", "stop_profile")),
    (
        "Another server's information is",
        "the list of models, /version, /load and /metrics have some of it.",
        (
            *("server_info", "get_server_info", "get_model_info", "model_info", "get_load", "info"),
            *("get_internal_state", "set_internal_state", "configure_logging"),
        ),
    ),
    ("Filling in the middle is", "completions with a suffix have it.", ("infill",)),
    ("llama.cpp's own API is", _NATIVE, ("completion", "/completions", "props", "slots", "/tools", "cors-proxy")),
    (
        "This API for token ids is",
        "completions take token ids too.",
        ("generate", "generate_stream", "generate_from_file", "/inference", "vertex_generate", "vertex"),
    ),
    (
        "Parsing apart from answering is",
        "chats are answered with their calls and reasoning apart.",
        ("parse_function_call", "separate_reasoning"),
    ),
    ("Sessions are", "use conversations.", ("open_session", "close_session")),
    (
        "Managing models over HTTP is",
        "`tessera serve MODEL` takes the model.",
        (
            *("api/pull", "api/push", "api/create", "api/copy", "api/delete", "api/blobs"),
            *("/models/load", "/models/unload", "/models/sse"),
        ),
    ),
)
"""What is not served, what to do instead, and its paths, each with /v1 or /v2 in front and without, but those that
begin with a slash as they are; the paths below them are meant too."""


def why_not(path: str) -> str | None:
    """What to tell a client that asked for a path that is no route; None if it is not one of these."""
    whole = path.rstrip("/")
    wanted = whole.removeprefix("/v1").removeprefix("/v2").removeprefix("/")
    for what, instead, routes in ROUTES:
        for route in routes:
            own = whole if route.startswith("/") else wanted
            if own == route or own.startswith(f"{route}/"):
                return f"{what} not served: {instead}"
    return None
