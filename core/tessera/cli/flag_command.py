"""A click command made from flags: options, grouped help, --config, completion, and messages for other programs'
flags."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from tessera.cli.commands import verbose_option
from tessera.config.flags import Flag
from tessera.config.named_models import NAMED_MODELS
from tessera.errors import ConfigError

if TYPE_CHECKING:
    from tessera.config.other_names import OtherName

WIDTH = 100
_COLUMN = 36
_COMMON = "common"
_IGNORED = "tessera.cli.flag_command.ignored"
_CONFIG_HELP = (
    "YAML file of flags (max-model-len: 4096). The command line overrides it; relative paths are relative to the "
    "working directory."
)
_METAVARS = {"text": "TEXT", "int": "N", "float": "X", "size": "SIZE", "list": "LIST", "json": "JSON"}
MODEL_FORMS = (
    "a folder, a GGUF file, ORGANIZATION/NAME on the Hugging Face Hub, or one that pip fetches "
    f"({', '.join(NAMED_MODELS)})"
)
"""What MODEL can be, for the summaries of commands."""
_PATHS: Mapping[str, click.ParamType[Any]] = {
    "FILE": click.Path(dir_okay=False),
    "FOLDER": click.Path(file_okay=False),
}
"""Metavars of paths, for shell completion."""


@dataclass(frozen=True)
class FlagTable:
    """All flags of a command. usage: the text after `tessera`. groups: names and titles, in the order of the help.
    other: what is said of an option that the command does not have but another program has; None if none has it."""

    usage: str
    summary: str
    flags: tuple[Flag, ...]
    groups: Mapping[str, str]
    other: Callable[[str], OtherName | None] = lambda _option: None

    def __post_init__(self) -> None:
        assert {flag.group for flag in self.flags} == set(self.groups), self.usage
        assert len({flag.name for flag in self.flags}) == len(self.flags), self.usage


class FlagCommand(click.Command):
    """--help shows the most common flags, `--help GROUP` those of a group, --help-all everything. The callback receives
    all flags by name; one that is not given is None, or () if it may be repeated."""

    def __init__(self, name: str, *, table: FlagTable, **settings: Any) -> None:
        settings["params"] = [*settings.get("params", ()), *map(option_of, table.flags)]
        super().__init__(name, add_help_option=False, short_help=table.summary, **settings)
        self.table = table
        self.params.append(verbose_option())
        eager: dict[str, Any] = {"is_eager": True, "expose_value": False}
        self.params += [
            click.Option(
                ["--config", "config_file"],
                type=click.Path(dir_okay=False),
                metavar="FILE",
                help=_CONFIG_HELP,
                callback=_use_config_file,
                **eager,
            ),
            click.Option(
                ["-h", "--help", "group"],
                is_flag=False,
                flag_value=_COMMON,
                metavar="GROUP",
                help=_group_help(table),
                callback=_show_group,
                shell_complete=_group_names,
                **eager,
            ),
            click.Option(["--help-all"], is_flag=True, help="Show all flags.", callback=_show_all, **eager),
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        joined = self._joined([_dashed(argument) for argument in args], ctx)
        return super().parse_args(ctx, list(self._spread(joined, ctx)))

    def _joined(self, args: Sequence[str], ctx: click.Context) -> list[str]:
        """The arguments, with the keys of a flag's JSON object that are given one by one, as vLLM takes them
        (-sc.method ngram), joined in front. A value is JSON, or text where it is none. Raises click.UsageError."""
        objects = {name: one.option for one in self.table.flags if one.kind == "json" for name in _options(one)}
        found: dict[str, dict[str, Any]] = {}
        others: list[str] = []
        rest = iter(args)
        for argument in rest:
            if argument == "--":
                others += [argument, *rest]
                break
            written, equals, value = argument.partition("=")
            name, dot, path = written.partition(".")
            if not dot or name not in objects:
                others.append(argument)
                continue
            if not equals and (value := next(rest, "--")) == "--":
                raise click.UsageError(f"{written} requires a value.", ctx)
            _put(found.setdefault(objects[name], {}), written, path, value, ctx)
        whole = {argument.partition("=")[0] for argument in others}
        for option in found:
            if any(objects.get(name) == option for name in whole):
                raise click.UsageError(f"Give {option} as one JSON object or by its keys, not both.", ctx)
        return [*chain.from_iterable((option, _written(value)) for option, value in found.items()), *others]

    def _spread(self, args: Sequence[str], ctx: click.Context) -> Iterator[str]:
        """The arguments, with the flag before each of the values that argparse would give to one flag: --api-key a b.
        Only after MODEL, because until then the second value is MODEL. Leaves out other programs' flags that ask for
        what is done anyway, and raises click.UsageError for the rest of them; click itself would take -np for -n."""
        named = {name: param for param in self.params for name in (*param.opts, *param.secondary_opts)}
        several = {flag.option for flag in self.table.flags if flag.several}
        before: str | None = None  # the flag that further values belong to
        has_model = False
        rest = iter(args)
        for argument in rest:
            name, equals, given = argument.partition("=")
            if argument == "--":
                yield argument
                yield from rest
                return
            if name.startswith("-") and name != "-":
                if name not in named and (other := self.table.other(name)) is not None:
                    if other.takes_value and not equals:
                        given = next(rest, "")
                    self.ignores(name, given, ctx)
                    before = None
                    continue
                yield argument
                before = name if name in several and has_model and not equals else None
                if not equals and _takes_value(named.get(name)) and (value := next(rest, None)) is not None:
                    yield value
                continue
            if before is not None:
                yield before
            has_model = has_model or before is None
            yield argument

    def ignores(self, option: str, value: str, ctx: click.Context) -> bool:
        """Whether it is another program's option that has no effect at this value. Raises click.UsageError for one that
        may not be ignored."""
        other = self.table.other(option)
        if other is None:
            return False
        if not other.accepts(value):
            raise click.UsageError(other.refusal, ctx)
        ctx.meta.setdefault(_IGNORED, {})[option] = f"{option} has no effect: {other.reason}"
        return True

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.width = WIDTH
        _write_help(formatter, self.table, [flag for flag in self.table.flags if flag.common])


def ignored(ctx: click.Context) -> list[str]:
    """A line for each of another program's flags that was given and has no effect."""
    return list(ctx.meta.get(_IGNORED, {}).values())


