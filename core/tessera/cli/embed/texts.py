"""The texts to embed: arguments, or the lines of a file or of standard input."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from tessera.errors import ConfigError, RequestError


def read_texts(arguments: Sequence[str], file: str | None, stdin: TextIO) -> list[str]:
    """The texts in order. Raises ConfigError, and RequestError if there are none or one is empty."""
    if arguments and file is not None:
        raise ConfigError("Give texts or a --file with one on each line, not both.")
    texts = list(arguments)
    if file is not None:
        texts = _lines_of(file)
    elif not texts and not stdin.isatty():
        texts = stdin.read().splitlines()
    if not texts:
        raise RequestError("There is no input: give texts, a --file, or pipe a text on each line to stdin.")
    for number, text in enumerate(texts, 1):
        if not text.strip():
            raise RequestError(f"Text {number} of {len(texts)} is empty; remove it.")
    # A terminal may pass bytes that are not UTF-8.
    return [text.encode("utf-8", "replace").decode() for text in texts]


def _lines_of(file: str) -> list[str]:
    try:
        return Path(file).expanduser().read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise ConfigError(f"--file '{file}' cannot be read: {error.strerror}.") from error
