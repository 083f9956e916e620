"""`tessera serve`: its flags and the command. The engine's process begins before anything else that it needs."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import click

from tessera.cli.flag_command import FlagCommand, FlagTable, model_argument
from tessera.cli.model_text import TEMPLATE_FLAGS
from tessera.config.engine import ENGINE_FLAGS, GROUPS, Supervision
from tessera.config.flags import flag, flags_of
from tessera.engine.child import EngineChild, executor_path
from tessera.server.settings import SERVER_FLAGS


@dataclass(frozen=True)
class ServeOptions:
    """What the command itself needs: where it listens, who may use it, what it prints. Everything else is the engine's
    or the server's."""

    host: str = flag(
        "127.0.0.1", "Address to listen on; 0.0.0.0 listens on all networks.", metavar="ADDRESS", common=True
    )
    port: int = flag(8000, "Port to listen on; 0 picks a free one.", low=0, high=65535, common=True)
    uds: str | None = flag(None, "Unix socket to listen on, instead of host and port.", metavar="PATH")
    routes: tuple[str, ...] = flag(
        (), "Routes of a plugin to serve; none are served otherwise.", metavar="NAME", multiple=True
    )
    api_key: tuple[str, ...] = flag(
        (), "Key that clients must send; repeat for several.", group="security", metavar="KEY", common=True,
        multiple=True, variable="TESSERA_API_KEY",
    )  # fmt: skip
    api_key_file: str | None = flag(
        None, "File of keys, one per line, so that they do not show in the process list.", group="security",
        metavar="FILE",
    )  # fmt: skip
    ssl_certfile: str | None = flag(
        None, "Certificate chain (PEM) for HTTPS.", group="security", metavar="FILE", common=True
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
        "--enable-request-id-headers": "X-Request-Id is always accepted and echoed",
        "--enable-server-load-tracking": "/load always counts",
        "--enable-prompt-tokens-details": "usage always has prompt_tokens_details",
    }
)
"""vLLM's flags that are accepted and change nothing, and why."""

NOT_SERVED: Mapping[str, str] = MappingProxyType(
    {
        **{option: f"{option} is not supported yet; remove it." for option in _LATER},
        "--model": "Name the model right after serve: tessera serve MODEL.",
        "--uvicorn-log-level": "--uvicorn-log-level is called --log-level here.",
        "--device": "--device is called --platform here.",
    }
)
"""vLLM's flags that are known and not supported: the answer to each."""

OWN_FLAGS = (*flags_of(ServeOptions, "server"), *SERVER_FLAGS, *flags_of(Supervision, "server"))
"""Flags of the front process alone."""

TABLE = FlagTable(
    usage="serve [MODEL] [FLAGS]",
    summary="Serve MODEL: a folder (config.json, *.safetensors, tokenizer.json) or ORGANIZATION/NAME on the Hugging "
    "Face Hub. Without MODEL, serve the bundled demo.",
    flags=(*ENGINE_FLAGS, *TEMPLATE_FLAGS, *OWN_FLAGS),
    groups={**GROUPS, "server": "HTTP server", "security": "Access and TLS", "logging": "Logging"},
    not_served=NOT_SERVED,
    always_on=ALWAYS_ON,
)


@click.command(cls=FlagCommand, table=TABLE, params=[model_argument()])
def serve(model: str | None, **flags: Any) -> int:
    """Serve a model over the OpenAI API."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both end the start alike; later they are the server's
    with EngineChild(executor_path(flags["tensor_parallel_size"] or 1)) as child:
        # Takes as long as the engine needs for a good part of its own imports.
        from tessera.cli.serving import run

        return run(model, flags, child, began)
