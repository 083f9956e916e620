"""The table of `tessera serve`'s flags. Names are vLLM's where the same thing exists."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tessera.cli.flags import Flag

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
    Flag("max_model_len", "model", "Most tokens of prompt and answer together, such as 4096 or 32K.", "size",
         default="the model's", metavar="TOKENS", common=True),
    Flag("tokenizer", "model", "Folder of the tokenizer.", metavar="FOLDER", default="the model's folder"),
    Flag("skip_tokenizer_init", "model", "Load no tokenizer: prompts and answers are token ids.", "switch"),
    Flag("chat_template", "model", "File with a chat template to use in place of the model's.",
         metavar="FILE", common=True),
    Flag("generation_config", "model", "Whose sampling defaults hold: the model's or none.", "choice", default="auto",
         choices=("auto", "none", "vllm")),
    Flag("load_format", "model", "Where weights come from; dummy draws random ones.", "choice", default="auto",
         choices=("auto", "safetensors", "dummy"), common=True),
    Flag("seed", "model", "Seed of random weights, and of requests without one.", "int", default="0"),
    # ---- cache
    Flag("kv_cache_memory_bytes", "cache", "Memory of the KV cache, such as 4GiB.", "size",
         default="what there is room for", metavar="BYTES", common=True),
    Flag("gpu_memory_utilization", "cache", "Share of a device's own memory to use, above 0 and at most 1.", "float",
         default="0.92", metavar="SHARE", common=True),
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
    Flag("no_fallback", "platform", "Refuse to run an op that the platform leaves to the reference.", "switch"),
    # ---- server
    Flag("host", "server", "Address to listen on; 0.0.0.0 is every network.",
         metavar="ADDRESS", default="127.0.0.1", common=True),
    Flag("port", "server", "Port to listen on; 0 takes a free one.", "int", default="8000", common=True),
    Flag("shutdown_timeout", "server", "Seconds that answers in work get after SIGTERM.", "float",
         default="30", metavar="SECONDS"),
    Flag("routes", "server", "Routes of a plugin to serve; none are served unasked.", metavar="NAME", multiple=True),
    # ---- security
    Flag("api_key", "security", "Key that clients must send; give it again for several. Or set TESSERA_API_KEY.",
         metavar="KEY", common=True, multiple=True),
    # ---- logging
    Flag("log_level", "logging", "Least severe messages to write.", "choice", default="info",
         choices=("debug", "info", "warning", "error"), metavar="LEVEL", common=True),
    Flag("disable_log_requests", "logging", "Write no line for each request.", "switch"),
)  # fmt: skip

_LATER = [
    "--quantization",
    "--revision",
    "--tokenizer-revision",
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
    "--override-generation-config",
    "--speculative-config",
    "--kv-cache-dtype",
    "--kv-transfer-config",
    "--limit-mm-per-prompt",
    "--allowed-media-domains",
    "--allowed-local-media-path",
    "--hf-overrides",
    "--hf-config-path",
    "--download-dir",
    "--root-path",
    "--ssl-keyfile",
    "--ssl-certfile",
    "--ssl-ca-certs",
    "--ssl-cert-reqs",
    "--allowed-origins",
    "--allowed-methods",
    "--allowed-headers",
    "--allow-credentials",
    "--middleware",
    "--enable-request-id-headers",
    "--uds",
    "--config",
    "--cpu-offload-gb",
    "--swap-space",
    "--max-logprobs",
    "--logits-processors",
    "--compilation-config",
    "--distributed-executor-backend",
    "--response-role",
    "--chat-template-content-format",
    "--enable-log-requests",
    "--max-log-len",
    "--disable-log-stats",
    "--enable-sleep-mode",
    "--api-server-count",
    "--headless",
]

NOT_SERVED: Mapping[str, str] = MappingProxyType(
    {
        **{option: f"{option} comes later; leave it out for now." for option in _LATER},
        "--model": "Name the model right after serve: tessera serve FOLDER.",
        "--trust-remote-code": "--trust-remote-code is not there: Tessera never runs code from a model's folder.",
        "--uvicorn-log-level": "--uvicorn-log-level is called --log-level here.",
        "--device": "--device is called --platform here.",
    }
)
"""vLLM's flags that are known and not served: the answer to each."""
