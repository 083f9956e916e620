"""`tessera plugin new NAME`: asks a few questions and writes a platform's package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import click

from tessera.cli.verbosity import verbose_option
from tessera.errors import ConfigError
from tessera.plugins.template import DTYPES, RUNNER_DTYPE, Answers, Depth, check_name, generate

_DEPTHS = "op: core runs the model on a torch device, kernels replace its ops. runner: the package runs the model."


def _new(
    name: str, depth: Depth | None, device: str | None, registers: str | None, dtypes: str | None, into: Path, yes: bool
) -> int:
    """Write the package of a new platform, which runs at once."""
    check_name(name)
    folder = into / f"tessera-{name}"
    generate(_answers(name, depth, device, registers, dtypes, ask=not yes and sys.stdin.isatty()), folder)
    click.echo(_next(name, folder))
    return 0


new = click.Command(
    "new",
    callback=_new,
    help="Write the package tessera-NAME: it installs, is found and passes bronze before a kernel is written. What no "
    "flag says is asked for, where there is a terminal. Needs copier: pip install 'tessera-llm[plugin]'.",
    short_help=_new.__doc__,
    params=[
        verbose_option(),
        click.Argument(["name"]),
        click.Option(["--depth"], type=click.Choice(get_args(Depth)), help=_DEPTHS),
        click.Option(["--device"], metavar="TYPE", help="Torch's name of the device; NAME unless said. Op depth."),
        click.Option(
            ["--registers"], metavar="MODULE", help="The module that registers the device with torch. Op depth."
        ),
        click.Option(["--dtypes"], metavar="LIST", help=f"Of {', '.join(DTYPES)}, with commas, the preferred first."),
        click.Option(
            ["--into"], type=click.Path(path_type=Path, file_okay=False), default=".", show_default=True, metavar="DIR",
            help="Where the folder tessera-NAME is made.",
        ),
        click.Option(["--yes"], is_flag=True, help="Ask nothing: the defaults where no flag says otherwise."),
    ],
)  # fmt: skip


def _answers(
    name: str, depth: Depth | None, device: str | None, registers: str | None, dtypes: str | None, *, ask: bool
) -> Answers:
    def answer(given: str | None, question: str, default: str, kind: click.ParamType[str] | None = None) -> str:
        if given is not None or not ask:
            return default if given is None else given
        return str(click.prompt(question, default=default, type=kind, show_default=bool(default)))

    chosen: Depth = "op"
    if answer(depth, _DEPTHS + "\nDepth", chosen, click.Choice(get_args(Depth))) == "runner":
        if device is not None or registers is not None:
            raise ConfigError("--device and --registers are for op depth; a runner's platform opens its own device.")
        return Answers(name, "runner", "", "", _listed(RUNNER_DTYPE if dtypes is None else dtypes))
    return Answers(
        name,
        chosen,
        answer(device, "Torch's name of the device", name),
        answer(registers, "Module that registers it with torch (empty: torch has it)", ""),
        _listed(answer(dtypes, f"Dtypes of {', '.join(DTYPES)}, the preferred first", "bfloat16,float32")),
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _next(name: str, folder: Path) -> str:
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
