"""How each failure of docs/plugins/failures.md is produced."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tests.unit.conftest import Site

RUNS = """
import contextlib, io, json, sys
from tessera.cli.program import run
from tessera.plugins import selection
selection.select.__kwdefaults__["timeout"] = float(sys.argv[1])
selection.ask.__defaults__ = (float(sys.argv[1]),)
said = []
for arguments in json.loads(sys.argv[2]):
    heard = io.StringIO()
    with contextlib.redirect_stderr(heard), contextlib.redirect_stdout(io.StringIO()):
        code = run(arguments)
    said.append((code, heard.getvalue().strip().rpartition("error: ")[2]))
print(json.dumps(said))
"""
API = """
import json, sys
from dataclasses import replace
from tessera.errors import TesseraError
from tessera.platform import API_LEVELS
from tessera.plugins import load_platform, load_plugins
from tessera.plugins.levels import API, Removed
from tessera.plugins.discovery import discover
from tessera.plugins.extensions import load_registry, named_routes
api = replace(
    API,
    levels={**API_LEVELS, "platform": 3},
    shims={("platform", 2): lambda platform: platform},
    removed={"Platform": {"attention_backend": Removed("attention", 0, "attention_backends")}},
    removed_hooks={"platform": "platforms"},
)
try:
    found = EXPRESSION
    print(json.dumps([5, found]))
except TesseraError as error:
    print(json.dumps([error.exit_code, error.message]))
"""
WARNING = """
import json, logging
from tessera.plugins import load_platform
class Kept(logging.Handler):
    def emit(self, record):
        print(json.dumps([None, record.getMessage()]))
logging.getLogger("tessera").addHandler(Kept())
load_platform("PATH")
"""
Said = tuple[int | None, str]
Produce = Callable[[Site], Said]

PLUGINS = (
    "absent", "boasting", "broken_import", "crashing", "failing_hook", "good", "hanging", "leveled", "lost_module",
    "needs_core", "needs_library", "needs_python", "needs_torch", "no_hooks", "odd_facet", "odd_level", "odd_name",
    "odd_path", "odd_variable", "one_manifest", "partial", "raising", "served", "torch_at_load", "unknown_hook",
    "wrong_probe",
)  # fmt: skip
"""Installed side by side in one site, where each is asked for by its name."""

NAMED: Mapping[str, str] = MappingProxyType(
    {
        "unknown-platform": "goood",
        "score-0": "absent",
        "torch-version": "needs_torch",
        "core-version": "needs_core",
        "python-version": "needs_python",
        "requirement-missing": "needs_library",
        "module-missing": "lost_module",
        "import-raises": "broken_import",
        "torch-at-import": "torch_at_load",
        "no-hooks": "no_hooks",
        "unknown-hook": "unknown_hook",
        "hook-raises": "failing_hook",
        "manifest-bare": "one_manifest",
        "manifest-name": "My Chip",
        "manifest-path": "odd_path",
        "manifest-variable": "odd-variable",
        "level-new": "leveled",
        "level-odd": "odd_level",
        "facet-unknown": "odd_facet",
        "probe-raises": "raising",
        "probe-hangs": "hanging",
        "probe-crashes": "crashing",
        "probe-type": "wrong_probe",
        "probe-score": "boasting",
    }
)
"""The platform or plugin that is asked for, by `tessera plan --platform`."""

OPENED: Mapping[str, list[str]] = MappingProxyType(
    {
        "path-module": ["--platform", "fixture_nowhere.platform:Platform"],
        "path-name": ["--platform", "lost"],
        "path-form": ["--platform", "a chip:Platform"],
        "abstract": ["--platform", "partial"],
        "no-platform": ["--platform", "no-platform"],
        "case-unknown": ["--platform", "served", "--case", "nothing"],
    }
)
"""Flags of `tessera conformance`."""


def run(site: Site, *commands: list[str], seconds: float = 10.0, **variables: str) -> list[Said]:
    """Each command in turn, in one process. seconds: that a probe has."""
    asked = [str(seconds), json.dumps(commands)]
    done = site.run(*asked, program=RUNS, seconds=280, **variables)
    assert done.returncode == 0, done.stderr
    return [(code, said) for code, said in json.loads(done.stdout.splitlines()[-1])]


def _plan(*installed: str, name: str = "", **variables: str) -> Produce:
    asked = ["plan", *(["--platform", name] if name else [])]
    return lambda site: run(site.install(*installed), asked, **variables)[0]


def _serve(*installed: str, flags: Sequence[str] = ()) -> Produce:
    return lambda site: run(site.install(*installed), ["serve", "--port", "0", *flags])[0]


def _program(text: str, *installed: str) -> Produce:
    def produce(site: Site) -> Said:
        code, said = json.loads(site.install(*installed).run(program=text, seconds=120).stdout.splitlines()[-1])
        return code, said

    return produce


def _with_api(expression: str, *installed: str) -> Produce:
    return _program(API.replace("EXPRESSION", expression), *installed)


def _without_torch(site: Site) -> Said:
    """In a site that has all the libraries but torch."""
    libraries = site.folder / "libraries"
    libraries.mkdir()
    for entry in site.libraries.iterdir():
        if not entry.name.startswith("torch"):
            (libraries / entry.name).symlink_to(entry)
    bare = Site(_made(site.folder / "plugins"), libraries, site.wheel)
    return run(bare.install("needs_torch"), ["plan", "--platform", "needs_torch"])[0]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


ALONE: Mapping[str, Produce] = MappingProxyType(
    {
        "nothing-installed": _plan(),
        "disabled": _plan("good", "absent", name="good", TESSERA_DISABLE_PLUGINS="good"),
        "disabled-all": _plan("good", TESSERA_LOAD_PLUGINS=""),
        "two-tied": _serve("good", "rival"),
        "same-name": _plan("good", "namesake", name="good"),
        "cannot-run": _plan("absent"),
        "one-failed": _serve("host", "raising"),
        "torch-missing": _without_torch,
        "removed-hook": _with_api("[p.error for p in load_plugins(api=api) if p.error][0]", "unknown_hook"),
        "level-old": _with_api("discover(load_plugins(api=api))[0].error", "leveled"),
        "removed-member": _with_api("load_platform('fixture_partial:Misspelt', api=api)", "partial"),
        "unknown-member": _program(WARNING.replace("PATH", "fixture_partial:Misspelt"), "partial"),
        "own-member": _program(WARNING.replace("PATH", "fixture_partial:Chatty"), "partial"),
        "no-fallback": _serve("served", flags=["--no-fallback"]),
        "scheme-refused": _serve(
            "served", flags=["--platform", "fixture_served_platform:Refusing", "--quantization", "int4"]
        ),
        "routes-unknown": _program(
            API.replace("EXPRESSION", "named_routes(load_plugins(), ['echo'])")
        ),
        "name-taken": _with_api("load_registry()", "claiming"),
        "table-level": _with_api("load_registry()", "ahead"),
    }
)  # fmt: skip
"""Each in a site of its own."""
