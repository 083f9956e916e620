"""`tessera chat` and `tessera complete`: their flags, and the choice between a server and an engine of their own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

import click

from tessera.cli.client import Client
from tessera.cli.client.local import RequestDefaults, start
from tessera.cli.client.remote import connect
from tessera.cli.client.source import SourceOptions, check_source, key_of
from tessera.cli.flag_command import MODEL_FORMS, FlagCommand, FlagTable, model_argument
from tessera.cli.model_text import TEMPLATE_FLAGS, TemplateOptions, generation_defaults
from tessera.cli.talk.background_loop import BackgroundLoop
from tessera.cli.talk.images import image_url
from tessera.cli.talk.session import ChatSession, Completions, Dialogue, Session, Terminal
from tessera.config import EngineConfig, build_config
from tessera.config.engine import ENGINE_FLAGS, GROUPS
from tessera.config.flags import Flag, flag, flags_of, given_values, record_of
from tessera.errors import RequestError
from tessera.log import TEXT, set_up_logging


@dataclass(frozen=True)
class TalkOptions(SourceOptions):
    """Options of both commands."""

    quick: str | None = flag(None, "", metavar="TEXT", common=True, aliases=("-q",))
    log_level: str = flag(
        "warning", "Minimum severity of log messages.", group="logging", metavar="LEVEL", common=True,
        choices=("debug", "info", "warning", "error"),
    )  # fmt: skip


@dataclass(frozen=True)
class ChatOptions:
    system: str | None = flag(None, "System prompt.", metavar="TEXT", common=True)
    image: tuple[str, ...] = flag(
        (), "Image to show with the first question; repeat for several.", metavar="FILE", multiple=True, common=True
    )


@dataclass(frozen=True)
class SamplingOptions:
    """Named like a request's fields; None uses the model's default."""

    temperature: float | None = flag(
        None,
        "Sampling temperature; 0 always picks the likeliest token.",
        shown_default="the model's, else 1",
        common=True,
    )
    top_p: float | None = flag(
        None, "Sample from the likeliest tokens with this total probability.", shown_default="the model's, else 1",
        common=True,
    )  # fmt: skip
    max_tokens: int | None = flag(None, "Maximum length of an answer in tokens.", common=True)
    seed: int | None = flag(
        None, "Random seed; the same seed gives the same answer.", shown_default="a new one each time", common=True
    )
    stop: tuple[str, ...] = flag((), "Text that ends an answer; repeat for several.", multiple=True, common=True)


SAMPLING_FLAGS = flags_of(SamplingOptions, "sampling")
# Here, --seed applies to answers, requests do not name the model, and -q is a question.
_ENGINE_FLAGS = tuple(
    replace(one, common=False, aliases=tuple(name for name in one.aliases if name != "-q"))
    for one in ENGINE_FLAGS
    if one.name not in ("seed", "served_model_name")
)
_TEMPLATE_FLAGS = tuple(replace(one, common=False) for one in TEMPLATE_FLAGS)
_LOCAL = frozenset(one.name for one in (*_ENGINE_FLAGS, *_TEMPLATE_FLAGS))
"""Flags that only apply to a model that runs here."""


def _table(name: str, summary: str, quick: str, max_tokens: str, *extra: Flag) -> FlagTable:
    """extra: the command's additional flags."""
    said = {"quick": {"help": quick}, "max_tokens": {"shown_default": max_tokens}}
    flags = (*flags_of(TalkOptions, "talk"), *extra, *SAMPLING_FLAGS, *_ENGINE_FLAGS)
    return FlagTable(
        usage=f"{name} [MODEL] [FLAGS]",
        summary=summary,
        flags=tuple(replace(one, **said.get(one.name, {})) for one in flags),  # type: ignore[arg-type]  # they are fields
        groups={
            "talk": "Input",
            "client": "Server",
            "sampling": "Sampling",
            **GROUPS,
            "logging": "Logging",
        },
    )


_WHERE = f"MODEL is {MODEL_FORMS}; without it, the bundled demo runs. With --url, a "
CHAT = _table(
    "chat",
    f"Chat with a model. {_WHERE}server answers instead. With -q or no terminal, it answers one question.",
    "Answer this question and exit. Without a terminal, the question is read from stdin.",
    "fills the context",
    *flags_of(ChatOptions, "talk"),
    *_TEMPLATE_FLAGS,
)
COMPLETE = _table(
    "complete",
    f"Complete text with a model. {_WHERE}server answers instead. With -q or no terminal, it completes one text.",
    "Complete this text and exit. Without a terminal, the text is read from stdin.",
    "16",
)


@click.command(cls=FlagCommand, table=CHAT, params=[model_argument()])
def chat(model: str | None, **values: Any) -> int:
    """Chat with a model."""
    images = [image_url(path) for path in values["image"]]
    return talk(CHAT, model, values, lambda client: ChatSession(client, sampling_of(values), values["system"], images))


@click.command(cls=FlagCommand, table=COMPLETE, params=[model_argument()])
def complete(model: str | None, **values: Any) -> int:
    """Complete text with a model."""
    return talk(COMPLETE, model, values, lambda client: Completions(client, sampling_of(values)))


def sampling_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling flags that were given, as fields of a request."""
    given = given_values(SAMPLING_FLAGS, values, as_options=True)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}


def talk(table: FlagTable, model: str | None, values: Mapping[str, Any], dialogue: Callable[[Client], Dialogue]) -> int:
    """Runs one question or an interactive session. dialogue: called when the client is ready. Raises errors of the
    start, and of a single question."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    options = record_of(TalkOptions, table.flags, given_values(table.flags, values, as_options=True))
    set_up_logging(options.log_level.upper(), TEXT)
    terminal = Terminal.of_process()
    question = options.quick
    if question is None and not terminal.interactive:
        question = terminal.everything()
    if question is not None and not question.strip():
        raise RequestError("There is no input: give -q TEXT, or pipe a text to stdin.")
    client = answering(model, values, options)
    with BackgroundLoop() as loop, loop.entered(client) as answers:
        session = Session(loop, dialogue(answers), terminal)
        if question is None:
            session.until_end()
        else:
            session.once(question.encode("utf-8", "replace").decode())
    return 0


def answering(
    model: str | None, values: Mapping[str, Any], options: TalkOptions
) -> AbstractAsyncContextManager[Client]:
    """The server of --url, otherwise an engine of our own. Raises ConfigError, ModelError or PlatformError."""
    check_source(model, values, _LOCAL)
    if options.url is None:
        config = build_config(model, **{one.name: values[one.name] for one in _ENGINE_FLAGS})
        return start(config, request_defaults(values, config))
    return connect(options.url, api_key=key_of(options.api_key), model_name=options.model_name)


def request_defaults(values: Mapping[str, Any], config: EngineConfig) -> RequestDefaults:
    """The defaults of a server with the same flags. Raises ConfigError or ModelError."""
    sampling, limits = generation_defaults(values, config)
    known = [limit for limit in (limits.default, limits.maximum) if limit is not None]
    template = record_of(TemplateOptions, TEMPLATE_FLAGS, given_values(TEMPLATE_FLAGS, values, as_options=True))
    return RequestDefaults(template, sampling, min(known, default=None))


def _leave(number: int, _frame: object) -> None:
    """Exits through the context managers, so that the engine process and its sockets are closed first."""
    raise SystemExit(0)
