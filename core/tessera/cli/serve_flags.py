"""The table of `tessera serve`'s flags. Names are vLLM's where the same thing exists."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tessera.cli.flags import Flag, FlagTable

GROUPS: Mapping[str, str] = MappingProxyType(
    {
        "model": "What is served",
        "cache": "The KV cache and its memory",
        "scheduler": "How requests share a step",
        "platform": "What it runs on",
        "server": "The HTTP server",
        "security": "Who may use it",
        "logging": "What is written",
    }
)

FLAGS: tuple[Flag, ...] = (
    # ---- model
    Flag("served_model_name", "model", "Name that requests use; give it again for further names.", metavar="NAME",
         default="the folder's name", common=True, multiple=True),
    Flag("dtype", "model", "Number format of weights and activations.", "choice", default="auto",
         choices=("auto", "bfloat16", "float16", "half", "float32", "float"), metavar="DTYPE", common=True),
    Flag("quantization", "model", "Round the weights as they are loaded, of products, to so many bits.", "choice",
         default="none", choices=("int8", "int4"), common=True),
    Flag("max_model_len", "model", "Most tokens of prompt and answer together, such as 4096 or 32K.", "size",
         default="the model's", metavar="TOKENS", common=True),
    Flag("tokenizer", "model", "Folder or hub repository of the tokenizer.", metavar="MODEL", default="the model's"),
    Flag("revision", "model", "Branch, tag or commit of a hub repository.", default="main", metavar="NAME"),
    Flag("tokenizer_revision", "model", "The same, for the tokenizer.", default="as --revision", metavar="NAME"),
    Flag("download_dir", "model", "Where models of the hub are kept.", default="HF_HUB_CACHE", metavar="FOLDER"),
    Flag("hf_token", "model", "Token for the hub. Or set HF_TOKEN.", metavar="TOKEN"),
    Flag("trust_remote_code", "model", "Accepted and without effect: code from a model's folder is never run.",
         "switch"),
    Flag("skip_tokenizer_init", "model", "Load no tokenizer: prompts and answers are token ids.", "switch"),
    Flag("chat_template", "model", "File with a chat template to use in place of the model's.",
         metavar="FILE", common=True),
    Flag("chat_template_content_format", "model", "How it takes a message's content.", "choice", default="auto",
         choices=("auto", "string", "openai")),
    Flag("default_chat_template_kwargs", "model", 'Variables for it, such as \'{"enable_thinking": false}\'.', "json"),
    Flag("generation_config", "model", "Whose sampling defaults hold: auto is the model's, none nobody's; a FOLDER's "
         "max_new_tokens is the most of any answer.", default="auto", metavar="auto|none|FOLDER"),
    Flag("override_generation_config", "model", 'Defaults to put over them, such as \'{"max_new_tokens": 512}\'.',
         "json"),
    Flag("max_logprobs", "model", "Most log probabilities a token that a request may ask for; -1 is all.", "int",
         default="20"),
    Flag("load_format", "model", "Where weights come from; dummy draws random ones.", "choice", default="auto",
         choices=("auto", "safetensors", "dummy"), common=True),
    Flag("seed", "model", "Seed of random weights, and of requests without one.", "int", default="0"),
    # ---- cache
    Flag("kv_cache_memory_bytes", "cache", "Memory of the KV cache, such as 4GiB.", "size",
         default="what there is room for", metavar="BYTES", common=True),
    Flag("gpu_memory_utilization", "cache", "Share of a device's own memory to use, above 0 and at most 1.", "float",
         default="0.92", metavar="SHARE", common=True),
    Flag("kv_cache_dtype", "cache", "Number format of keys and values; int8, or int8_per_token_head, halves what they "
         "take.", "choice", default="auto", choices=("auto", "int8", "int8_per_token_head"), common=True),
    Flag("block_size", "cache", "Tokens of a block.", "int", default="the platform's choice"),
    Flag("enable_prefix_caching", "cache", "Reuse the blocks of prompts that begin alike.", "switch", default="on"),
    # ---- scheduler
    Flag("max_num_seqs", "scheduler", "Requests that run at once.", "int", default="256", common=True),
    Flag("max_num_batched_tokens", "scheduler", "Tokens of one step.", "size",
         default="2048", metavar="TOKENS", common=True),
    Flag("enable_chunked_prefill", "scheduler", "Cut long prompts over several steps.", "switch", default="on"),
    Flag("scheduling_policy", "scheduler", "Who goes first: fcfs, priority, fair, or a plugin's.", default="fcfs",
         metavar="NAME"),
    Flag("max_waiting", "scheduler", "Requests that may wait; more get a 503.", "int", default="4096"),
    Flag("max_num_queued_tokens", "scheduler", "Prompt tokens that may wait; more get a 503.", "size",
         default="no limit", metavar="TOKENS"),
    Flag("watermark", "scheduler", "Share of the cache kept free when a request starts beside others.", "float",
         default="0.01", metavar="SHARE"),
    Flag("steps_in_flight", "scheduler", "Steps launched before the first has ended.", "int",
         default="the platform's choice"),
    # ---- platform
    Flag("platform", "platform", "Platform to run on (see: tessera platforms).", metavar="NAME",
         default="the highest score", common=True),
    Flag("tensor_parallel_size", "platform", "Devices that share each layer.", "int", default="1", common=True),
    Flag("threads", "platform", "Host threads of each worker.", "int", default="the cores it may use"),
    Flag("enforce_eager", "platform", "Capture no graphs.", "switch"),
    Flag("explain", "platform", "Print what is chosen (platform, attention, kernels, quantization), and why nothing "
         "else is.", "switch"),
    Flag("no_fallback", "platform", "Refuse to start where an op or attention would run on the reference.", "switch"),
    # ---- server
    Flag("host", "server", "Address to listen on; 0.0.0.0 is every network.",
         metavar="ADDRESS", default="127.0.0.1", common=True),
    Flag("port", "server", "Port to listen on; 0 takes a free one.", "int", default="8000", common=True),
    Flag("shutdown_timeout", "server", "Seconds that answers in work get after SIGTERM.", "float",
         default="30", metavar="SECONDS"),
    Flag("uds", "server", "Unix socket to listen on, in place of host and port.", metavar="PATH"),
    Flag("root_path", "server", "Prefix of all paths, where a proxy adds one.", metavar="PATH"),
    Flag("enable_force_include_usage", "server", "Tell every stream its usage, asked for or not.", "switch"),
    Flag("sse_keep_alive_interval", "server", "Send a comment in streams that are silent for so many seconds.", "float",
         default="never", metavar="SECONDS"),
    Flag("vllm_metrics", "server", "Write the engine's metrics under vllm: names too.", "switch"),
    Flag("disable_fastapi_docs", "server", "Do not serve /docs and /openapi.json.", "switch"),
    Flag("max_restarts", "server", "Times in five minutes that an engine is started again after it died.", "int",
         default="2"),
    Flag("stall_timeout", "server", "Seconds without a sign of life, or of idling in a step, until it is restarted.",
         "float", default="24", metavar="SECONDS"),
    Flag("routes", "server", "Routes of a plugin to serve; none are served unasked.", metavar="NAME", multiple=True),
    # ---- security
    Flag("api_key", "security", "Key that clients must send; give it again for several. Or set TESSERA_API_KEY.",
         metavar="KEY", common=True, multiple=True),
    Flag("api_key_file", "security", "File with keys, one a line, which no list of processes shows.", metavar="FILE"),
    Flag("max_requests_per_key", "security", "Requests in work with one key; more get a 429.", "int", default="any"),
    Flag("allowed_hosts", "security", "Names in the Host header to answer to, such as api.example.com,*.lan; * is any.",
         "list", default="any with a key or on a network, else this machine's own"),
    Flag("allowed_origins", "security", "Web pages that may read answers, such as https://example.com; * is any.",
         "list", default="none"),
    Flag("allowed_methods", "security", "Methods that they may use.", "list", default="*"),
    Flag("allowed_headers", "security", "Headers that they may send.", "list", default="*"),
    Flag("allow_credentials", "security", "Let them send cookies and the like.", "switch"),
    Flag("ssl_certfile", "security", "Certificate chain (PEM) to serve HTTPS with.", metavar="FILE", common=True),
    Flag("ssl_keyfile", "security", "Its key (PEM), where that is another file.", metavar="FILE", common=True),
    Flag("ssl_ca_certs", "security", "Certificates (PEM) of those whose clients' certificates are taken.",
         metavar="FILE"),
    Flag("ssl_cert_reqs", "security", "Clients' certificates: 0 not asked for, 1 checked where given, 2 required.",
         "choice", default="0", choices=("0", "1", "2")),
    # ---- logging
    Flag("log_level", "logging", "Least severe messages to write.", "choice", default="info",
         choices=("debug", "info", "warning", "error"), metavar="LEVEL", common=True),
    Flag("log_format", "logging", "Lines of text, or a JSON object each.", "choice", default="text",
         choices=("text", "json")),
    Flag("disable_log_requests", "logging", "Write no line for each request.", "switch",
         aliases=("--disable-uvicorn-access-log",)),
)  # fmt: skip

_LATER = [
    "--tokenizer-mode",
    "--pipeline-parallel-size",
    "--data-parallel-size",
    "--enable-expert-parallel",
    "--enable-lora",
    "--lora-modules",
    "--max-loras",
    "--max-lora-rank",
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "--reasoning-parser",
    "--speculative-config",
    "--kv-transfer-config",
    "--limit-mm-per-prompt",
    "--allowed-media-domains",
    "--allowed-local-media-path",
    "--hf-overrides",
    "--hf-config-path",
    "--middleware",
    "--cpu-offload-gb",
    "--swap-space",
    "--logits-processors",
    "--compilation-config",
    "--distributed-executor-backend",
    "--response-role",
    "--ssl-ciphers",
    "--enable-ssl-refresh",
    "--disable-access-log-for-endpoints",
    "--enable-tokenizer-info-endpoint",
    "--trust-request-chat-template",
    "--return-tokens-as-token-ids",
    "--exclude-tools-when-tool-choice-none",
    "--tool-parser-plugin",
    "--tool-server",
    "--log-config-file",
    "--h11-max-incomplete-event-size",
    "--h11-max-header-count",
    "--enable-log-requests",
    "--max-log-len",
    "--disable-log-stats",
    "--enable-sleep-mode",
    "--api-server-count",
    "--headless",
]

ALWAYS_ON: Mapping[str, str] = MappingProxyType(
    {
        "--enable-request-id-headers": "X-Request-Id is always taken and echoed",
        "--enable-server-load-tracking": "/load always counts",
        "--enable-prompt-tokens-details": "usage always has prompt_tokens_details",
    }
)
"""vLLM's flags that are taken and change nothing, and why."""

NOT_SERVED: Mapping[str, str] = MappingProxyType(
    {
        **{option: f"{option} comes later; leave it out for now." for option in _LATER},
        "--model": "Name the model right after serve: tessera serve MODEL.",
        "--uvicorn-log-level": "--uvicorn-log-level is called --log-level here.",
        "--device": "--device is called --platform here.",
    }
)
"""vLLM's flags that are known and not served: the answer to each."""

TABLE = FlagTable(
    usage="serve [MODEL] [FLAGS]",
    summary="Serve MODEL: a folder (config.json, *.safetensors, tokenizer.json) or ORGANIZATION/NAME on the hub. "
    "Without one, serve the bundled demo.",
    flags=FLAGS,
    groups=GROUPS,
    not_served=NOT_SERVED,
    always_on=ALWAYS_ON,
)
