"""`tessera serve`: its flags and the command. It starts the engine process before it imports anything else it needs."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import click

from tessera.cli.flag_command import FlagCommand, FlagTable, model_argument
from tessera.cli.model_text import TEMPLATE_FLAGS
from tessera.config.engine import ENGINE_FLAGS, GROUPS
from tessera.engine.child import EngineChild, executor_path
from tessera.server.settings import SERVER_FLAGS

_LATER = [
    "--tokenizer-mode",
    "--data-parallel-size",
    "--enable-expert-parallel",
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

_HERE = "is llama.cpp's; here that is"
_RIGHT_AFTER = "Name the model right after serve: tessera serve MODEL."
LLAMA_CPP: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("-m", "--model", "-hf", "-hfr", "--hf-repo"), _RIGHT_AFTER),
        **{name: f"{name} {_HERE} --max-model-len." for name in ("-c", "--ctx-size")},
        **{name: f"{name} {_HERE} --max-num-seqs." for name in ("-np", "--parallel")},
        **{
            name: f"{name} {_HERE} --max-num-batched-tokens." for name in ("-b", "--batch-size", "-ub", "--ubatch-size")
        },
        **{name: f"{name} {_HERE} --kv-cache-dtype." for name in ("-ctk", "--cache-type-k", "-ctv", "--cache-type-v")},
        **{name: f"{name} {_HERE} --threads." for name in ("-t", "-tb", "--threads-batch")},
        **{name: f"{name} {_HERE} --served-model-name." for name in ("-a", "--alias")},
        **{name: f"{name} is llama.cpp's; here all layers are on the device." for name in ("-ngl", "--n-gpu-layers")},
        **{
            name: f"{name} is llama.cpp's; remove it."
            for name in ("-fa", "--flash-attn", "--jinja", "--mlock", "--no-mmap")
        },
    }
)
"""Messages for flags of llama.cpp's server."""

ALWAYS_ON: Mapping[str, str] = MappingProxyType(
    {
        "--enable-auto-tool-choice": "tools need no flag",
        "--enable-request-id-headers": "X-Request-Id is always accepted and echoed",
        "--enable-server-load-tracking": "/load always counts",
        "--enable-prompt-tokens-details": "usage always has prompt_tokens_details",
    }
)
"""vLLM flags that are accepted without effect, and why."""

NOT_SERVED: Mapping[str, str] = MappingProxyType(
    {
        **{option: f"{option} is not supported yet; remove it." for option in _LATER},
        **LLAMA_CPP,
        "--uvicorn-log-level": "--uvicorn-log-level is called --log-level here.",
        "--device": "--device is called --platform here.",
    }
)
"""Messages for vLLM flags that are known but not supported."""

TABLE = FlagTable(
    usage="serve [MODEL] [FLAGS]",
    summary="Serve MODEL: a folder (config.json, *.safetensors, tokenizer.json) or ORGANIZATION/NAME on the Hugging "
    "Face Hub. Without MODEL, serve the bundled demo.",
    flags=(*ENGINE_FLAGS, *TEMPLATE_FLAGS, *SERVER_FLAGS),
    groups={**GROUPS, "server": "HTTP server", "security": "Access and TLS", "logging": "Logging"},
    not_served=NOT_SERVED,
    always_on=ALWAYS_ON,
)


@click.command(cls=FlagCommand, table=TABLE, params=[model_argument()])
def serve(model: str | None, **flags: Any) -> int:
    """Serve a model over the OpenAI API."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # during start-up; later the server handles both
    num_workers = (flags["pipeline_parallel_size"] or 1) * (flags["tensor_parallel_size"] or 1)
    with EngineChild(executor_path(num_workers)) as child:
        # This import takes about as long as a good part of the engine's own, so they run in parallel.
        from tessera.cli.serving import run

        return run(model, flags, child, began)
