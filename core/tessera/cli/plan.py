"""`tessera plan MODEL`: shows memory use and how many requests fit on each installed platform, without loading
weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from tessera.cli.flag_command import MODEL_FORMS, FlagCommand, FlagTable, model_argument
from tessera.cli.platforms import choices_table
from tessera.config import EngineConfig, build_config
from tessera.config.engine import ENGINE_FLAGS
from tessera.config.flags import flag, flags_of
from tessera.config.model_folder import is_gguf
from tessera.engine.plan import Plan, plan
from tessera.errors import MemoryBudgetError, TesseraError
from tessera.platform.runner import CacheGroup
from tessera.plugins.discovery import discover
from tessera.plugins.selection import ask, selected
from tessera.sizes import show_bytes, show_weights


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    explain: bool = flag(False, "Show which kernel or backend does each part of the model, and why.", common=True)
    json: bool = flag(False, "Print a JSON list, one object per platform.", common=True)


_PLANNED = tuple(
    dataclasses.replace(one, group="plan", common=True)
    if one.name != "platform"
    else dataclasses.replace(one, group="plan", common=True, shown_default="all that can run here")
    for one in ENGINE_FLAGS
    if one.plan
)

TABLE = FlagTable(
    usage="plan [MODEL] [FLAGS]",
    summary="Show the memory use of MODEL and how many requests fit, on each installed platform, without loading "
    f"weights. MODEL is {MODEL_FORMS}; without it, the bundled demo.",
    flags=(*_PLANNED, *flags_of(PlanOptions, "result")),
    groups={"plan": "Configuration", "result": "Output"},
)


@dataclasses.dataclass(frozen=True)
class PlanColumn:
    """One platform's plan, or why there is none."""

    name: str
    plan: Plan | None = None
    error: TesseraError | None = None

    @property
    def lines(self) -> list[str]:
        """What was chosen and what is wrong, in words."""
        if self.plan is None:
            return [] if self.error is None else [self.error.message]
        return [*self.plan.notes, *([self.plan.problem] if self.plan.problem else [])]

    @property
    def exit_code(self) -> int:
        """The exit code that `serve` would have."""
        if self.error is not None:
            return self.error.exit_code
        assert self.plan is not None
        return MemoryBudgetError.exit_code if self.plan.problem else 0


@click.command(cls=FlagCommand, table=TABLE, params=[model_argument()])
def plan_command(model: str | None, **flags: Any) -> int:
    """Show a model's memory use and how many requests fit."""
    as_json, explain = flags.pop("json"), flags.pop("explain")
    places = _platforms(flags.pop("platform"))
    config = build_config(
        model=model, platform=next(iter(places.values()))[0], load_format="dummy", skip_tokenizer_init=True, **flags
    )
    if is_gguf(Path(config.model.path)):  # which is there whole, and says how each weight is stored
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, load_format="auto"))
    columns = [
        _column(name, dataclasses.replace(config, platform=path, platform_levels=levels))
        for name, (path, levels) in places.items()
    ]
    if as_json:
        rows = [_as_json(column) for column in columns]
        click.echo(msgspec.json.format(msgspec.json.encode(rows)).decode())
    else:
        click.echo("\n".join((*_lines(config, columns), *(_explained(columns) if explain else ()))))
    codes = [column.exit_code for column in columns]
    return 0 if 0 in codes else codes[0]


def _platforms(name: str | None) -> dict[str, tuple[str, dict[str, int]]]:
    """Dotted paths and API levels by name, for the platform that the user named, otherwise for all that can run here.
    Raises PlatformError."""
    if name is not None and ":" in name:
        return {name: (name, {})}
    found = [one for one in discover() if name in (None, one.name)]
    usable = [selected(one) for one in ask(found) if one.error is None and one.score > 0] if found else []
    if not usable:  # select() raises an error that says why
        from tessera.plugins import select

        usable = [select(name)]
    return {one.name: (one.platform, dict(one.levels)) for one in usable}


def _column(name: str, config: EngineConfig) -> PlanColumn:
    try:
        return PlanColumn(name, plan=plan(config))
    except TesseraError as error:
        return PlanColumn(name, error=error)


def _as_json(column: PlanColumn) -> dict[str, Any]:
    if column.plan is None:
        assert column.error is not None
        return {"platform": column.name, "error": column.error.message}
    return {**msgspec.to_builtins(column.plan, str_keys=True), "error": None}


# ---- human-readable output ----------------------------------------------------


def _lines(config: EngineConfig, columns: Sequence[PlanColumn]) -> Iterator[str]:
    planned = [column.plan for column in columns if column.plan is not None]
    yield f"{config.model.served_name} with a context of {config.model.max_model_len:,} tokens"
    if planned:
        yield ""
        yield from _table(planned)
    for column in columns:
        for line in column.lines:
            yield ""
            yield f"{column.name}: {line}"


def _explained(columns: Sequence[PlanColumn]) -> Iterator[str]:
    for column in columns:
        if column.plan is not None:
            yield ""
            yield f"On {column.name}:"
            yield choices_table(column.name, column.plan.choices)


def _table(plans: Sequence[Plan]) -> Iterator[str]:
    rows = list(_rows(plans))
    label = max(len(name) for name, _ in rows)
    widths = [max(len(cells[place]) for _, cells in rows) for place in range(len(plans))]
    for name, cells in rows:
        yield "  ".join(
            [name.ljust(label), *(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))]
        ).rstrip()


def _rows(plans: Sequence[Plan]) -> Iterator[tuple[str, list[str]]]:
    yield "platform", [one.platform for one in plans]
    yield "device", [one.device for one in plans]
    if any(one.num_devices > 1 for one in plans):
        yield "devices", [f"{one.num_devices}, memory is per device" if one.num_devices > 1 else "1" for one in plans]
    yield "dtype", [one.dtype for one in plans]
    yield "usable memory", [show_bytes(one.granted_bytes) if one.granted_bytes else "-" for one in plans]
    yield "weights", [show_weights(one.weight_bytes, one.num_weights) for one in plans]
    yield "workspace", [f"at most {show_bytes(one.workspace_bytes)}" for one in plans]
    yield "KV cache", [show_bytes(one.cache_bytes) for one in plans]
    for number in range(max(len(one.groups) for one in plans)):
        yield (
            "KV per token" if number == 0 else "",
            [_group(one.groups[number]) if number < len(one.groups) else "" for one in plans],
        )
    yield "tokens that fit", [f"{one.num_cache_tokens:,}" for one in plans]
    for tokens in sorted({length for one in plans for length in one.requests}, reverse=True):
        yield f"requests of {tokens:,}", [f"{one.requests.get(tokens, 0):,}" for one in plans]


def _group(group: CacheGroup) -> str:
    layers = f"{len(group.layers)} layers" if len(group.layers) != 1 else "1 layer"
    if group.kind == "state":
        return f"{show_bytes(group.block_bytes)} per request ({layers} with a state, room for {group.num_blocks - 1:,})"
    if group.kind == "cross":
        each = group.blocks_of(0)
        room = max(group.num_blocks - 1, 0) // each
        over = f"{layers} over an encoder of {group.length:,} positions"
        return f"{show_bytes(group.block_bytes * each)} per request ({over}, room for {room:,})"
    kind = f"window of {group.window:,}" if group.window is not None else "full attention"
    return f"{show_bytes(group.block_bytes // group.block_size)} ({layers}, {kind}, blocks of {group.block_size})"
