"""Runs a command, and turns any error into one line and an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

import click

from tessera.cli.commands import CommandGroup, Verbosity, verbose_option
from tessera.cli.completion import install_option
from tessera.cli.descriptors import open_standard
from tessera.errors import EXIT_CODES, TesseraError


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of the script. arguments: without the program name; None uses the process's."""
    open_standard()
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Runs a command. Returns its exit code, one of tessera.errors.EXIT_CODES."""
    verbosity = Verbosity()
    try:
        code = tessera.main(args=list(arguments), prog_name="tessera", standalone_mode=False, obj=verbosity)
    except TesseraError as error:
        return _failed(error.message, error.exit_code, verbosity)
    except click.ClickException as error:
        return _failed(_advised(error), error.exit_code, verbosity)
    except (KeyboardInterrupt, click.Abort):
        return 0
    except Exception as error:  # noqa: BLE001  # a bug, so print all of it
        traceback.print_exception(error)
        return _failed("This is a bug in Tessera; please report it with the lines above.", 1, Verbosity())
    return code if isinstance(code, int) else 0


def _failed(message: str, code: int, verbosity: Verbosity) -> int:
    if verbosity.tracebacks:
        traceback.print_exc()
    click.echo(f"error: {message}", err=True)
    return code


def _advised(error: click.ClickException) -> str:
    """click's message in one line, with the command that shows what there is where the message names nothing else."""
    message = " ".join(error.format_message().split())
    context = error.ctx if isinstance(error, click.UsageError) else None
    names_nothing = isinstance(error, click.NoSuchOption | click.NoSuchCommand | click.MissingParameter)
    if context is None or not (names_nothing or message.startswith("Got unexpected extra argument")):
        return message
    option = "--help-all" if any("--help-all" in one.opts for one in context.command.params) else "--help"
    return f"{message.rstrip('.')}; see {context.command_path} {option}."


def _show_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from tessera._version import __version__

        click.echo(f"tessera {__version__}")
        context.exit()


_BEGIN = """\b
Getting started:
  tessera chat           chat with the small bundled model
  tessera serve MODEL    serve a model on http://127.0.0.1:8000
  tessera doctor         check the installation
  tessera COMMAND --help show the flags of a command
"""
_EXIT_CODES = "\b\nExit codes:\n" + "\n".join(f"  {code}  {meaning}" for code, meaning in EXIT_CODES.items())


tessera = CommandGroup(
    "tessera",
    help=f"Serve large language models on any vendor's hardware.\n\n{_BEGIN}",
    epilog=_EXIT_CODES,
    params=[
        verbose_option(),
        install_option(),
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Print the version.",
        ),
    ],
)
