"""What `serve` prints besides its log: progress, warnings and, when ready, a summary and how to try it."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from tessera._version import __version__
from tessera.config.pooler import PoolerConfig
from tessera.log import LastingStream
from tessera.platform import Progress
from tessera.sizes import show_bytes, show_weights

log = logging.getLogger(__name__)

_LABEL = 11
_QUESTION = "What is the capital of France?"
_BAR = 30


class Started(Protocol):
    """The fields needed from the engine's EngineInfo."""

    @property
    def device(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def platform(self) -> str: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def num_weights(self) -> int: ...
    @property
    def cache_bytes(self) -> int: ...
    @property
    def num_cache_tokens(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def phases(self) -> Mapping[str, float]: ...
    @property
    def fallback_ops(self) -> Sequence[str]: ...
    @property
    def notes(self) -> Sequence[str]: ...
    @property
    def num_devices(self) -> int: ...


def report(
    info: Started,
    *,
    model: str,
    url: str,
    chat: bool,
    guarded: bool,
    seconds: float,
    page: bool = True,
    socket_path: str | None = None,
    pooler: PoolerConfig | None = None,
    hears: bool = False,
) -> str:
    """The report printed when the server is ready. chat: whether there is a chat template. guarded: whether an API key
    is required. seconds: time since the command started. page: whether the web page is served. socket_path: the Unix
    socket for `url`, if any. pooler: of a model that answers with numbers only. hears: whether it writes down speech,
    and nothing else."""
    lines = [f"Tessera {__version__} is serving {model}", ""]
    shown = url if socket_path is None else f"{url} over the Unix socket {socket_path}"
    rows = [*_rows(info, shown, seconds)]
    if page and socket_path is None:
        rows.append(("web page", f"{url}/"))
    lines += [f"  {label:<{_LABEL}} {text}" for label, text in rows]
    line = curl(url, model, chat=chat, guarded=guarded, socket_path=socket_path, pooler=pooler, hears=hears)
    return "\n".join([*lines, "", "Try it:", f"  {line}", ""])


def models_report(names: Sequence[str], url: str, socket_path: str | None) -> str:
    """The report of a server of several models."""
    shown = url if socket_path is None else f"{url} over the Unix socket {socket_path}"
    lines = [f"Tessera {__version__} is serving {len(names)} models, each loaded when a request names it", ""]
    rows = [("models", ", ".join(names)), ("URL", shown)]
    return "\n".join([*lines, *(f"  {label:<{_LABEL}} {text}" for label, text in rows), ""])


def curl(
    url: str,
    model: str,
    *,
    chat: bool,
    guarded: bool,
    socket_path: str | None = None,
    pooler: PoolerConfig | None = None,
    hears: bool = False,
) -> str:
    """A shell command for a first request. pooler: of a model that answers with numbers only. hears: as of report()."""
    route, fields = _first_request(chat=chat) if pooler is None else _first_numbers(pooler)
    body = {"model": model, **fields}
    key = ' -H "Authorization: Bearer $TESSERA_API_KEY"' if guarded else ""
    data = json.dumps(body).replace("'", "'\\''")
    through = "" if socket_path is None else f"--unix-socket {shlex.quote(socket_path)} "
    if hears:
        return f"curl {through}{url}/v1/audio/transcriptions{key} -F file=@speech.wav -F model={shlex.quote(model)}"
    return f"curl {through}{url}{route}{key} -H 'Content-Type: application/json' -d '{data}'"


def _first_request(*, chat: bool) -> tuple[str, dict[str, Any]]:
    """The route and the fields of a first request for text."""
    if chat:
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": _QUESTION}]}
    return "/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 16}


def _first_numbers(pooler: PoolerConfig) -> tuple[str, dict[str, Any]]:
    """The same for numbers."""
    if "embed" in pooler.tasks:
        return "/v1/embeddings", {"input": _QUESTION}
    if "classify" not in pooler.tasks:
        return "/pooling", {"input": _QUESTION}
    if len(pooler.labels) > 1:
        return "/classify", {"input": _QUESTION}
    return "/rerank", {"query": _QUESTION, "documents": ["Paris is the capital of France.", "Water boils."]}


def _rows(info: Started, url: str, seconds: float) -> Iterator[tuple[str, str]]:
    several = "" if info.num_devices == 1 else f", one of {info.num_devices}; memory is per device"
    yield "device", f"{info.device} (platform {info.platform}){several}"
    yield "dtype", info.dtype
    yield "weights", show_weights(info.weight_bytes, info.num_weights)
    if info.cache_bytes:  # a text encoder has none
        yield "KV cache", _room(info)
        yield "", f"in {show_bytes(info.cache_bytes)}; set with --kv-cache-memory-bytes"
    for name, took in info.phases.items():
        yield name.replace("_", " "), f"{took:.2f} s"
    yield "total", f"{seconds:.2f} s since the command started"
    for note in info.notes:
        yield "note", note
    if info.fallback_ops:
        yield "reference", f"{', '.join(info.fallback_ops)} (no kernel of the platform; --no-fallback refuses this)"
    yield "URL", url


def _room(info: Started) -> str:
    requests = info.num_cache_tokens / info.max_model_len
    count = f"{requests:,.0f}" if requests >= 10 else f"{requests:.1f}"
    return f"{info.num_cache_tokens:,} tokens = {count} requests of {info.max_model_len:,} tokens"


# ---- during start-up --------------------------------------------------------------


class ProgressLine:
    """An engine's on_progress: one updating line on a terminal, otherwise one line per phase. close() clears the line.
    Other output overwrites it."""

    def __init__(self, stream: LastingStream) -> None:
        self._stream = stream
        self._drawn = stream.isatty()
        self._phase = ""

    def __call__(self, progress: Progress) -> None:
        name = progress.phase.replace("_", " ")
        if self._drawn:
            share = progress.done / progress.total if progress.total else 0.0
            bar = "█" * round(share * _BAR)
            self._write(f"\r\x1b[K  {name:<12} {bar:<{_BAR}} {share:4.0%}\r")
        elif progress.phase != self._phase:
            self._write(f"{name} ...\n")
        self._phase = progress.phase

    def close(self) -> None:
        if self._drawn and self._phase:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields a function that shows how many are done."""
    line = ProgressLine(LastingStream(sys.stderr))
    line(Progress(what, 0, total))
    try:
        yield lambda done: line(Progress(what, done, total))
    finally:
        line.close()


class Announcer(Protocol):
    """Where `serve` writes messages that are not log records."""

    def warn(self, text: str) -> None: ...

    def progress(self, progress: Progress) -> None: ...

    def explain(self, table: str) -> None: ...

    def ready(self, report: str) -> None: ...

    def close(self) -> None:
        """Ends the start-up messages, whether it succeeded or not."""


class TerminalAnnouncer:
    """For people: the report on stdout, the rest on stderr."""

    def __init__(self) -> None:
        self.progress = ProgressLine(LastingStream(sys.stderr))

    def warn(self, text: str) -> None:
        LastingStream(sys.stderr).print(f"warning: {text}")

    def explain(self, table: str) -> None:
        LastingStream(sys.stdout).print(f"{table}\n")

    def ready(self, report: str) -> None:
        LastingStream(sys.stdout).print(report)

    def close(self) -> None:
        self.progress.close()


class LogAnnouncer:
    """For programs that parse all output: everything is a log record."""

    def __init__(self) -> None:
        self._phase = ""

    def warn(self, text: str) -> None:
        log.warning(text)

    def progress(self, progress: Progress) -> None:
        if progress.phase != self._phase:
            self._phase = progress.phase
            log.info("%s", progress.phase)

    def explain(self, table: str) -> None:
        for line in table.splitlines():
            log.info("chosen: %s", line)

    def ready(self, report: str) -> None:
        log.info("ready: %s", report)

    def close(self) -> None:
        """Does nothing: there is no progress line."""
