"""`tessera doctor`: checks everything Tessera needs on this machine, and says how to fix what does not work."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, version

import click

from tessera._version import __version__
from tessera.cli.commands import BUILT_IN, taken_name, verbose_option
from tessera.cli.platforms import survey
from tessera.config.environment import (
    Environment,
    allowed_cores,
    artifacts_folder,
    read_environment,
    unknown_variable,
)
from tessera.errors import PlatformError, TesseraError
from tessera.plugins.discovery import declared_variables, discover
from tessera.plugins.extensions import fill_registry, plugin_commands
from tessera.plugins.loading import CORE, Plugins, load_plugins
from tessera.plugins.selection import Candidate
from tessera.sizes import show_bytes


@dataclass(frozen=True)
class Check:
    """One line of the report. advice: how to fix the problem."""

    name: str
    ok: bool
    text: str
    advice: str = ""


CHOICE = "choice"


def check_installation() -> Iterator[Check]:
    """Checks that the package `tessera` belongs to this project and has one version, and that torch is installed
    (without importing it)."""
    yield Check("tessera", True, f"{__version__}, Python {sys.version.split()[0]}, {allowed_cores()} cores available")
    owners = sorted(set(packages_distributions().get("tessera", ())) - {CORE})
    for owner in owners:
        yield Check(
            "tessera",
            False,
            f"the distribution '{owner}' {version(owner)} also installs a package called tessera; one hides the other",
            f"pip uninstall {owner}, then pip install --force-reinstall --no-deps {CORE}",
        )
    installed = _version_of(CORE)
    if installed not in (None, __version__):
        yield Check(
            "tessera",
            False,
            f"{CORE} {installed} is installed, but version {__version__} is running",
            f"reinstall it: pip uninstall {CORE}, then install it again",
        )
    torch = _version_of("torch")
    if torch is None:
        yield Check(
            "torch",
            False,
            "not installed",
            "install the build for this machine; the default one is pip install torch",
        )
    else:
        yield Check("torch", True, torch)


def check_environment(environment: Environment, declared: Mapping[str, str]) -> Iterator[Check]:
    """Checks the variables with Tessera's prefix. declared: those that platform packages read, and what they do."""
    for name in environment.others:
        if name in declared:
            yield Check("environment", True, f"{name} is set: {declared[name]}")
        else:
            yield Check("environment", False, unknown_variable(name, declared), f"unset {name}")
    if environment.load_plugins is not None:
        names = ", ".join(sorted(environment.load_plugins)) or "none"
        yield Check("environment", True, f"TESSERA_LOAD_PLUGINS loads only these plugins: {names}")
    if environment.trace_plugins:
        yield Check("environment", True, "TESSERA_TRACE_PLUGINS logs every hook call")


def check_cache() -> Iterator[Check]:
    """Says where platforms keep compiled programs, and how many bytes."""
    folder = artifacts_folder()
    files = [path for path in folder.rglob("*") if path.is_file()]
    if files:
        size = show_bytes(sum(path.stat().st_size for path in files))
        yield Check("cache", True, f"{folder}: {size} that platforms keep for later starts; it can be deleted")


def check_disabled(environment: Environment, plugins: Plugins) -> Iterator[Check]:
    """Checks that disabled plugins exist."""
    for name in sorted(environment.disable_plugins - {plugin.name for plugin in plugins}):
        text = f"TESSERA_DISABLE_PLUGINS names '{name}', but there is no such plugin"
        yield Check("environment", False, text, "run tessera plugins for their names")


def check_plugins(plugins: Plugins) -> Iterator[Check]:
    """Checks what the entry points provide, and whether names collide."""
    for plugin in plugins:
        if plugin.error is not None:
            yield Check("plugin", False, f"{plugin.name} ({plugin}): {plugin.error}", _remedy(plugin.distribution))
        elif plugin.left_out is not None:
            yield Check("plugin", True, f"{plugin.name} ({plugin}): not loaded, {plugin.left_out}")
        elif plugin.distribution != CORE:
            yield Check("plugin", True, f"{plugin.name} ({plugin})")
    commands, problems = plugin_commands(plugins)
    problems += [taken_name(name) for name in commands if name in BUILT_IN]
    try:
        fill_registry(plugins)
    except TesseraError as error:
        problems.append(error.message)
    for problem in problems:
        yield Check("plugin", False, problem, "uninstall or upgrade the plugin")


def check_platforms(plugins: Plugins) -> Iterator[Check]:
    """Checks each platform, and which one runs without --platform."""
    candidates, chosen, problem = survey(plugins)
    for one in candidates:
        if one.platform.manifest is None:
            continue  # the plugin could not be loaded, which check_plugins reports
        if one.error is not None:
            yield Check("platform", False, f"{one}: {one.error}", _remedy(one.platform.distribution))
        elif one.probe is not None:
            able = f"score {one.score}" if one.score else "cannot run on this machine"
            yield Check("platform", True, "; ".join([f"{one}: {able}, {one.probe.reason}", *_shims(one)]))
    if chosen is not None:
        yield Check(CHOICE, True, f"'{chosen.name}' runs unless --platform says otherwise")
    elif problem is not None:
        yield Check(CHOICE, False, problem.message)


def _shims(candidate: Candidate) -> list[str]:
    return [f"shim: {shim}" for shim in candidate.platform.shims]


def _remedy(distribution: str) -> str:
    return f"pip install --upgrade {distribution}, or pip uninstall {distribution}"


def _version_of(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _lines(checks: list[Check]) -> Iterator[str]:
    for check in checks:
        yield f"{'ok' if check.ok else 'problem':<8} {check.name:<11} {check.text}"
        if check.advice:
            yield f"{'':<20} -> {check.advice}"
    bad = sum(not check.ok for check in checks)
    yield ""
    yield "No problems found." if bad == 0 else f"{bad} problem{'s' if bad > 1 else ''}."


def _doctor(as_json: bool) -> int:
    environment = read_environment()
    plugins = load_plugins(environment)
    checks = [
        *check_installation(),
        *check_environment(environment, declared_variables(discover(plugins))),
        *check_cache(),
        *check_disabled(environment, plugins),
        *check_plugins(plugins),
        *check_platforms(plugins),
    ]
    click.echo(json.dumps([asdict(check) for check in checks], indent=2) if as_json else "\n".join(_lines(checks)))
    usable = any(check.ok and check.name == CHOICE for check in checks)
    return 0 if usable else PlatformError.exit_code


doctor = click.Command(
    "doctor",
    callback=_doctor,
    help="Check the installation and suggest fixes. Exits with 5 if serve would find no platform.",
    params=[verbose_option(), click.Option(["--json", "as_json"], is_flag=True, help="Print a JSON list.")],
)