def _takes_value(param: click.Parameter | None) -> bool:
    """Whether the next argument is the option's value, whatever it begins with. That of --help may be left out."""
    return (
        isinstance(param, click.Option)
        and not param.is_flag
        and not param.count
        and not isinstance(param.flag_value, str)
    )


def _dashed(argument: str) -> str:
    """Converts underscores in a flag's name to dashes; vLLM accepts both. Keys after a dot stay as they are."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    option, dot, path = name.partition(".")
    return f"{option.replace('_', '-')}{dot}{path}{equals}{value}"


def _put(fields: dict[str, Any], written: str, path: str, value: str, ctx: click.Context) -> None:
    """Sets the value at a path such as a.b of a JSON object. written: what the user wrote."""
    import json

    *outer, last = path.split(".")
    inner: Any = fields
    for key in outer:
        inner = inner.setdefault(key, {}) if isinstance(inner, dict) else None
    if not all((*outer, last)) or last.endswith("+") or not isinstance(inner, dict) or last in inner:
        raise click.UsageError(f"{written} cannot be set here; write the whole value as one JSON object.", ctx)
    try:
        inner[last] = json.loads(value)
    except ValueError:
        inner[last] = value


def _written(value: dict[str, Any]) -> str:
    import json

    return json.dumps(value)


# ---- options and their types ----------------------------------------------------


def _options(flag: Flag) -> tuple[str, ...]:
    return (flag.option, *flag.aliases)


def option_of(flag: Flag) -> click.Option:
    if flag.kind == "switch":
        # vLLM's switches all have an opposite; the help shows that of switches that are on.
        names = [name if name.startswith("--no-") else f"{name}/--no-{name[2:]}" for name in _options(flag)]
        return click.Option([*names, flag.name], default=None, is_flag=True, help=description(flag))
    return click.Option(
        [*_options(flag), flag.name],
        type=_type_of(flag),
        multiple=flag.multiple or flag.kind == "list",
        callback=_flat if flag.kind == "list" else None,
        metavar=flag.metavar or None,
        help=description(flag),
        shell_complete=_platform_names if flag.name == "platform" else None,
    )


def _type_of(flag: Flag) -> click.ParamType[Any]:
    if flag.kind == "choice":
        return click.Choice(flag.choices)
    if flag.kind == "size" and flag.unset:
        return SizeType(flag.unset)
    return _PATHS[flag.metavar] if flag.metavar in _PATHS else _TYPES[flag.kind]


def _flat(_context: click.Context, _parameter: click.Parameter, values: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(chain.from_iterable(values))


class SizeType(click.ParamType[int | str]):
    """An integer with an optional suffix, or the word that stands for leaving the flag out."""

    name = "size"

    def __init__(self, unset: str = "") -> None:
        self._unset = unset

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if isinstance(value, int) or (self._unset and value == self._unset):
            return value  # type: ignore[no-any-return]  # a text that equals one
        from tessera.sizes import parse_size

        try:
            return parse_size(value)
        except ConfigError as error:
            self.fail(error.message, param, ctx)


class ListType(click.ParamType[tuple[str, ...]]):
    """A JSON list of strings, as in vLLM, or comma-separated strings."""

    name = "list"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        items = _json(self, value, param, ctx) if value.startswith("[") else value.split(",")
        if not all(isinstance(item, str) and item.strip() for item in items):
            self.fail(f'\'{value}\' is not a list of strings, such as a,b or ["a", "b"].', param, ctx)
        return tuple(item.strip() for item in items)


class JsonType(click.ParamType[dict[str, Any]]):
    """A JSON object."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        found = _json(self, value, param, ctx)
        if not isinstance(found, dict):
            self.fail(f"'{value}' is not a JSON object, such as {{\"a\": 1}}.", param, ctx)
        return found


