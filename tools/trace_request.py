"""Shows how much code there is to read: every file that one chat request enters, by process, and the largest files and
functions. `python -m tools.trace_request` serves the bundled model, sends a warm-up, then traces one request; `--write`
puts the files into ARCHITECTURE.md.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # it has no types

from tools.checks.sources import python_sources
from tools.local_server import ROOT, TESSERA, free_port, started

TOKENS = 4
PAGE = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- one chat: python -m tools.trace_request --write -->\n", "<!-- end of one chat -->"
SERVED_BY = {"the front": "front", "the text worker": "text worker", "the engine": "engine"}
"""Processes, and what the page calls them."""
BY_THE_CLOCK = ("core/tessera/log.py",)
"""What is entered when a log line is due, which is not the request's doing."""

# Python imports this module when a process starts. SIGUSR2 starts a trace of the main thread, and the next one ends it.
# entered: files in the order of first entry, each with the number of calls into it from other files.
_TRACER = """
import json, os, signal, sys

def _toggle(*_):
    if sys.getprofile() is None:
        entered = _toggle.entered = {}
        def watch(frame, event, _):
            if event == "call":
                name, back = frame.f_code.co_filename, frame.f_back
                caller = None if back is None else back.f_code.co_filename
                if name != caller or name not in entered:
                    entered[name] = entered.get(name, 0) + 1
        sys.setprofile(watch)
    else:
        sys.setprofile(None)
        path = os.path.join(os.environ["TESSERA_TRACE_FOLDER"], f"{os.getpid()}.json")
        with open(path + ".part", "w") as file:
            json.dump({"command": sys.orig_argv, "entered": _toggle.entered}, file)
        os.replace(path + ".part", path)

signal.signal(signal.SIGUSR2, _toggle)
"""


@dataclass(frozen=True)
class Entered:
    """A file that a request entered, by its path in the repository. calls: number of calls from other files."""

    name: str
    lines: int
    calls: int


@dataclass(frozen=True)
class Sized:
    """A file or function with its number of physical lines, including blank lines and comments."""

    lines: int
    name: str


def trace(idle_seconds: float = 0.0) -> tuple[Mapping[str, list[Entered]], Mapping[str, list[Entered]]]:
    """The files of this repository that one streamed chat of TOKENS tokens enters, by process, in the order of first
    entry; and those that timers enter in idle_seconds without a request."""
    with tempfile.TemporaryDirectory(prefix="tessera-trace-") as folder:
        (Path(folder) / "sitecustomize.py").write_text(_TRACER, encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": folder, "TESSERA_TRACE_FOLDER": folder}
        port = free_port()
        command = (*TESSERA, "--port", str(port), "--max-num-seqs", "4")
        with (
            (Path(folder) / "log").open("wb") as log,
            started(command, port, log=log, environment=environment) as server,
        ):
            url = f"http://127.0.0.1:{port}"
            _chat(url)
            processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
            idle: Mapping[str, list[Entered]] = {}
            if idle_seconds > 0:
                _toggle(processes)
                time.sleep(idle_seconds)
                _toggle(processes)
                idle = _read(Path(folder), len(processes))
            _toggle(processes)
            _chat(url)
            _toggle(processes)
            return _read(Path(folder), len(processes)), idle


def _chat(url: str) -> None:
    body = {
        "model": "tessera-demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": TOKENS,
        "stream": True, "ignore_eos": True,
    }  # fmt: skip
    request = urllib.request.Request(  # noqa: S310 - likewise
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        answer.read()


def _toggle(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        process.send_signal(signal.SIGUSR2)
    time.sleep(0.5)


def _read(folder: Path, number: int) -> dict[str, list[Entered]]:
    deadline = time.monotonic() + 10
    while len(found := sorted(folder.glob("*.json"), key=lambda path: int(path.stem))) < number:
        if time.monotonic() > deadline:
            break  # a helper process of the interpreter, such as a resource tracker, may not answer
        time.sleep(0.1)
    traces = [json.loads(path.read_text(encoding="utf-8")) for path in found]
    for path in found:
        path.unlink()
    # The engine's guard has the same title as the engine, and enters nothing.
    return {_title(one["command"]): files for one in traces if (files := list(_of_repository(one["entered"])))}


def _title(command: Sequence[str]) -> str:
    module = next((command[at + 1] for at, word in enumerate(command[:-1]) if word == "-m"), "")
    return {"tessera.cli": "the front", "tessera.text": "the text worker", "tessera.engine": "the engine"}.get(
        module, " ".join(command)
    )


def _of_repository(entered: Mapping[str, int]) -> Iterator[Entered]:
    for name, calls in entered.items():
        path = Path(name)
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ("core", "platforms"):
            own = str(path.relative_to(ROOT))
            if own not in BY_THE_CLOCK:
                yield Entered(own, count_lines(path), calls)


def phrase(path: Path) -> str:
    """The first sentence of a module's docstring, shortened to one line."""
    first = _first_paragraph(path)
    return first if len(first) <= 100 else f"{first[:97]}..."


def _first_paragraph(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.partition("\n\n")[0].split())


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def files_by_size(root: Path) -> list[Sized]:
    """Core's Python files, largest first."""
    sizes = [Sized(len(source.text.splitlines()), source.name) for source in python_sources(root, "core/**/*.py")]
    return sorted(sizes, key=lambda sized: (-sized.lines, sized.name))


def functions_by_size(root: Path) -> list[Sized]:
    """Core's functions and methods, including decorators, largest first."""
    sizes = [
        Sized(lines, f"{source.name}:{line} {name}")
        for source in python_sources(root, "core/**/*.py")
        for name, line, lines in _functions(source.tree, "")
    ]
    return sorted(sizes, key=lambda sized: (-sized.lines, sized.name))


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, int, int]]:
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{prefix}{child.name}."
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
            yield f"{prefix}{child.name}", first, (child.end_lineno or first) - first + 1
        yield from _functions(child, inner)


def as_written(text: str) -> str:
    """The part of ARCHITECTURE.md that names the files."""
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)]


