"""The library of kernels for another processor, called in an emulator: as ctypes.CDLL is for one of this processor.

The process that calls it has another heap preloaded (tests/processors/heap.cpp), which the emulated process shares, so
that every pointer means the same to both."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1] / "processors"
REQUEST = struct.Struct("64s10qi4x")
RESULT = struct.Struct("q64s")
WHOLE = 10
"""The most arguments; as in runner.cpp."""


def build_heap(folder: Path) -> Path:
    return _compiled("g++", folder / "heap.so", HERE / "heap.cpp", "-shared", "-fPIC")


def build_runner(compiler: str, folder: Path) -> Path:
    return _compiled(compiler, folder / "runner", HERE / "runner.cpp", "-ldl")


def _compiled(compiler: str, made: Path, source: Path, *flags: str) -> Path:
    subprocess.run([compiler, "-O2", "-std=c++17", "-o", made, source, *flags], check=True)
    return made


def heap_variables(heap: Path) -> Mapping[str, str]:
    """Environment of a process that calls libraries. Small objects of Python too are on its heap."""
    return {"LD_PRELOAD": str(heap), "PYTHONMALLOC": "malloc"}


class Library:
    """command: the emulator with its flags, the runner and the library."""

    def __init__(self, command: Sequence[str]) -> None:
        heap = ctypes.c_int.in_dll(ctypes.CDLL(None), "tessera_shared_heap").value
        own = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        self.process = subprocess.Popen(
            [*command, str(heap)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[heap], env=own
        )

    def __enter__(self) -> Library:
        return self

    def __exit__(self, *raised: object) -> None:
        self.process.communicate()

    def __getattr__(self, name: str) -> Function:
        function = Function(self, name)
        setattr(self, name, function)
        return function

    def call(self, name: str, whole: Sequence[int], *, gives_text: bool) -> tuple[int, bytes]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        padded = [*whole, *[0] * (WHOLE - len(whole))]
        self.process.stdin.write(REQUEST.pack(name.encode(), *padded, gives_text))
        self.process.stdin.flush()
        answer = self.process.stdout.read(RESULT.size)
        if len(answer) < RESULT.size:
            raise RuntimeError(f"{name}: the emulated process ended with {self.process.wait()}")
        result, text = RESULT.unpack(answer)
        return result, text.rstrip(b"\0")


@dataclass
class Function:
    library: Library
    name: str
    argtypes: Sequence[Any] = ()
    restype: Any = None

    def __call__(self, *arguments: Any) -> Any:
        assert len(arguments) == len(self.argtypes)
        whole = [_as_whole(argument) for argument in arguments]
        gives_text = self.restype is ctypes.c_char_p
        result, text = self.library.call(self.name, whole, gives_text=gives_text)
        if gives_text:
            return text if result else None
        return None if self.restype is None else self.restype(result).value


def _as_whole(argument: Any) -> int:
    """A number, or the address of what is passed by its address."""
    if argument is None:
        return 0
    if isinstance(argument, int):
        return argument
    if isinstance(argument, bytes):
        return ctypes.cast(argument, ctypes.c_void_p).value or 0
    return ctypes.addressof(getattr(argument, "_obj", argument))
