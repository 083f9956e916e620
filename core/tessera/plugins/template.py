"""The package that `tessera plugin new` writes, and the count of a package's hand-written lines: non-blank lines of .py
files, excluding comments, that the template would not generate from the answers in its pyproject.toml
([tool.tessera.generated]). A changed line counts once, a removed one not at all."""

from __future__ import annotations

import io
import re
import tempfile
import tokenize
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Literal

import tessera
from tessera._version import __version__
from tessera.errors import ConfigError

Depth = Literal["op", "runner"]
DTYPES = ("bfloat16", "float16", "float32")
RUNNER_DTYPE = "float32"
TAKEN = ("cpu", "llm", "reference", "strict")
_EXTRA = "it is written with copier, which is not installed: pip install 'tessera-llm[plugin]'."
_NAME = re.compile(r"[a-z][a-z0-9]*")
_DEVICE = re.compile(r"[a-z][a-z0-9_]*")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_LONGEST = 24


@dataclass(frozen=True)
class TemplateAnswers:
    """device: torch's name for it; registers: the module that registers it with torch, "" if torch has it built in.
    Both are for op depth only. dtypes: the preferred one first. Raises ConfigError for an invalid answer."""

    name: str
    depth: Depth
    device: str
    registers: str
    dtypes: tuple[str, ...]

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.depth == "op":
            check_device(self.device)
            check_module(self.registers)
        check_dtypes(self.dtypes, self.depth)


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise ConfigError(
            f"a platform's name is up to {_LONGEST} lower-case letters and digits, a letter first, not '{name[:80]}'."
        )
    if name in TAKEN:
        raise ConfigError(f"the name '{name}' is taken by a platform of Tessera's own; choose another.")


def check_device(device: str) -> None:
    if not _DEVICE.fullmatch(device) or len(device) > _LONGEST:
        raise ConfigError(
            f"torch's name of a device is up to {_LONGEST} lower-case letters, digits and _, not '{device[:80]}'."
        )


def check_module(name: str) -> None:
    if name and not _MODULE.fullmatch(name):
        raise ConfigError(f"what registers the device is a module such as torch_mychip, not '{name[:80]}'.")


def check_dtypes(dtypes: tuple[str, ...], depth: Depth) -> None:
    if depth == "runner" and dtypes != (RUNNER_DTYPE,):
        raise ConfigError(f"the runner that is generated computes in {RUNNER_DTYPE} alone; widen it afterwards.")
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise ConfigError(f"there is no dtype '{dtype[:80]}'; choose from {', '.join(DTYPES)}.")
    if not dtypes or len(set(dtypes)) < len(dtypes):
        raise ConfigError("name each dtype once, the preferred first, and one at least.")


def template_folder() -> Path:
    """The template's folder: next to core's modules if installed from a wheel, otherwise at the root of the source
    tree."""
    package = Path(tessera.__file__).parent
    installed = package / "plugins_template"
    return installed if installed.is_dir() else package.parents[1] / "plugins_template"


def generate(answers: TemplateAnswers, folder: Path) -> None:
    """Writes the package into a folder that is empty or does not exist. Raises ConfigError."""
    try:
        from copier import run_copy
    except ModuleNotFoundError:
        raise ConfigError(_EXTRA) from None
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"'{folder}' exists already; remove it, or choose another place with --into.")
    data = {**asdict(answers), "dtypes": ",".join(answers.dtypes), "version": __version__}
    try:
        run_copy(str(template_folder()), folder, data=data, defaults=True, quiet=True)
    except OSError as error:
        raise ConfigError(f"'{folder}' cannot be written: {error.strerror}.") from None


_PASSED_OVER = {"build", "dist", "__pycache__"}


def answers_of(folder: Path) -> tuple[TemplateAnswers, str]:
    """The answers given to `tessera plugin new`, and the core version that wrote the package. Raises ConfigError."""
    try:
        text = (folder / "pyproject.toml").read_text(encoding="utf-8")
        said = tomllib.loads(text)["tool"]["tessera"]["generated"]
        dtypes, version = tuple(said["dtypes"].split(",")), str(said["version"])
        device, registers = said.get("device", ""), said.get("registers", "")
        return TemplateAnswers(said["name"], said["depth"], device, registers, dtypes), version
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise ConfigError(
            f"'{folder}' has no [tool.tessera.generated] in a pyproject.toml; give the folder that "
            "`tessera plugin new` wrote."
        ) from None


def count_written_lines(folder: Path) -> dict[str, int]:
    """Number of hand-written lines by file, without files that have none. Raises ConfigError."""
    answers, _ = answers_of(folder)
    with tempfile.TemporaryDirectory(prefix="tessera-plugin-lines-") as place:
        generated = Path(place, "package")
        generate(answers, generated)
        counts = {name: _added(_code(generated / name), _code(folder / name)) for name in _python_files(folder)}
    return {name: lines for name, lines in counts.items() if lines}


def _python_files(folder: Path) -> list[str]:
    names = (path.relative_to(folder) for path in sorted(folder.rglob("*.py")))
    return [
        name.as_posix()
        for name in names
        if not any(part in _PASSED_OVER or part.startswith(".") for part in name.parts)
    ]


def _code(path: Path) -> list[str]:
    """The lines that are neither blank nor only a comment, with trailing comments removed."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return [line.rstrip() for line in lines if line.strip()]


def _added(before: Sequence[str], after: Sequence[str]) -> int:
    same = sum(block.size for block in SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks())
    return len(after) - same
