"""The flags of `tessera chat` and `tessera complete`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tessera.cli.client.remote import DEFAULT_URL
from tessera.cli.engine_flags import engine_flags, groups_of
from tessera.cli.flags import Flag, FlagTable
from tessera.cli.serve_flags import FLAGS

SAMPLING = (
    Flag("temperature", "sampling", "0 always takes the likeliest token.", "float", default="the model's, else 1",
         common=True),
    Flag("top_p", "sampling", "Draw from the likeliest tokens that together have this probability.", "float",
         default="the model's, else 1", common=True),
    Flag("max_tokens", "sampling", "Most tokens of an answer.", "int", default="{max_tokens}", common=True),
    Flag("seed", "sampling", "The same seed draws the same answer.", "int", default="another each time", common=True),
    Flag("stop", "sampling", "Text that ends an answer; give it again for several.", multiple=True, common=True),
)  # fmt: skip

_SERVER = (
    Flag("url", "client", f"Server to ask, such as {DEFAULT_URL}.", metavar="URL",
         default="none: the model runs here", common=True),
    Flag("api_key", "client", "Key for the server. Or set TESSERA_API_KEY or OPENAI_API_KEY.", metavar="KEY",
         common=True),
    Flag("model_name", "client", "Which of the server's models.", metavar="NAME", default="its first", common=True),
)  # fmt: skip

_LOGGING = (
    Flag("log_level", "logging", "Least severe messages to write.", "choice", default="warning",
         choices=("debug", "info", "warning", "error"), metavar="LEVEL", common=True),
)  # fmt: skip

_QUICK = Flag("quick", "talk", "{quick}", metavar="TEXT", common=True, aliases=("-q",))
_SYSTEM = Flag("system", "talk", "What the model is told before the conversation.", metavar="TEXT", common=True)

_ENGINE = engine_flags(without={"seed"})
_TEMPLATE = {"chat_template", "chat_template_content_format", "default_chat_template_kwargs"}
_FRONT = tuple(replace(flag, common=False) for flag in FLAGS if flag.name in _TEMPLATE)
LOCAL = frozenset(flag.name for flag in (*_ENGINE, *_FRONT))
"""Flags that mean something only for a model that runs here."""


def _table(
    name: str, summary: str, quick: str, *, max_tokens: str, own: tuple[Flag, ...], front: tuple[Flag, ...]
) -> FlagTable:
    local = tuple(flag for flag in (*_ENGINE, *front))
    sampling = tuple(replace(flag, default=flag.default.format(max_tokens=max_tokens)) for flag in SAMPLING)
    return FlagTable(
        usage=f"{name} [MODEL] [FLAGS]",
        summary=summary,
        flags=(replace(_QUICK, help=quick), *own, *_SERVER, *sampling, *local, *_LOGGING),
        groups={
            "talk": "What is asked",
            "client": "A server that answers",
            "sampling": "How tokens are chosen",
            **groups_of(local),
            "logging": "What is written",
        },
    )


CHAT = _table(
    "chat",
    "Talk with a model: MODEL, a folder or ORGANIZATION/NAME on the hub, or the bundled demo, started here; with "
    "--url, a server's. Without a terminal, or with -q, one question is answered.",
    "Ask this one question, and end with its answer; without it a question is read from a pipe.",
    max_tokens="what the context has room for",
    own=(_SYSTEM,),
    front=_FRONT,
)  # fmt: skip

COMPLETE = _table(
    "complete",
    "Let a model continue texts: MODEL, a folder or ORGANIZATION/NAME on the hub, or the bundled demo, started here; "
    "with --url, a server's. Without a terminal, or with -q, one text is continued.",
    "Continue this one text, and end; without it a text is read from a pipe.",
    max_tokens="16",
    own=(),
    front=(),
)


def sampling_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """What was said of sampling, as a request has it."""
    given = {flag.name: values[flag.name] for flag in SAMPLING}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in given.items()
        if value not in (None, ())
    }
