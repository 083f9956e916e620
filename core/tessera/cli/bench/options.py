"""Options that several benchmarks have, and a run by them. Flags have vLLM's names where it has the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tessera.cli.bench.results import check_writable, write
from tessera.cli.flag_command import MODEL_FORMS, FlagTable
from tessera.config import EngineConfig, build_config
from tessera.config.engine import ENGINE_FLAGS as ALL_ENGINE_FLAGS
from tessera.config.flags import Flag, flag, flags_of, given_values, record_of
from tessera.log import TEXT, set_up_logging

if TYPE_CHECKING:
    from tessera.engine.messages import EngineInfo

MAX_COUNT = 10**6


@dataclass(frozen=True)
class RunOptions:
    """Options of every benchmark."""

    seed: int = flag(0, "Seed of prompts, lengths, arrivals and dummy weights.", low=0)
    json: str | None = flag(
        None, "Write the result as JSON, with all settings, versions and the machine.", group="result", metavar="FILE",
        aliases=("--output-json",),
    )  # fmt: skip
    log_level: str = flag(
        "warning", "Minimum severity of log messages.", group="result", metavar="LEVEL",
        choices=("debug", "info", "warning", "error"),
    )  # fmt: skip


@dataclass(frozen=True)
class RequestOptions:
    """Options of benchmarks with many requests."""

    num_prompts: int = flag(100, "Prompts to measure.", low=1, high=MAX_COUNT)
    num_warmups: int = flag(1, "Requests to run before measuring.", low=0, high=MAX_COUNT)
    save_detailed: bool = flag(False, "Add the times and lengths of each request to the JSON.", group="result")


@dataclass(frozen=True)
class VocabularyOptions:
    """What prompts are drawn from."""

    tokenizer: str | None = flag(
        None, "Draw prompts from the ordinary tokens of this tokenizer, a folder or Hub repository, instead of "
        "--vocab-size.", metavar="MODEL",
    )  # fmt: skip
    vocab_size: int | None = flag(
        None, "Draw prompts from token ids below this.", low=1, high=MAX_COUNT, shown_default="1000"
    )


@dataclass(frozen=True)
class ArrivalOptions:
    """When requests are sent."""

    request_rate: float = flag(
        math.inf, "Requests sent per second, as a Poisson process; inf sends all at once.", group="arrival", above=0,
        metavar="RATE",
    )  # fmt: skip
    burstiness: float = flag(
        1.0, "1 is a Poisson process; lower is burstier, higher is more even.", group="arrival", above=0, below=math.inf
    )
    max_concurrency: int | None = flag(
        None, "Maximum requests in flight; others are sent as these finish.", group="arrival", low=1, high=MAX_COUNT,
        shown_default="no limit",
    )  # fmt: skip
    timeout: float = flag(
        600.0,
        "Time after which a request counts as failed.",
        group="arrival",
        above=0,
        unit="seconds",
        metavar="SECONDS",
    )


def work_flags(*records: type) -> tuple[Flag, ...]:
    return tuple(replace(one, common=True) for record in records for one in flags_of(record, "work"))


ENGINE_FLAGS = tuple(
    replace(one, common=False) for one in ALL_ENGINE_FLAGS if one.name not in ("seed", "served_model_name")
)
"""Those of benchmarks that start an engine: --seed is the benchmark's own, and requests do not name the model."""
_ENGINE_RECORDS = frozenset(one.record for one in ALL_ENGINE_FLAGS)
MODEL = f"MODEL is {MODEL_FORMS}; without it, the bundled demo runs."
"""For summaries."""
WORK_GROUPS: Mapping[str, str] = {"work": "Workload", "result": "Output"}
ARRIVAL_GROUPS: Mapping[str, str] = {"arrival": "Arrival of requests"}


@dataclass(frozen=True)
class BenchRun:
    """The validated flags of a run. values: those that were given."""

    table: FlagTable
    values: Mapping[str, Any]

    @classmethod
    def from_flags(cls, table: FlagTable, flags: Mapping[str, Any]) -> BenchRun:
        """Validates the flags and sets up logging. Raises ConfigError."""
        # build_config validates the engine's flags.
        own = [one for one in table.flags if one.record not in _ENGINE_RECORDS]
        run = cls(table, given_values(own, flags, as_options=True))
        options = run.record(RunOptions)
        set_up_logging(options.log_level.upper(), TEXT)
        check_writable(options.json)
        return run

    def record(self, record: type[Any]) -> Any:
        return record_of(record, self.table.flags, self.values)

    def config(self, model: str | None, flags: Mapping[str, Any], **fixed: Any) -> EngineConfig:
        """Raises ConfigError, ModelError or PlatformError."""
        return build_config(model, **{**self.engine_values(flags), **fixed})

    def engine_values(self, flags: Mapping[str, Any]) -> dict[str, Any]:
        """What build_config takes of the flags."""
        return {**{one.name: flags[one.name] for one in ENGINE_FLAGS}, "seed": self.record(RunOptions).seed}

    def write(self, benchmark: str, flags: Mapping[str, Any], figures: Mapping[str, Any]) -> None:
        """Writes the figures, and every flag that was given or has a default of this command. Raises ConfigError."""
        settings = {one.name: one.default for one in self.table.flags if one.record not in _ENGINE_RECORDS}
        settings |= {name: value for name, value in flags.items() if value not in (None, ())}
        write(self.record(RunOptions).json, benchmark, settings, figures)


def engine_facts(model: str, info: EngineInfo) -> dict[str, Any]:
    """The facts about the benchmark's own engine that go into a result."""
    return {
        "model": model,
        "platform": info.platform,
        "device": info.device,
        "dtype": info.dtype,
        "fallback_ops": list(info.fallback_ops),
    }
