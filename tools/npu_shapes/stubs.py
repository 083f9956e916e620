"""Libraries in CANN's place, made here of symbols alone: each function does nothing and returns 0."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import torch

_SYSTEM_LIBRARIES = (
    "libc.so.6",
    "libm.so.6",
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
)
_PYTHON = ("Py", "_Py", "__tls_get_addr")
_DATA = ("_ZTV", "_ZTI", "_ZTS")  # tables of classes, which are not functions

ANSWERS = """\
int aclrtGetDeviceCount(unsigned *count) { *count = 1; return 0; }
int aclrtGetDevice(int *device) { *device = 0; return 0; }
const char *aclrtGetSocName(void) { return "Ascend910B1"; }
"""
"""The functions whose answer decides whether torch_npu can be imported."""


def make_stubs(package: Path, into: Path) -> None:
    """Libraries in place of those that a package's libraries ask for and that are not here. The first has all missing
    functions, the others are empty. Raises CalledProcessError."""
    libraries = sorted(package.rglob("*.so*"))
    known = [*libraries, *(Path(torch.__file__).parent / "lib").glob("*.so*"), *_of_the_system()]
    defined = {symbol for library in known for symbol in _symbols(library, "--defined-only")}
    missing = sorted({symbol for library in libraries for symbol in _symbols(library, "--undefined-only")} - defined)
    wanted = {name for library in libraries for name in _needed(library)}
    absent = sorted(wanted - {library.name for library in known})
    into.mkdir(exist_ok=True)
    (into / "answers.c").write_text(ANSWERS, encoding="utf-8")
    (into / "stubs.S").write_text(_assembly(missing), encoding="utf-8")
    sources = [str(into / name) for name in ("answers.c", "stubs.S")]
    for number, name in enumerate(absent):
        own = sources if number == 0 else ["-xc", "/dev/null"]
        command = ["gcc", "-shared", "-fPIC", "-o", str(into / name), f"-Wl,-soname,{name}", *own]
        subprocess.run(command, check=True)


def _assembly(symbols: list[str]) -> str:
    answered = set(re.findall(r"(\w+)\(", ANSWERS))
    lines = [".text"]
    lines += [
        f".globl {name}\n.type {name},@function\n{name}: xorl %eax, %eax\nret"
        for name in symbols
        if name not in answered and not name.startswith(_DATA)
    ]
    lines.append(".data\n.balign 16")
    lines += [
        f".globl {name}\n.type {name},@object\n.size {name},256\n{name}: .zero 256"
        for name in symbols
        if name.startswith(_DATA)
    ]
    return "\n".join([*lines, '.section .note.GNU-stack,"",@progbits', ""])


def _symbols(library: Path, kind: str) -> Iterator[str]:
    """Names without versions; of the undefined ones those that must be there, and none of Python's."""
    listed = subprocess.run(["nm", "-D", kind, str(library)], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        *_, sort, name = line.split()
        if (kind == "--defined-only" or sort == "U") and not name.startswith(_PYTHON):
            yield name.partition("@")[0]


def _needed(library: Path) -> list[str]:
    """The libraries that one asks for, by name."""
    said = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    return re.findall(r"NEEDED.*\[([^\]]+)\]", said)


def _of_the_system() -> list[Path]:
    """The C and C++ libraries, as the compiler finds them."""
    asked = [["gcc", f"-print-file-name={name}"] for name in (*_SYSTEM_LIBRARIES, "ld-linux-x86-64.so.2")]
    said = (subprocess.run(one, capture_output=True, text=True, check=True).stdout.strip() for one in asked)
    return [Path(path).parent / Path(path).name for path in said if Path(path).is_absolute()]
