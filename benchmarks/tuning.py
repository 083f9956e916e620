"""How a peer's process is configured before it starts, and which settings this machine cannot provide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes.util import find_library
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.task import FILE, Task


@dataclass(frozen=True)
class Tuning:
    """variables: environment variables. missing: what its documentation asks for but this machine lacks."""

    variables: Mapping[str, str] = field(default_factory=dict)
    missing: Sequence[str] = ()


@dataclass(frozen=True)
class Conversion:
    """The format that a peer loads instead of the model's folder. name: of the file or folder that module writes;
    module is called with the source, the target and the form. source: another conversion, or None for the model's
    folder."""

    name: str
    module: str
    form: str
    source: Conversion | None = None


def with_tokenizer(task: Task) -> Conversion | None:
    """The model's folder with a tokenizer, which servers require; None if no conversion is needed."""
    if task.part != "http" or task.precision == FILE or (Path(task.model) / "tokenizer.json").exists():
        return None
    return Conversion(f"{Path(task.model).name}.tokenizer", "benchmarks.peers.byte_tokenizer", "")


def preload(environment: Path, *, system: Sequence[str], bundled: Sequence[str]) -> tuple[str, list[str]]:
    """A value for LD_PRELOAD, and the libraries that were not found. system: names for the linker. bundled: files in
    the peer's environment."""
    found: list[str] = []
    missing: list[str] = []
    for name in system:
        library = find_library(name)
        (found if library else missing).append(library or f"lib{name}")
    for name in bundled:
        places = sorted(environment.glob(f"lib/{name}")) or sorted(environment.glob(f"lib/**/{name}"))
        (found if places else missing).append(str(places[0]) if places else name)
    return ":".join(found), [f"{name} is not there to be loaded first" for name in missing]


def ranges(cores: Sequence[int]) -> str:
    """Formats core numbers as ranges: 0,1,2,5 as 0-2,5."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
