"""The server's settings and flags, and the limits on everything that a client can send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import TYPE_CHECKING, Any

from tessera.config.engine import MAX_SECONDS, Supervision
from tessera.config.flags import flag, flags_of
from tessera.media.rules import MediaRules

if TYPE_CHECKING:
    from tessera.server.certificates import Certificates
    from tessera.server.key_file import KeyFile
    from tessera.server.tracing import Tracer

_MAX_N = 2**14
"""That of SamplingParams, whose module takes too long to load before the engine starts."""


@dataclass(frozen=True)
class Limits:
    """Limits on one request, except those that SamplingParams checks itself (stop, bad_words, logit_bias and so on)."""

    # of the request body
    body_bytes: int = 32 * 2**20
    # of the bodies of all requests in progress together
    bodies_bytes: int = 512 * 2**20
    # of all fields together, without the large ones (messages, tools, prompt, allowed_token_ids, tokens)
    other_bytes: int = 2**20
    prompts: int = flag(64, "Maximum prompts of a completions request.", name="max_prompts", low=1, high=2**16)
    n: int = flag(128, "Maximum answers of a prompt (n).", name="max_n", low=1, high=_MAX_N)
    choices: int = flag(512, "Maximum answers of a request: prompts times n.", name="max_choices", low=1, high=2**20)
    pooled_inputs: int = flag(
        2048, "Maximum inputs of an embeddings request, and documents of a reranking one.", name="max_inputs", low=1,
        high=2**16,
    )  # fmt: skip
    # of all pairs of texts of a request, the query counted once for each document
    pair_chars: int = 64 * 2**20
    # of all vectors of an answer
    pooled_numbers: int = 2**24
    # of the vectors of all requests in progress together
    all_pooled_numbers: int = 2**28
    # of a prompt, after the chat template
    prompt_chars: int = 8 * 2**20
    # in a chat, as are the next two
    messages: int = 2048
    content_parts: int = 8192
    tool_calls: int = 8192
    # in a chat
    tools: int = 1024
    # of JSON
    tools_bytes: int = 2**20
    # of JSON, of chat_template_kwargs
    template_kwargs_bytes: int = 2**16
    # of each of cache_salt, prompt_cache_key and user
    salt_chars: int = 256
    request_id_chars: int = 128
    # of the request line and all headers
    header_bytes: int = 2**16
    # for these to arrive, and for TLS to be agreed on before them
    header_seconds: float = 30.0
    # for a body to arrive
    body_seconds: float = 60.0
    # in which a client may read nothing of an answer
    write_seconds: float = 60.0
    # of /detokenize
    detokenize_tokens: int = 2**20
    file_bytes: int = flag(
        200 * 2**20, "Maximum size of a file.", name="max_file_bytes", kind="size", low=1, high=2**40, metavar="BYTES",
        shown_default="200MiB",
    )  # fmt: skip
    # for a file, or a recording, to arrive
    file_seconds: float = 600.0
    # of a recording to write down
    audio_bytes: int = 128 * 2**20
    # requests of a batch
    batch_lines: int = 50_000
    # of the custom_id of a line of a batch
    custom_id_chars: int = 256


@dataclass(frozen=True)
class AnswerLimits:
    """Limits on the number of tokens in an answer. default: for chats that set no max_tokens; None is what fits in the
    context. maximum: for every request; None is no maximum."""

    default: int | None = None
    maximum: int | None = None

    def capped(self, max_tokens: int | None) -> int | None:
        """The limit for a request that asks for max_tokens; None if it does not say."""
        return max_tokens if max_tokens is None or self.maximum is None else min(max_tokens, self.maximum)

    def unasked(self, room: int) -> int | None:
        """The limit for a request that sets none; None is all of `room`, the tokens left in the context after the
        prompt."""
        limits = [limit for limit in (self.default, self.maximum) if limit is not None]
        return min(*limits, max(room, 1)) if limits else None


@dataclass(frozen=True)
class CorsRules:
    """Which web pages may read responses, and what they may send; "*" allows any."""

    origins: tuple[str, ...] = flag(
        MISSING, "Origins whose web pages may read answers, such as https://example.com; * allows all.",
        name="allowed_origins", shown_default="none",
    )  # fmt: skip
    methods: tuple[str, ...] = flag(("*",), "Methods these pages may use.", name="allowed_methods", shown_default="*")
    headers: tuple[str, ...] = flag(("*",), "Headers these pages may send.", name="allowed_headers", shown_default="*")
    credentials: bool = flag(False, "Let these pages send credentials such as cookies.", name="allow_credentials")


@dataclass(frozen=True)
class ServerSettings:
    """The settings of the HTTP server."""

    # that requests may use for the model; () is the engine's name
    served_model_names: tuple[str, ...] = ()
    # each grants access; () needs no key, unless there is a file of keys
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    # further keys, with names and limits
    key_file: KeyFile | None = None
    # values of sampling fields that a request leaves out, from generation_config.json
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    # in progress
    max_requests: int = 8192
    drain_seconds: float = flag(
        30.0, "How long running requests may take to finish after SIGTERM, SIGHUP or Ctrl-C.", name="shutdown_timeout",
        low=0, high=MAX_SECONDS, unit="seconds", metavar="SECONDS",
    )  # fmt: skip
    shutdown_delay_seconds: float = flag(
        0.0, "Serve on for this long after SIGTERM, with /readyz at 503, before no new connections are accepted.",
        name="shutdown_delay", low=0, high=MAX_SECONDS, unit="seconds", metavar="SECONDS", shown_default="none",
    )  # fmt: skip
    keep_alive_seconds: int = flag(
        75, "How long a connection may be idle between two requests.", name="timeout_keep_alive", low=1, high=86400,
        unit="seconds", metavar="SECONDS",
    )  # fmt: skip
    # if the limit on file descriptors leaves that many; health checks have some more
    max_connections: int = flag(
        8192, "Maximum connections; beyond it, idle ones are closed, and then all but health checks get a 503.",
        name="limit_concurrency", low=1, high=2**20,
    )  # fmt: skip
    limits: Limits = field(default_factory=Limits)
    # on the length of answers
    answers: AnswerLimits = field(default_factory=AnswerLimits)
    # where images and sounds may come from
    media: MediaRules = field(default_factory=MediaRules)
    # variables of the chat template; a request's own take precedence
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tool_call_parser: str = flag(
        "auto",
        "How the model writes calls of tools; auto goes by its response_template or chat template, else it is json.",
        metavar="NAME",
    )
    reasoning_parser: str = flag(
        "auto",
        "How the model writes its reasoning; auto goes by its response_template or its chat template.",
        metavar="NAME",
    )
    response_store: str = flag(
        "", "File in which responses, conversations and stored chats are kept.", metavar="FILE",
        shown_default="in memory, until the server ends",
    )  # fmt: skip
    response_store_bytes: int = flag(
        256 * 2**20, "Maximum size of these; those used least recently are dropped.", kind="size",
        low=2**20, high=2**50, metavar="BYTES", shown_default="256MiB",
    )  # fmt: skip
    batch_store: str = flag(
        "", "Folder in which /v1/files and batches are kept; a server that starts again goes on with them.",
        metavar="FOLDER", shown_default="a temporary one, until the server ends",
    )  # fmt: skip
    batch_store_bytes: int = flag(
        4 * 2**30, "Size of all files together; batches wait while there is no room.", kind="size", low=2**20,
        high=2**50, metavar="BYTES", shown_default="4GiB",
    )  # fmt: skip
    force_include_usage: bool = flag(
        False, "Report usage in every chunk of streams, requested or not.", name="enable_force_include_usage"
    )
    # 0 sends no comments
    sse_keep_alive_seconds: float = flag(
        0.0, "Send a comment in streams that have been silent this long.", name="sse_keep_alive_interval", low=0,
        high=MAX_SECONDS, unit="seconds", metavar="SECONDS", shown_default="never",
    )  # fmt: skip
    max_requests_per_key: int | None = flag(
        None, "Maximum requests in flight per API key that has no limit of its own; further ones get a 429.",
        group="security", low=1, shown_default="no limit",
    )  # fmt: skip
    max_asked_tokens: int | None = flag(
        None, "Maximum tokens that requests in flight may ask for, each with its log probabilities; further ones get a "
        "503, or a 429 if their API key asks for over a fourth.", kind="size", low=1, high=2**50, metavar="TOKENS",
        shown_default="what all requests that may run and wait ask for without log probabilities",
    )  # fmt: skip
    shared_prefix_cache: bool = flag(
        False, "Let API keys use each other's cached prefixes; then each can find out what others have asked.",
        group="security",
    )  # fmt: skip
    vllm_metrics: bool = flag(False, "Also export the engine's metrics under vLLM's names (vllm:...).")
    # sends spans to --otlp-traces-endpoint
    tracer: Tracer | None = None
    sleep_mode: bool = flag(
        False, "Serve /sleep, which frees the model's devices until /wake_up, and /is_sleeping.",
        name="enable_sleep_mode",
    )  # fmt: skip
    disable_fastapi_docs: bool = flag(False, "Do not serve /docs and /openapi.json.")
    tokenizer_info: bool = flag(
        False, "Serve /tokenizer_info: the tokenizer's settings and the chat template.",
        name="enable_tokenizer_info_endpoint",
    )  # fmt: skip
    unlogged_routes: tuple[str, ...] = flag(
        (), "Routes whose requests are not logged, such as /v1/models,/tokenize.", group="logging",
        name="disable_access_log_for_endpoints", metavar="PATHS",
        shown_default="health checks and metrics, which never are",
    )  # fmt: skip
    disable_ui: bool = flag(False, "Do not serve the web page at /.")
    root_path: str = flag("", "Path prefix added by a reverse proxy.", metavar="PATH")
    # () allows any
    allowed_hosts: tuple[str, ...] = flag(
        (), "Accepted values of the Host header, such as api.example.com,*.lan; * accepts any.", group="security",
        shown_default="any with an API key or a network address, else this machine's names",
    )  # fmt: skip
    # None lets no web page of another origin read responses
    cors: CorsRules | None = None
    # for HTTPS; None is plain HTTP
    tls: Certificates | None = None

    @property
    def guarded(self) -> bool:
        """Whether clients need an API key."""
        return bool(self.api_keys) or self.key_file is not None

    def __post_init__(self) -> None:
        """Raises ConfigError for a parser that there is not."""
        # Not at the top: the flags are read before the engine's process begins, which waits for nothing else.
        from tessera.parsing.formats import response_format

        response_format(self.tool_call_parser, self.reasoning_parser, "")


@dataclass(frozen=True)
class OnDemandRules:
    """When models of --models are loaded and unloaded."""

    max_loaded: int | None = flag(
        None, "Maximum models of --models that are loaded at once; those used least recently make room.",
        name="max_loaded_models", low=1, shown_default="no limit",
    )  # fmt: skip
    memory_bytes: int | None = flag(
        None, "Memory of all loaded models of --models, weights and KV caches as `tessera plan` counts them.",
        name="models_memory", kind="size", low=2**20, high=2**50, metavar="BYTES", shown_default="no limit",
    )  # fmt: skip
    idle_seconds: float = flag(
        0.0, "Unload a model of --models that nobody has used for this long.", name="model_idle_timeout", low=0,
        high=MAX_SECONDS, unit="seconds", metavar="SECONDS", shown_default="never",
    )  # fmt: skip
    start_seconds: float = flag(
        300.0, "How long requests wait for a model of --models to be loaded, before they get a 503.",
        name="model_start_timeout", above=0, high=MAX_SECONDS, unit="seconds", metavar="SECONDS",
    )  # fmt: skip


@dataclass(frozen=True)
class ServeOptions:
    """The flags of `tessera serve` that are not settings themselves: the address, keys, TLS files, and what is printed
    and logged."""

    host: str = flag(
        "127.0.0.1", "Address to listen on; 0.0.0.0 listens on all networks.", metavar="ADDRESS", common=True
    )
    port: int = flag(8000, "Port to listen on; 0 picks a free one.", low=0, high=65535, common=True)
    models: str | None = flag(
        None, "YAML file of several models to serve by name, each loaded when a request asks for it.", metavar="FILE"
    )
    uds: str | None = flag(None, "Unix socket to listen on, instead of host and port.", metavar="PATH")
    listen_when_ready: bool = flag(
        False, "Refuse connections until the model is loaded, instead of answering 503: for proxies that try another "
        "server only if they cannot connect.",
    )  # fmt: skip
    routes: tuple[str, ...] = flag(
        (), "Routes of a plugin to serve; none are served otherwise.", metavar="NAME", multiple=True
    )
    api_key: tuple[str, ...] = flag(
        (), "Key that clients must send; repeat for several.", group="security", metavar="KEY", common=True,
        multiple=True, several=True, variable="TESSERA_API_KEY",
    )  # fmt: skip
    api_key_file: str | None = flag(
        None, "File of keys, one per line; if its name ends in .yaml or .json, of keys with names and limits, which is "
        "read again on SIGHUP.", group="security", metavar="FILE", aliases=("--api-keys-file",),
    )  # fmt: skip
    ssl_certfile: str | None = flag(
        None, "Certificate chain (PEM) for HTTPS; read again on SIGHUP.", group="security", metavar="FILE", common=True
    )
    ssl_keyfile: str | None = flag(
        None, "Private key (PEM), if it is in another file.", group="security", metavar="FILE", common=True
    )
    ssl_ca_certs: str | None = flag(
        None, "CA certificates (PEM) that client certificates are verified with.", group="security", metavar="FILE"
    )
    ssl_cert_reqs: str = flag(
        "0", "Client certificates: 0 not requested, 1 optional, 2 required.", group="security", choices=("0", "1", "2")
    )
    ssl_ciphers: str | None = flag(
        None, "Ciphers of TLS 1.2 and older, as OpenSSL writes them.", group="security", metavar="CIPHERS",
        shown_default="Python's choice",
    )  # fmt: skip
    otlp_traces_endpoint: str | None = flag(
        None, "Send a trace of each request here, as OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces.",
        group="logging", metavar="URL",
    )  # fmt: skip
    explain: bool = flag(
        False, "Print what was chosen (platform, attention, kernels, quantization) and why.", group="platform"
    )
    log_level: str = flag(
        "info", "Minimum severity of log messages.", group="logging", metavar="LEVEL", common=True,
        choices=("debug", "info", "warning", "error"),
    )  # fmt: skip
    log_format: str = flag("text", "Log as text, or as one JSON object per line.", group="logging",
                           choices=("text", "json"))  # fmt: skip
    disable_log_requests: bool = flag(
        False, "Do not log each request.", group="logging", aliases=("--disable-uvicorn-access-log",)
    )


SERVER_FLAGS = (
    *flags_of(ServeOptions, "server"),
    *flags_of(OnDemandRules, "server"),
    *flags_of(ServerSettings, "server"),
    *flags_of(Limits, "server"),
    *flags_of(CorsRules, "security"),
    *flags_of(MediaRules, "security"),
    *flags_of(Supervision, "server"),
)
"""The flags of `tessera serve` that are not the engine's."""
