"""Writes docs/cli.md from the commands themselves: `python -m tools.cli_reference`. A test keeps the two alike."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from tessera.cli.commands import BUILT_IN
from tessera.cli.flag_command import FlagCommand
from tessera.cli.flags import Flag
from tessera.cli.lazy_group import LazyGroup
from tessera.cli.serve_flags import TABLE as SERVE
from tessera.config.environment import VARIABLES
from tessera.errors import EXIT_CODES

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"

_HEAD = """\
# The command line

Written by `python -m tools.cli_reference` from the commands themselves; `tessera COMMAND --help` says the same on a
screen, `--help GROUP` and `--help-all` say the rest. Flags may be written with `_` for `-`. Names are vLLM's where the
same thing exists. Every command takes `-v`: the traceback of an error beside its one line.

## A file of flags

Commands with flags in groups take `--config FILE`, a YAML file whose keys are flags, with `-` or `_`:

```yaml
model: /path/to/folder
max-model-len: 32K
enable_prefix_caching: false
served-model-name: [first, second]
```

The command line goes before the file, the file before the default; a flag that may be given several times is taken from
the one or the other. A value is read as it would be on the command line, by the flag's own type. There are no keys
within keys. Relative paths are relative to the working directory, not to the file. What does not hold is one line with
the number of the file's line; a key that is no flag is answered with the nearest name.

## Completion

`tessera --install-completion` lets your shell (bash, zsh or fish) complete commands, flags, groups of flags, platforms
and folders of models; `tessera completion SHELL` prints the script and changes nothing.
"""


def reference() -> str:
    """The whole page."""
    parts = [_HEAD, *_environment(), *_exit_codes()]
    for name in BUILT_IN:
        parts += _command([name], _found(LazyGroup("tessera", table=BUILT_IN), name))
    return "\n".join(parts)


def _found(group: LazyGroup, name: str) -> click.Command:
    command = group.get_command(click.Context(group), name)
    assert command is not None, name
    return command


def _environment() -> Iterator[str]:
    yield "## Environment\n"
    yield from _table(("Variable", "What it says"), [(f"`{name}`", text) for name, text in VARIABLES.items()])
    yield "`chat`, `complete` and `bench serve` send `OPENAI_API_KEY` where neither `--api-key` nor `TESSERA_API_KEY`"
    yield "is given.\n"


def _exit_codes() -> Iterator[str]:
    yield "## Exit codes\n"
    yield from _table(("Code", "Meaning"), [(str(code), text) for code, text in EXIT_CODES.items()])


def _command(path: list[str], command: click.Command) -> Iterator[str]:
    if isinstance(command, LazyGroup):
        yield f"## tessera {' '.join(path)}\n\n{command.help}\n"
        for name in command.table:
            yield from _command([*path, name], _found(command, name))
    elif isinstance(command, FlagCommand):
        yield f"## tessera {' '.join(path)}\n\n    tessera {command.table.usage}\n\n{command.table.summary}\n"
        yield from _groups(command)
    else:
        yield f"## tessera {' '.join(path)}\n\n{_paragraphs(command)}\n"
        options = [one for one in command.params if isinstance(one, click.Option) and one.name != "verbose"]
        if options:
            yield from _table(("Flag", "Meaning"), [_option_row(option) for option in options])


def _groups(command: FlagCommand) -> Iterator[str]:
    shared = []
    for group, title in command.table.groups.items():
        flags = [flag for flag in command.table.flags if flag.group == group]
        if command.table is not SERVE and all(_is_of_serve(flag) for flag in flags):
            shared.append(group)
            continue
        yield f"**{title}** (`--help {group}`)\n"
        yield from _table(("Flag", "Meaning", "Default"), [_flag_row(flag) for flag in flags])
    if shared:
        yield f"And the flags of `tessera serve` that are the engine's, in the groups {', '.join(shared)}.\n"


def _is_of_serve(flag: Flag) -> bool:
    return any((flag.name, flag.help, flag.default) == (one.name, one.help, one.default) for one in SERVE.flags)


def _flag_row(flag: Flag) -> tuple[str, ...]:
    further = [name for name in flag.aliases if name.startswith("--")]
    text = f"{flag.help} Also {', '.join(f'`{name}`' for name in further)}." if further else flag.help
    return f"`{flag.shown}`", text, flag.default


def _option_row(option: click.Option) -> tuple[str, ...]:
    return ", ".join(f"`{name}`" for name in option.opts), option.help or ""


def _paragraphs(command: click.Command) -> str:
    """click's mark for lines that keep their breaks is an indented block here."""
    blocks = (command.help or "").split("\n\n")
    return "\n\n".join(
        textwrap.indent(block.removeprefix("\b\n"), "    ") if block.startswith("\b\n") else block for block in blocks
    )


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    for row in (header, tuple("---" for _ in header), *rows):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
    print(PAGE)
