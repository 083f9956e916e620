"""`tessera router`: one address for several servers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from tessera.cli.flag_command import FlagCommand, FlagTable
from tessera.config.engine import MAX_SECONDS
from tessera.config.flags import flag, flags_of, given_values, record_of
from tessera.errors import ConfigError

MAX_FILE_BYTES = 2**20


@dataclass(frozen=True)
class RouterOptions:
    """The flags of `tessera router`."""

    servers_file: str | None = flag(
        None, "File of URLs, one per line, instead of arguments; read anew at SIGHUP. A server that is no longer in it "
        "ends what it has begun and gets no more.", metavar="FILE", common=True,
    )  # fmt: skip
    prefill: tuple[str, ...] = flag(
        (), "URL of a server that computes prompts for the others (--kv-transfer-config); repeat for several.",
        metavar="URL", multiple=True, common=True,
    )  # fmt: skip
    host: str = flag(
        "127.0.0.1", "Address to listen on; 0.0.0.0 listens on all networks.", metavar="ADDRESS", common=True
    )
    port: int = flag(8000, "Port to listen on; 0 picks a free one.", low=0, high=65535, common=True)
    prefix_tokens: int = flag(
        2**20, "Tokens of prompts that each server is taken to have cached.", kind="size", low=64, high=2**40,
        metavar="TOKENS", common=True,
    )  # fmt: skip
    sticky_cache_salt: bool = flag(
        False, "Requests with an equal cache_salt prefer the same server, whatever their prompts.", common=True
    )
    drain_seconds: float = flag(
        30.0, "How long running requests may take to finish after SIGTERM or Ctrl-C.", name="shutdown_timeout", low=1,
        high=MAX_SECONDS, unit="seconds", metavar="SECONDS",
    )  # fmt: skip
    log_level: str = flag(
        "info", "Minimum severity of log messages.", metavar="LEVEL", choices=("debug", "info", "warning", "error")
    )


FLAGS = flags_of(RouterOptions, "router")
TABLE = FlagTable(
    usage="router [URL]... [FLAGS]",
    summary="Pass requests on to servers of one model, each to the one that has most of its prompt cached.",
    flags=FLAGS,
    groups={"router": "Router"},
)


@click.command(cls=FlagCommand, table=TABLE, params=[click.Argument(["urls"], nargs=-1, metavar="[URL]...")])
def router(urls: tuple[str, ...], **flags: Any) -> int:
    """Pass requests on to several servers."""
    options = record_of(RouterOptions, FLAGS, given_values(FLAGS, flags, as_options=True))
    read_urls(urls, options.servers_file)  # what is wrong is said before anything listens
    prefill = server_urls(options.prefill)
    # Not at the top: listing commands loads none of it.
    from functools import partial

    from tessera.cli.event_loop import run_until_end
    from tessera.cli.listen import bind, url_of
    from tessera.log import TEXT, set_up_logging
    from tessera.router.run import run

    set_up_logging(options.log_level.upper(), TEXT)
    with bind(options.host, options.port) as listener:
        print(f"router at {url_of(listener)}", file=sys.stderr, flush=True)
        return run_until_end(
            partial(
                run,
                listener,
                partial(read_urls, urls, options.servers_file),
                prefix_tokens=options.prefix_tokens,
                sticky=options.sticky_cache_salt,
                drain=options.drain_seconds,
                prefill_urls=prefill,
            )
        )


def read_urls(urls: Sequence[str], file: str | None) -> list[str]:
    """The servers, from arguments or a file. Raises ConfigError."""
    if (file is None) == (not urls):
        raise ConfigError("Name the servers either as arguments, such as http://host:8000, or with --servers-file.")
    if file is not None:
        try:
            urls = Path(file).read_bytes()[:MAX_FILE_BYTES].decode().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--servers-file '{file}' cannot be read as text.") from error
    found = server_urls(urls)
    if not found:
        raise ConfigError(f"--servers-file '{file}' names no server.")
    return found


def server_urls(lines: Sequence[str]) -> list[str]:
    """Each once. Raises ConfigError."""
    stripped = [url.strip().rstrip("/") for url in lines]
    found = [url for url in stripped if url and not url.startswith("#")]
    for url in found:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path or parts.query:
            raise ConfigError(f"'{url[:120]}' is not the URL of a server, such as http://host:8000.")
    return list(dict.fromkeys(found))
