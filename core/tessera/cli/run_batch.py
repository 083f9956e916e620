"""`tessera run-batch`: runs a file of requests on an engine of its own. The flags have vLLM's names."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tessera.cli.event_loop import run_until_end
from tessera.cli.flag_command import MODEL_FORMS, FlagCommand, FlagTable, ignored, model_argument
from tessera.cli.model_text import TEMPLATE_FLAGS, TemplateOptions, generation_defaults
from tessera.config import EngineConfig, Supervision, build_config
from tessera.config.engine import ENGINE_FLAGS, GROUPS
from tessera.config.flags import flag, flags_of, given_values, record_of
from tessera.errors import ConfigError, OverloadedError, RequestError
from tessera.log import TEXT, LastingStream, set_up_logging
from tessera.server.settings import SERVER_FLAGS, Limits, ServerSettings

if TYPE_CHECKING:
    from tessera.config.other_names import OtherName
    from tessera.server.batches.input_file import InputFile
    from tessera.server.batches.protocol import ResultLine
    from tessera.server.batches.results import BatchResults

MAX_LINES = 10**7
FAILED = 1
"""The exit code if requests failed."""
_LINE_SECONDS, _LOG_SECONDS = 0.2, 10.0
"""How often progress is shown: on a terminal, and elsewhere."""


@dataclass(frozen=True)
class FileOptions:
    """The files of a run."""

    input_file: str | None = flag(
        None, "Requests: a line of JSON each, as OpenAI's batches have them.", metavar="FILE", common=True,
        aliases=("-i",),
    )  # fmt: skip
    output_file: str | None = flag(
        None, "Results: a line of JSON each. Requests that have one are skipped.", metavar="FILE", common=True,
        aliases=("-o",),
    )  # fmt: skip
    log_level: str = flag(
        "warning", "Minimum severity of log messages.", group="logging", metavar="LEVEL", common=True,
        choices=("debug", "info", "warning", "error"),
    )  # fmt: skip


_FILE_FLAGS = flags_of(FileOptions, "files")
_NAMES = "served_model_name"
_ANSWERS = ("tool_call_parser", "reasoning_parser", "max_prompts", "max_inputs", "max_n", "max_choices")
_ANSWER_FLAGS = tuple(replace(one, group="answers", common=False) for one in SERVER_FLAGS if one.name in _ANSWERS)
_MODEL_FLAGS = tuple(replace(one, common=one.name in ("served_model_name", "max_model_len", "max_num_seqs"))
                     for one in (*ENGINE_FLAGS, *TEMPLATE_FLAGS))  # fmt: skip


def _other(option: str) -> OtherName | None:
    from tessera.config.other_names import OtherName, other_flag

    if option == "--model":
        line = "--model: name the model after the flags: tessera run-batch -i FILE -o FILE MODEL."
        return OtherName(values=(), refusal=line)
    return other_flag(option)


TABLE = FlagTable(
    usage="run-batch -i FILE -o FILE [MODEL] [FLAGS]",
    summary=f"Run a file of requests and write their answers. MODEL is {MODEL_FORMS}; without it, the bundled demo "
    "runs. If the output file has results already, only the rest is run. The exit code is 1 if a request failed.",
    flags=(*_FILE_FLAGS, *_MODEL_FLAGS, *_ANSWER_FLAGS),
    groups={"files": "Files", **GROUPS, "answers": "Answers", "logging": "Logging"},
    other=_other,
)


@click.command(name="run-batch", cls=FlagCommand, table=TABLE, params=[model_argument()])
def run_batch(model: str | None, **flags: Any) -> int:
    """Run a file of requests and write their answers."""
    for line in ignored(click.get_current_context()):
        click.echo(f"Warning: {line}", err=True)
    options = record_of(FileOptions, _FILE_FLAGS, given_values(_FILE_FLAGS, flags, as_options=True))
    set_up_logging(options.log_level.upper(), TEXT)
    if options.input_file is None or options.output_file is None:
        raise ConfigError("Name both files: tessera run-batch -i FILE -o FILE MODEL.")
    settings, template = _settings(flags)
    source, results = _files(options.input_file, options.output_file, settings.limits)
    config = build_config(model, **{one.name: flags[one.name] for one in ENGINE_FLAGS if one.name != _NAMES},
                          served_model_name=next(iter(flags[_NAMES]), None))  # fmt: skip
    sampling, answers = generation_defaults(flags, config)
    settings = replace(
        settings,
        default_sampling=sampling,
        answers=answers,
        served_model_names=flags[_NAMES] or (config.model.served_name,),
    )
    return run_until_end(lambda: _run(config, settings, template, source, results))


def _settings(flags: Mapping[str, Any]) -> tuple[ServerSettings, TemplateOptions]:
    """What the flags say of requests and answers. Raises ConfigError."""
    values = given_values(_ANSWER_FLAGS, flags, as_options=True)
    template = record_of(TemplateOptions, TEMPLATE_FLAGS, given_values(TEMPLATE_FLAGS, flags, as_options=True))
    limits = record_of(Limits, _ANSWER_FLAGS, values, batch_lines=MAX_LINES)
    made = record_of(
        ServerSettings, _ANSWER_FLAGS, values, limits=limits, chat_template_kwargs=template.kwargs or {}
    )  # fmt: skip
    return made, template


def _files(input_file: str, output_file: str, limits: Limits) -> tuple[InputFile, BatchResults]:
    """The requests, and the results that there are. Raises ConfigError, RequestError."""
    from tessera.server.batches.input_file import InputFile
    from tessera.server.batches.protocol import ENDPOINTS
    from tessera.server.batches.results import BatchResults

    asked, answered = Path(input_file).expanduser(), Path(output_file).expanduser()
    if asked.resolve() == answered.resolve():
        raise ConfigError("--input-file and --output-file are the same file; name another one.")
    try:
        source, errors = InputFile.read(asked, ENDPOINTS, limits)
    except OSError as error:
        raise ConfigError(f"--input-file '{input_file}' cannot be read: {error.strerror}.") from error
    if errors:
        first, more = errors[0], f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        place = f"Line {first.line} of " if first.line is not None else ""
        raise RequestError(f"{place}'{input_file}' is wrong{more}: {first.message}", param=first.param)
    try:
        results = BatchResults(answered, answered)
        answered.open("ab").close()
    except OSError as error:
        raise ConfigError(f"--output-file '{output_file}' cannot be written: {error.strerror}.") from error
    return source, results


async def _run(
    config: EngineConfig, settings: ServerSettings, template: TemplateOptions, source: InputFile, results: BatchResults
) -> int:
    """The exit code. Raises TesseraError."""
    from tessera.cli.client.local import running_engine
    from tessera.server.batches.endpoints import Endpoints, endpoint_apps
    from tessera.server.batches.runner import Runner, WholeRoom
    from tessera.server.context import ServerContext
    from tessera.server.disk import DiskFullError
    from tessera.server.openai import chat, completions
    from tessera.server.openai.stored_chats import StoredChats
    from tessera.server.pooling import routes as pooling
    from tessera.server.responses import routes as responses
    from tessera.server.store import Store

    progress = BatchProgress(source, results, LastingStream(sys.stderr))
    if progress.remaining:
        store = Store("", settings.response_store_bytes)
        try:
            async with running_engine(config, template, Supervision()) as engine:
                context = ServerContext(engine, settings)
                answering = chat.route(context, StoredChats(context, store).answer)
                routes = [answering, *completions.routes(context), *responses.routes(context, store)]
                routes += pooling.routes(context)
                progress.begin()

                async def keep(result: ResultLine) -> None:
                    try:
                        await asyncio.to_thread(results.add, result)
                    except DiskFullError as error:
                        what = "The disk of --output-file is full; free some of it, and run the same command again."
                        raise OverloadedError(what) from error
                    progress.count()

                room = WholeRoom(engine, context.counts)
                await Runner(Endpoints(endpoint_apps(routes)), room, results.done, keep).run(source, "")
        except asyncio.CancelledError:
            progress.say("stopped; run the same command again to go on")
            raise
        finally:
            results.close()
            store.close()
    progress.summary()
    return FAILED if results.failed else 0


class BatchProgress:
    """Requests done, tokens per second, and the time that is left. One updating line on a terminal, otherwise a line
    every ten seconds."""

    def __init__(self, source: InputFile, results: BatchResults, stream: LastingStream) -> None:
        self._total = len(source.entries)
        self.remaining = sum(entry.custom_id not in results.done for entry in source.entries)
        self._results = results
        self._stream = stream
        self._drawn = stream.isatty()
        self._done = 0
        self._tokens = results.usage.output_tokens
        if skipped := self._total - self.remaining:
            self.say(f"{skipped} of {self._total} requests have results already and are skipped")
        self.begin()

    def begin(self) -> None:
        """The time counts from here on."""
        self._began = self._reported_at = time.monotonic()

    def count(self) -> None:
        """One more request is done."""
        self._done += 1
        now = time.monotonic()
        if now - self._reported_at >= (_LINE_SECONDS if self._drawn else _LOG_SECONDS):
            self._reported_at = now
            text = f"{self._total - self.remaining + self._done} of {self._total} requests, {self._speed()}"
            seconds = (now - self._began) * (self.remaining - self._done) / self._done
            text += f", {_duration(seconds)} left"
            self._stream.write(f"\r\x1b[K  {text}\r" if self._drawn else f"{text}\n")
            self._stream.flush()

    def _speed(self) -> str:
        tokens = self._results.usage.output_tokens - self._tokens
        return f"{tokens / max(time.monotonic() - self._began, 1e-3):,.0f} tokens/s"

    def say(self, line: str) -> None:
        """Prints a line in place of the one that is updated."""
        self._stream.print(f"\r\x1b[K{line}" if self._drawn and self._done else line)

    def summary(self) -> None:
        speed = f" at {self._speed()}" if self._done else ""
        failed = self._results.failed
        self.say(f"{self._total} requests: {self._total - failed} answered, {failed} failed{speed}")


def _duration(seconds: float) -> str:
    """h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
