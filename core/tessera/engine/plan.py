"""How much memory a model would need and how many requests would fit, computed from its config.json without loading it.
This runs in a process of its own, which opens the device and then ends."""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence

import msgspec

from tessera.config import EngineConfig
from tessera.config.environment import for_children
from tessera.engine.startup import Loader, largest, load
from tessera.engine.summary import ModelSummary, summary_fields
from tessera.errors import EngineDeadError, MemoryBudgetError, TesseraError
from tessera.kvcache.groups import solve
from tessera.platform.loaded_model import LoadedModel, merge_stages
from tessera.platform.runner import CacheGroup, CachePlan, Progress
from tessera.plugins import load_path
from tessera.processes.error_message import ErrorMessage

LENGTHS = (2048, 8192, 32768)
"""Request lengths in tokens, besides the model's context length, for which a plan says how many requests fit."""

_LOADER = "tessera.executor.in_process:MetaLoader"
_UNBOUNDED = 1 << 60  # bytes


class Plan(ModelSummary, frozen=True, kw_only=True):
    """The memory plan of one device: the first one of the first worker."""

    # How many bytes this engine may use in total; 0 if unknown.
    granted_bytes: int
    workspace_bytes: int
    # The cache groups; without blocks if there is a problem.
    groups: list[CacheGroup]
    # How many requests fit, by their length in tokens.
    requests: dict[int, int]
    # Why an engine would not start with this configuration; then nothing fits.
    problem: str | None = None


class _Answer(msgspec.Struct):
    """The result of the planning process; exactly one of the two is set."""

    plan: Plan | None = None
    failure: ErrorMessage | None = None


def plan(config: EngineConfig) -> Plan:
    """Plans in a process of its own. Raises ConfigError, ModelError, PlatformError, MemoryBudgetError, and
    EngineDeadError if the process crashes."""
    command = [sys.executable, "-P", "-m", "tessera.engine.plan"]
    done = subprocess.run(
        command, input=msgspec.json.encode(config), stdout=subprocess.PIPE, env=for_children(), check=False
    )
    try:
        answer = msgspec.json.decode(done.stdout, type=_Answer)
    except msgspec.MsgspecError as error:
        raise EngineDeadError(
            f"The planning process exited with code {done.returncode}; the lines above say why."
        ) from error
    if answer.failure is not None:
        raise answer.failure.error()
    assert answer.plan is not None
    return answer.plan


def plan_here(config: EngineConfig) -> Plan:
    """Does the same as plan() in this process, which then has the device's libraries loaded."""
    make: Callable[[EngineConfig], Loader] = load_path(_LOADER)
    loader = make(config)
    config, stages, notes = load(config, loader, _silent)
    loaded = merge_stages(stages)
    cache, problem = _solved(config, stages)
    longest = config.model.max_model_len
    lengths = [longest, *(length for length in LENGTHS if length < longest)]
    return Plan(
        **summary_fields(config, loaded, loader.platform, notes),
        granted_bytes=loaded.granted_bytes,
        workspace_bytes=loaded.workspace_bytes,
        cache_bytes=loaded.cache_bytes if problem else cache.nbytes,
        num_cache_tokens=0 if problem else cache.num_tokens,
        groups=[group for group in cache.groups if group.layers],
        requests={} if problem else {length: cache.num_requests(length) for length in lengths},
        problem=problem,
    )


def _solved(config: EngineConfig, stages: Sequence[LoadedModel]) -> tuple[CachePlan, str | None]:
    """The plan of the pipeline stage with the largest cache, and None. If the cache is too small: a plan whose groups
    have no blocks, and the reason."""
    rows = config.scheduler.max_num_seqs
    try:
        return largest(solve(stages, config, rows)), None
    except MemoryBudgetError as error:
        unbounded = [dataclasses.replace(stage, cache_bytes=_UNBOUNDED) for stage in stages]
        cache = largest(solve(unbounded, config, rows))
        groups = tuple(dataclasses.replace(group, num_blocks=0) for group in cache.groups)
        return dataclasses.replace(cache, groups=groups), error.message


def _silent(progress: Progress) -> None:
    """Discards the progress; planning takes no time worth reporting."""


def main() -> None:
    """Reads the configuration from standard input and writes an _Answer to standard output. Anything that a library
    prints goes to standard error."""
    answer_to = os.dup(1)
    os.dup2(2, 1)
    logging.basicConfig(level=logging.WARNING)
    try:
        answer = _Answer(plan_here(msgspec.json.decode(sys.stdin.buffer.read(), type=EngineConfig)))
    except TesseraError as error:
        answer = _Answer(failure=ErrorMessage.from_error(error))
    with os.fdopen(answer_to, "wb") as file:
        file.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()
