"""Lines of a plugin's package that its author wrote.

Non-blank lines of .py files, comments aside, that are not in the package as `tessera plugin new` writes it now from the
answers in its pyproject.toml ([tool.tessera.generated]). Nothing depends on a history of commits, so it counts in
copies and within other repositories too. A line that was changed counts once, one that was removed not at all.
"""

from __future__ import annotations

import io
import tempfile
import tokenize
import tomllib
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

from tessera.errors import ConfigError
from tessera.plugins.template import Answers, generate

_PASSED_OVER = {"build", "dist", "__pycache__"}


def answers_of(folder: Path) -> tuple[Answers, str]:
    """What `tessera plugin new` was told, and the version of core that wrote it. Raises ConfigError."""
    try:
        text = (folder / "pyproject.toml").read_text(encoding="utf-8")
        said = tomllib.loads(text)["tool"]["tessera"]["generated"]
        dtypes, version = tuple(said["dtypes"].split(",")), str(said["version"])
        return Answers(said["name"], said["depth"], said.get("device", ""), said.get("registers", ""), dtypes), version
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise ConfigError(
            f"'{folder}' has no [tool.tessera.generated] in a pyproject.toml; give the folder that "
            "`tessera plugin new` wrote."
        ) from None


def count(folder: Path) -> dict[str, int]:
    """Lines written by hand, by file; files without any are left out. Raises ConfigError."""
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
    """Lines that are neither blank nor comments alone, without comments behind them."""
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