def render(processes: Mapping[str, Sequence[Entered]]) -> str:
    """The files as ARCHITECTURE.md has them: numbered in the order of first entry, by process."""
    lines, number = [], 0
    for title, name in SERVED_BY.items():
        files = processes[title]
        lines.append(f"\nThe {name}, {len(files)} files:\n")
        for one in files:
            number += 1
            lines.append(f"{number}. `{short(one.name)}`: {_first_clause(ROOT / one.name)}")
    return "\n".join(lines) + "\n\n"


def _first_clause(path: Path) -> str:
    return re.split(r"[.:;](?: |$)", _first_paragraph(path))[0]


def short(name: str) -> str:
    """A path as the page shows it: within core/tessera, or within platforms."""
    return name.removeprefix("core/tessera/")


def names(part: str) -> dict[str, set[str]]:
    """The files that a part of the page names, by process."""
    found: dict[str, set[str]] = {}
    for line in part.splitlines():
        if title := re.fullmatch(r"The (.*), \d+ files:", line):
            found[title[1]] = set()
        elif file := re.match(r"\d+\. `([^`]+)`", line):
            found[list(found)[-1]].add(file[1])
    return found


def print_request(processes: Mapping[str, Sequence[Entered]]) -> None:
    every = [one for files in processes.values() for one in files]
    width = max(len(one.name) for one in every)
    print(f"One streamed chat of {TOKENS} tokens: lines, calls from other files, file")
    for title, files in processes.items():
        print(f"\n{title}: {len(files)} files")
        for one in files:
            print(f"{one.lines:6} {one.calls:6}  {one.name:<{width}}  {phrase(ROOT / one.name)}")
    names = {one.name: one.lines for one in every}
    calls = sum(one.calls for one in every)
    print(f"\n{sum(names.values())} lines in {len(names)} files, {calls} calls from one of them to another")


def print_largest(title: str, sized: Sequence[Sized], top: int) -> None:
    print(f"\nThe largest {min(top, len(sized))} of core's {len(sized)} {title}")
    for entry in sized[:top]:
        print(f"{entry.lines:6}  {entry.name}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--top", type=int, default=10, help="how many of the largest files and functions to print")
    parser.add_argument("--json", type=Path, help="also write the files of the request here")
    parser.add_argument("--write", action="store_true", help="renew the list of files in ARCHITECTURE.md")
    arguments = parser.parse_args()
    processes, _ = trace()
    if arguments.write:
        before, _, after = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}{render(processes)}{after[after.index(END) :]}", encoding="utf-8")
    print_request(processes)
    if arguments.json is not None:
        plain: Any = {title: [vars(one) for one in files] for title, files in processes.items()}
        arguments.json.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    print_largest("files", files_by_size(ROOT), arguments.top)
    print_largest("functions", functions_by_size(ROOT), arguments.top)
    return 0


if __name__ == "__main__":
    sys.exit(main())