def _json(kind: click.ParamType[Any], value: str, param: click.Parameter | None, ctx: click.Context | None) -> Any:
    import json

    try:
        return json.loads(value)
    except ValueError as error:
        kind.fail(f"'{value}' is not valid JSON: {error}.", param, ctx)


_TYPES: Mapping[str, click.ParamType[Any]] = {
    "text": click.STRING,
    "int": click.INT,
    "float": click.FLOAT,
    "size": SizeType(),
    "list": ListType(),
    "json": JsonType(),
}
"""Parameter types by kind of flag."""


# ---- --config and --help --------------------------------------------------------


def _command_of(ctx: click.Context) -> FlagCommand:
    assert isinstance(ctx.command, FlagCommand)
    return ctx.command


def _use_config_file(ctx: click.Context, _parameter: click.Parameter, file: str | None) -> None:
    """Makes the file's values the defaults of this run, before any other flag is processed."""
    if file is not None and not ctx.resilient_parsing:
        from tessera.cli.config_file import read_config_file

        command = _command_of(ctx)
        names = {flag.name for flag in command.table.flags}
        parameters = {one.name: one for one in command.params if one.name in names or isinstance(one, click.Argument)}
        ctx.default_map = read_config_file(file, parameters, partial(command.ignores, ctx=ctx), ctx)


def _show_group(ctx: click.Context, _parameter: click.Parameter, group: str | None) -> None:
    if group is None or ctx.resilient_parsing:
        return
    table = _command_of(ctx).table
    if group == _COMMON:
        flags = [flag for flag in table.flags if flag.common]
    elif group in table.groups:
        flags = [flag for flag in table.flags if flag.group == group]
    else:
        word = group.removeprefix("--").replace("_", "-").lower()
        flags = [flag for flag in table.flags if word in flag.option]
    if not flags:
        groups = ", ".join(table.groups)
        raise click.UsageError(f"--help {group}: no group and no flag has that name; the groups are {groups}.", ctx)
    _show(ctx, flags)


def _show_all(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        _show(ctx, _command_of(ctx).table.flags)


def _show(ctx: click.Context, flags: Sequence[Flag]) -> None:
    formatter = click.HelpFormatter(width=WIDTH)
    _write_help(formatter, _command_of(ctx).table, flags)
    click.echo(formatter.getvalue().rstrip("\n"))
    ctx.exit()


def _write_help(formatter: click.HelpFormatter, table: FlagTable, flags: Iterable[Flag]) -> None:
    formatter.write_usage("tessera", table.usage)
    formatter.write_paragraph()
    formatter.write_text(table.summary)
    by_group: dict[str, list[Flag]] = {group: [] for group in table.groups}
    for flag in flags:
        by_group[flag.group].append(flag)
    for group, members in by_group.items():
        if members:
            with formatter.section(f"{table.groups[group]} ({group})"):
                formatter.write_dl([(option_usage(flag), description(flag)) for flag in members], col_max=_COLUMN)
    with formatter.section("Help and settings"):
        formatter.write_dl(
            [
                ("--config FILE", _CONFIG_HELP),
                ("--help GROUP", _group_help(table)),
                ("--help-all", "Show all flags."),
            ],
            col_max=_COLUMN,
        )


def _group_help(table: FlagTable) -> str:
    return f"Show the flags of a group ({', '.join(table.groups)}), or those whose names contain a word."


def option_usage(flag: Flag) -> str:
    """The left column of the help."""
    if flag.kind == "switch":
        return f"--[no-]{flag.option[2:]}" if flag.default else flag.option
    names = [*(name for name in flag.aliases if not name.startswith("--")), flag.option]
    return f"{', '.join(names)} {flag.metavar or '|'.join(flag.choices) or _METAVARS[flag.kind]}"


def meaning(flag: Flag) -> str:
    """The help text, including the environment variable that can replace the flag."""
    return f"{flag.help} Or set {flag.variable}." if flag.variable else flag.help


def description(flag: Flag) -> str:
    """The right column of the help."""
    default = flag.default_text
    return f"{meaning(flag)} [{default}]" if default else meaning(flag)


# ---- shell completion -----------------------------------------------------------


def model_argument(*, required: bool = False) -> click.Argument:
    """MODEL, completed with named models and folders that contain a model."""
    return click.Argument(["model"], required=required, shell_complete=_model_folders)


def _model_folders(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Matching folders with a config.json, or any folder if there is none, so that the user can descend into it."""
    from pathlib import Path

    head, separator, _ = incomplete.rpartition("/")
    parent = Path(head + separator).expanduser() if separator else Path()
    try:
        folders = sorted(parent.iterdir())
    except OSError:
        folders = []
    names = [*NAMED_MODELS, *(f"{head}{separator}{one.name}" for one in folders if (one / "config.json").is_file())]
    models = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return models or [CompletionItem(incomplete, type="dir")]


def _platform_names(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Installed platforms, without probing them."""
    from tessera.plugins.discovery import discover

    names = [found.manifest.name for found in discover() if found.manifest is not None]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _group_names(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    groups = _command_of(ctx).table.groups
    return [CompletionItem(name, help=title) for name, title in groups.items() if name.startswith(incomplete)]
