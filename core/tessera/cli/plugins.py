"""`tessera plugins` lists installed plugins. `tessera plugin` helps authors of platforms."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import click

from tessera.cli.commands import LazyGroup, verbose_option
from tessera.cli.platforms import columns
from tessera.config.environment import read_environment
from tessera.errors import ConfigError
from tessera.plugins.loading import Plugin, Plugins, load_plugins
from tessera.plugins.template import DTYPES, RUNNER_DTYPE, Depth, TemplateAnswers, check_name, generate

# ---- tessera plugins ------------------------------------------------------------


def _plugins(as_json: bool) -> int:
    """List the installed plugins and the hooks they implement."""
    found = load_plugins(read_environment())
    rows = [_described(found, plugin) for plugin in found]
    head = ("NAME", "DISTRIBUTION", "ENTRY POINT", "HOOKS", "STATE")
    click.echo(json.dumps(rows, indent=2) if as_json else "\n".join(columns([head, *map(_cells, rows)])))
    return 0


plugins = click.Command(
    "plugins",
    callback=_plugins,
    help="List the installed plugins and the hooks they implement. TESSERA_DISABLE_PLUGINS=NAME,NAME disables plugins; "
    "TESSERA_TRACE_PLUGINS=1 logs every hook call.",
    params=[verbose_option(), click.Option(["--json", "as_json"], is_flag=True, help="Print a JSON list.")],
)


def _described(plugins: Plugins, plugin: Plugin) -> dict[str, Any]:
    """A plugin as --json prints it."""
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "entry_point": plugin.entry,
        "hooks": plugins.hooks(plugin),
        "left_out": plugin.left_out,
        "error": plugin.error,
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    state = "loaded"
    if row["left_out"] is not None:
        state = f"not loaded: {row['left_out']}"
    elif row["error"] is not None:
        state = f"error: {row['error']}"
    distribution = f"{row['distribution']} {row['version']}".strip()
    return row["name"], distribution, row["entry_point"], ", ".join(row["hooks"]) or "-", state


# ---- tessera plugin new ---------------------------------------------------------

_DEPTH_HELP = (
    "op: core runs the model on a torch device, with your kernels. runner: your package runs the model itself."
)


def _new(
    name: str, depth: Depth | None, device: str | None, registers: str | None, dtypes: str | None, into: Path, yes: bool
) -> int:
    """Create the package of a new platform."""
    check_name(name)
    folder = into / f"tessera-{name}"
    generate(_answers(name, depth, device, registers, dtypes, ask=not yes and sys.stdin.isatty()), folder)
    click.echo(_next_steps(name, folder))
    return 0


new = click.Command(
    "new",
    callback=_new,
    help="Create the package tessera-NAME: it installs, is found and passes bronze before you write a kernel. On a "
    "terminal, it asks for whatever no flag gives. Needs copier: pip install 'tessera-llm[plugin]'.",
    short_help=_new.__doc__,
    params=[
        verbose_option(),
        click.Argument(["name"]),
        click.Option(["--depth"], type=click.Choice(get_args(Depth)), help=_DEPTH_HELP),
        click.Option(["--device"], metavar="TYPE", help="torch's device type; default: NAME. Depth op only."),
        click.Option(
            ["--registers"], metavar="MODULE", help="Module that registers the device with torch. Depth op only."
        ),
        click.Option(["--dtypes"], metavar="LIST", help=f"Dtypes among {', '.join(DTYPES)}, preferred first."),
        click.Option(
            ["--into"], type=click.Path(path_type=Path, file_okay=False), default=".", show_default=True, metavar="DIR",
            help="Where to create the folder tessera-NAME.",
        ),
        click.Option(["--yes"], is_flag=True, help="Ask nothing; use the default where no flag says otherwise."),
    ],
)  # fmt: skip


def _answers(
    name: str, depth: Depth | None, device: str | None, registers: str | None, dtypes: str | None, *, ask: bool
) -> TemplateAnswers:
    def answer(value: str | None, question: str, default: str, kind: click.ParamType[str] | None = None) -> str:
        if value is not None or not ask:
            return default if value is None else value
        return str(click.prompt(question, default=default, type=kind, show_default=bool(default)))

    if answer(depth, _DEPTH_HELP + "\nDepth", "op", click.Choice(get_args(Depth))) == "runner":
        if device is not None or registers is not None:
            raise ConfigError("--device and --registers are for depth op; a runner's platform opens its own device.")
        return TemplateAnswers(name, "runner", "", "", _listed(RUNNER_DTYPE if dtypes is None else dtypes))
    return TemplateAnswers(
        name,
        "op",
        answer(device, "torch's device type", name),
        answer(registers, "Module that registers it with torch (empty if torch has it)", ""),
        _listed(answer(dtypes, f"Dtypes among {', '.join(DTYPES)}, preferred first", "bfloat16,float32")),
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _next_steps(name: str, folder: Path) -> str:
    commands = (
        f"cd {folder}",
        "pip install -e '.[dev]'",
        "tessera platforms",
        f"tessera conformance --platform {name} --level bronze",
        f"tessera serve --platform {name}",
        "tessera plugin check .",
    )
    listed = [f"  {command}" for command in commands]
    return "\n".join([f"Wrote {folder}. Next:", *listed, "README.md says what to write first."])


# ---- tessera plugin check, tessera plugin lines ---------------------------------


def _check(path: Path) -> int:
    """Check a platform package against the contract."""
    from tessera.plugins.check import check as findings_of
    from tessera.plugins.check import read_package

    package = read_package(path)
    findings = findings_of(package)
    for finding in findings:
        click.echo(str(finding))
    count = f"{len(findings)} finding{'' if len(findings) == 1 else 's'}" if findings else "no findings"
    click.echo(f"{count} in {len(package.sources)} files")
    return 1 if findings else 0


check = click.Command(
    "check",
    callback=_check,
    help="Read a platform package, and import its module once in a child process. Prints one line per violation of the "
    "contract: where it is and what to do. Exits with 1 if there are any.",
    short_help=_check.__doc__,
    params=[verbose_option(), click.Argument(["path"], type=click.Path(path_type=Path))],
)


def _lines(path: Path) -> int:
    """Count a package's hand-written lines."""
    from tessera._version import __version__
    from tessera.plugins.template import answers_of, count_written_lines

    _, version = answers_of(path)
    counts = count_written_lines(path)
    for name, number in counts.items():
        click.echo(f"{number:6}  {name}")
    click.echo(f"{sum(counts.values()):6}  lines written by hand")
    if version != __version__:
        click.echo(f"The package was generated by {version}; lines that {__version__} generates differently count too.")
    return 0


lines = click.Command(
    "lines",
    callback=_lines,
    help="Count the lines of .py files, without blank lines and comments, that differ from what `tessera plugin new` "
    "generates. Needs copier: pip install 'tessera-llm[plugin]'.",
    short_help=_lines.__doc__,
    params=[verbose_option(), click.Argument(["path"], type=click.Path(path_type=Path))],
)

plugin = LazyGroup(
    "plugin",
    table=MappingProxyType(
        {
            "new": ("tessera.cli.plugins:new", str(_new.__doc__)),
            "check": ("tessera.cli.plugins:check", str(_check.__doc__)),
            "lines": ("tessera.cli.plugins:lines", str(_lines.__doc__)),
        }
    ),
    help="Create a platform package, check it, count its lines. docs/plugins/guide.md is a step-by-step guide.",
    params=[verbose_option()],
)
