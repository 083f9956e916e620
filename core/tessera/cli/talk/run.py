"""From the flags of chat and complete to a session: who answers, and what ends the program."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from tessera.cli.client import Client
from tessera.cli.client.local import Habits, start
from tessera.cli.client.remote import connect
from tessera.cli.engine_flags import engine_config
from tessera.cli.model_text import AskedTemplate
from tessera.cli.serve_settings import generation_defaults
from tessera.cli.talk.background_loop import BackgroundLoop
from tessera.cli.talk.dialogue import Dialogue
from tessera.cli.talk.flags import LOCAL
from tessera.cli.talk.session import Session
from tessera.cli.talk.terminal import Terminal
from tessera.config import EngineConfig
from tessera.config.environment import read_environment
from tessera.errors import ConfigError, RequestError
from tessera.log import TEXT, set_up_logging


def talk(model: str | None, values: Mapping[str, Any], dialogue: Callable[[Client], Dialogue]) -> int:
    """dialogue: made when the client is there. Raises what went wrong at the start, or with a single question."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    set_up_logging((values["log_level"] or "warning").upper(), TEXT)
    terminal = Terminal.of_process()
    question = values["quick"]
    if question is None and not terminal.interactive:
        question = terminal.everything()
    if question is not None and not question.strip():
        raise RequestError("Nothing was asked: give -q TEXT, or a text by a pipe.")
    client = answering(model, values)
    with BackgroundLoop() as loop, loop.entered(client) as answers:
        session = Session(loop, dialogue(answers), terminal)
        if question is None:
            session.until_end()
        else:
            session.once(question.encode("utf-8", "replace").decode())
    return 0


def answering(model: str | None, values: Mapping[str, Any]) -> AbstractAsyncContextManager[Client]:
    """The server of --url, else an engine of our own. Raises ConfigError, ModelError, PlatformError."""
    if values["url"] is None:
        for name in ("api_key", "model_name"):
            if values[name] is not None:
                raise ConfigError(f"{_option(name)} is for a server; give --url as well, or leave it out.")
        config = engine_config(model, values, seed=None)  # --seed is that of an answer here
        return start(config, habits_of(values, config))
    if model is not None:
        raise ConfigError("Give a MODEL to run here or the --url of a server, not both; --model-name chooses there.")
    for name in sorted(LOCAL):
        if values.get(name) not in (None, ()):
            raise ConfigError(f"{_option(name)} is for a model that runs here; leave it out, or --url.")
    environment = read_environment()
    key = values["api_key"] or environment.api_key or environment.openai_api_key
    return connect(values["url"], api_key=key, model_name=values["model_name"])


def habits_of(values: Mapping[str, Any], config: EngineConfig) -> Habits:
    """As a server of the same flags has them. Raises ConfigError, ModelError."""
    sampling, limits = generation_defaults(values, config)
    known = [limit for limit in (limits.default, limits.most) if limit is not None]
    asked = AskedTemplate.of(values) if "chat_template" in values else AskedTemplate()
    return Habits(asked, values.get("default_chat_template_kwargs") or {}, sampling, min(known, default=None))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _leave(number: int, _frame: object) -> None:
    """The engine's process and its sockets are gone before this one is."""
    raise SystemExit(0)
