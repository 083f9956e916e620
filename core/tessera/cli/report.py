"""What `serve` prints once it serves: what runs where, how much room there is, how to ask it something."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from tessera._version import __version__
from tessera.sizes import show_bytes, show_weights

_LABEL = 11


class Started(Protocol):
    """What is needed of tessera.engine's EngineInfo."""

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


def report(
    info: Started, *, model: str, url: str, chat: bool, guarded: bool, seconds: float, socket_path: str | None = None
) -> str:
    """The whole report. chat: there is a chat template. guarded: an API key is asked for. seconds: of it all.
    socket_path: of the Unix socket that `url` is reached through."""
    lines = [f"Tessera {__version__} serves {model}", ""]
    shown = url if socket_path is None else f"{url} through the Unix socket {socket_path}"
    lines += [f"  {label:<{_LABEL}} {text}" for label, text in _rows(info, shown, seconds)]
    line = curl(url, model, chat=chat, guarded=guarded, socket_path=socket_path)
    return "\n".join([*lines, "", "Try it:", f"  {line}", ""])


def curl(url: str, model: str, *, chat: bool, guarded: bool, socket_path: str | None = None) -> str:
    """A line for a shell that gets a first answer."""
    body: dict[str, Any] = {"model": model}
    if chat:
        route = "chat/completions"
        body["messages"] = [{"role": "user", "content": "What is the capital of France?"}]
    else:
        route = "completions"
        body |= {"prompt": [1, 2, 3], "max_tokens": 16}
    key = ' -H "Authorization: Bearer $TESSERA_API_KEY"' if guarded else ""
    data = json.dumps(body).replace("'", "'\\''")
    through = "" if socket_path is None else f"--unix-socket {shlex.quote(socket_path)} "
    return f"curl {through}{url}/v1/{route}{key} -H 'Content-Type: application/json' -d '{data}'"


def _rows(info: Started, url: str, seconds: float) -> Iterator[tuple[str, str]]:
    yield "device", f"{info.device} (platform {info.platform})"
    yield "dtype", info.dtype
    yield "weights", show_weights(info.weight_bytes, info.num_weights)
    yield "KV room", _room(info)
    yield "", f"in {show_bytes(info.cache_bytes)}; --kv-cache-memory-bytes changes it"
    for name, took in info.phases.items():
        yield name.replace("_", " "), f"{took:.2f} s"
    yield "in all", f"{seconds:.2f} s since the command began"
    for note in info.notes:
        yield "note", note
    if info.fallback_ops:
        yield "reference", f"{', '.join(info.fallback_ops)} (not the platform's own; --no-fallback refuses them)"
    yield "URL", url


def _room(info: Started) -> str:
    requests = info.num_cache_tokens / info.max_model_len
    count = f"{requests:,.0f}" if requests >= 10 else f"{requests:.1f}"
    return f"{info.num_cache_tokens:,} tokens = {count} requests of {info.max_model_len:,} tokens"
