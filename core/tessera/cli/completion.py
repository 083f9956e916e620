"""`tessera completion SHELL` prints click's completion script; `tessera --install-completion` installs it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from tessera.cli.commands import verbose_option
from tessera.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_TESSERA_COMPLETE"  # the name that click derives from the program name
_MARK = "# tessera's completion"
# A line at the end of .zshrc may run before zsh's own completion has been loaded.
_BEFORE = {"zsh": "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"}


def script_of(shell: str) -> str:
    """The script for the shell to source."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, shell
    complete = kind(click.Command("tessera"), {}, "tessera", _VARIABLE)
    return complete.source_template % complete.source_vars()


def install(home: Path, environment: Mapping[str, str]) -> tuple[Path, Path]:
    """Writes the completion script for the user's shell ($SHELL) and, if the shell needs one, the line that sources it.
    Returns the paths of both files. Raises ConfigError."""
    from pathlib import Path

    shell = Path(environment.get("SHELL", "")).name
    if shell not in SHELLS:
        raise ConfigError(f"SHELL is none of {', '.join(SHELLS)}; use the output of tessera completion bash.")
    if shell == "fish":
        settings = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
        script = start = settings / "fish" / "completions" / "tessera.fish"
    else:
        data = Path(environment.get("XDG_DATA_HOME") or home / ".local" / "share")
        script = data / "tessera" / f"completion.{shell}"
        start = home / f".{shell}rc" if shell == "bash" else Path(environment.get("ZDOTDIR") or home) / ".zshrc"
    try:
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(_BEFORE.get(shell, "") + script_of(shell), encoding="utf-8")
        if start != script:
            _add_line(start, f'[ -r "{script}" ] && . "{script}"  {_MARK}\n')
    except OSError as error:
        raise ConfigError(f"'{error.filename}' cannot be written: {error.strerror}.") from error
    return script, start


def _add_line(file: Path, line: str) -> None:
    """Appends the line, unless an earlier installation has added one."""
    before = file.read_text(encoding="utf-8", errors="surrogateescape") if file.exists() else ""
    if _MARK not in before:
        with file.open("a", encoding="utf-8") as opened:
            opened.write(line if not before or before.endswith("\n") else f"\n{line}")


def install_option() -> click.Option:
    settings: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _install}
    return click.Option(["--install-completion"], help="Install completion for your shell ($SHELL).", **settings)


def _install(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from pathlib import Path

        script, start = install(Path.home(), os.environ)
        click.echo(f"Wrote {script}" + (f" and a line in {start} that sources it" if start != script else ""))
        click.echo("Start a new shell to use it.")
        context.exit()


def _completion(shell: str) -> None:
    click.echo(script_of(shell))


completion = click.Command(
    "completion",
    callback=_completion,
    help="Print the completion script for SHELL: commands, flags, platforms and model folders.\n\n\b\n"
    'bash:  eval "$(tessera completion bash)"\n'
    'zsh:   eval "$(tessera completion zsh)"\n'
    "fish:  tessera completion fish | source\n\n"
    "tessera --install-completion enables it for every new shell.",
    params=[verbose_option(), click.Argument(["shell"], type=click.Choice(SHELLS))],
)
