"""Imports a plugin's module and watches what it does: `python -m tessera.plugins.check.child FOLDER MODULE` writes a
ManifestReport as JSON."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import threading
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import msgspec

from tessera.platform import Manifest
from tessera.plugins.check.rules import ManifestReport, Seen, Told, relative_name
from tessera.plugins.loading import REFUSED, Plugin, Plugins, describe

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_EVENTS = {
    "os.putenv": "changes the environment",
    "os.unsetenv": "changes the environment",
    "subprocess.Popen": "starts a process",
    "os.system": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.fork": "starts a process",
    "os.mkdir": "makes a folder",
    "os.remove": "removes a file",
    "os.rename": "moves a file",
    "os.chdir": "changes the working directory",
    "socket.connect": "opens a connection",
    "socket.bind": "opens a port",
    "ctypes.dlopen": "opens a shared library",
}


class Watch:
    """Records events, with the line of the plugin's own code that caused each."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.on = folder, False
        self.seen: list[Seen] = []

    def note(self, what: str) -> None:
        frame = inspect.currentframe()
        while frame is not None:
            file = relative_name(frame.f_code.co_filename, self.folder)
            if file is not None:
                seen = Seen(file, frame.f_lineno, what)
                if seen not in self.seen:
                    self.seen.append(seen)
                return
            frame = frame.f_back

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING:
            self.note("writes a file")
        elif event in _EVENTS:
            self.note(_EVENTS[event])

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if self.on and name.partition(".")[0] in REFUSED:
            self.note(f"imports {name}")
            raise ModuleNotFoundError(f"{name} is not for a plugin's module to import", name=name)
        return None

    def write(self, text: str) -> int:
        if self.on:
            self.note("prints")
        return len(text)

    def flush(self) -> None:
        return None


def main(folder: str, module: str) -> None:
    """Imports the module and writes the ManifestReport to the original stdout. Anything printed is kept out of it."""
    answer_to = os.dup(1)
    os.dup2(2, 1)
    sys.dont_write_bytecode = True
    sys.path.insert(0, folder)
    report = _watched(Watch(Path(folder)), module)
    with os.fdopen(answer_to, "wb") as file:
        file.write(msgspec.json.encode(report))
    os._exit(0)


def _watched(watch: Watch, module: str) -> ManifestReport:
    sys.addaudithook(watch.audit)
    sys.meta_path.insert(0, watch)
    _note_threads(watch)
    out, err = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = watch  # has enough of a text stream's methods to print to
    report = ManifestReport(seen=watch.seen)
    begin = time.perf_counter()
    watch.on = True
    try:
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # reported to the parent, as text
        report.error = f"cannot be imported: {describe(error)}"
        return report
    finally:
        watch.on = False
        report.seconds = time.perf_counter() - begin
        sys.stdout, sys.stderr = out, err
    _ask(report, watch, Plugin(module, module, "", module, imported))
    return report


def _note_threads(watch: Watch) -> None:
    """Records threads by patching Thread.start, since not every Python has an audit event for them."""
    start = threading.Thread.start

    def noted(self: threading.Thread) -> None:
        if watch.on:
            watch.note("starts a thread")
        start(self)

    threading.Thread.start = noted  # type: ignore[method-assign]


def _ask(report: ManifestReport, watch: Watch, plugin: Plugin) -> None:
    """Collects the manifests, even of a plugin that core refuses, since they may be wrong as well."""
    plugins = Plugins()
    plugins.add(plugin)
    (kept,) = [one for one in plugins if one.entry == plugin.entry]
    report.error = kept.error or ""
    hook = getattr(plugin.module, "platforms", None)
    watch.on = True
    try:
        manifests = hook() if callable(hook) else ()
    except (Exception, SystemExit) as error:  # noqa: BLE001  # reported to the parent, as text
        report.error = report.error or f"its hook platforms failed: {describe(error)}"
        return
    finally:
        watch.on = False
    for one in manifests if isinstance(manifests, list | tuple) else ():
        if isinstance(one, Manifest):
            report.manifests.append(Told(str(one.name), str(one.probe), dict(one.api_levels)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
