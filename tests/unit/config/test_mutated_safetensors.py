"""A safetensors file that is broken anywhere is read to its end, or refused in one line."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import numpy as np
import pytest

from tessera.config.model_folder import open_weights
from tessera.errors import ModelError

HEADER = json.dumps(
    {
        "__metadata__": {"format": "pt"},
        "a.weight": {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, 48]},
        "a.weight_scale": {"dtype": "F16", "shape": [4, 1], "data_offsets": [48, 56]},
        "b": {"dtype": "I32", "shape": [2], "data_offsets": [56, 64]},
    }
).encode()
GOOD = struct.pack("<Q", len(HEADER)) + HEADER + np.arange(64, dtype=np.uint8).tobytes()
PIECES = (
    b"[",
    b"{",
    b'"',
    b"-1",
    b"1e99",
    b"18446744073709551616",
    b"[" * 200,
    b'{"a":' * 100,
    b"\\ud800",
    b"\xff",
    b"null",
)


def mutated(source: random.Random) -> bytes:
    """A good file with a few changes: bits, lengths, pieces of JSON, a part taken out or repeated, an end cut off."""
    content = bytearray(GOOD)
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(content))
        kind = source.randrange(6)
        if kind == 0:
            content[at] ^= 1 << source.randrange(8)
        elif kind == 1:
            content[0:8] = struct.pack("<Q", source.choice((0, 1, len(content), 2**31, 2**63, 2**64 - 1)))
        elif kind == 2:
            content[at:at] = source.choice(PIECES)
        elif kind == 3:
            del content[at : at + source.randint(1, 40)]
        elif kind == 4:
            content[at:at] = content[at : at + source.randint(1, 40)]
        else:
            del content[at + len(content) // 2 :]
    return bytes(content) or b"\0"


def open_mutated(folder: Path, seed: int, count: int) -> int:
    """How many of the files are refused. All others can be read to their last byte."""
    source = random.Random(seed)
    messages: list[str] = []
    for number in range(count):
        path = folder / f"{number}.safetensors"  # one that is overwritten might be written to the disk
        path.write_bytes(mutated(source))
        try:
            opened = open_weights(folder, path.name, "np")
        except ModelError as error:
            messages.append(error.message)
        else:
            for name in opened.keys():  # noqa: SIM118 - not a dict
                stored = opened.get_slice(name)
                assert stored[...].size == np.prod(stored.get_shape(), dtype=np.int64)
        path.unlink()
    assert all("cannot be read (" in message and message.isprintable() for message in messages)
    return len(messages)


def test_the_unchanged_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(GOOD)
    assert sorted(open_weights(tmp_path, "model.safetensors", "np").keys()) == ["a.weight", "a.weight_scale", "b"]


def test_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    assert 1000 < open_mutated(tmp_path, 1, 3000) <= 3000


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_million_mutated_files_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    assert 30_000 < open_mutated(tmp_path, seed, 100_000) <= 100_000
