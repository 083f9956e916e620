"""A GGUF file that is broken, odd or hostile is refused at once and in one line, in little memory."""

from __future__ import annotations

import os
import random
import resource
import sys
import time
from pathlib import Path

import pytest

from tessera.errors import ModelError
from tessera.gguf.file import GgufFile
from tests.unit.gguf.raw import ARRAY, F32, GOOD, TEXT, U8, U32, U64, gguf_file, key, tensor, text, u32, u64

SECONDS = 20.0
"""Of the processor: what is not refused at once takes minutes."""
MEMORY = 200 * 10**6
HUGE = 2**63
AGAIN = "; download it again."
INVALID = "is not a valid GGUF file: "
CUT = "is truncated: it ends within its header" + AGAIN
WIDE = "🎉" + "x" * 19  # takes 160 bytes in memory
UNKNOWN = ", which is not supported; use a file of the model in another one, such as Q4_K_M or Q8_0."

# Content, made when it is needed if it is large, and what is said of it.
FILES = {
    "nothing in it": (b"", "is empty" + AGAIN),
    "another kind of file": (b"PK\3\4" + bytes(99), "is not a GGUF file, although it is named like one" + AGAIN),
    "three bytes": (b"GGU", "is not a GGUF file, although it is named like one" + AGAIN),
    "the magic alone": (b"GGUF", CUT),
    "version 1": (
        gguf_file(version=1),
        "is in version 1 of GGUF, which is not supported; convert the model again with a current llama.cpp.",
    ),
    "a later version": (
        gguf_file(version=4),
        "is in version 4 of GGUF, which is not supported; use a newer Tessera.",
    ),
    "big-endian": (
        b"GGUF\0\0\0\3" + bytes(16),
        "is a big-endian GGUF file, which is not supported; convert it with gguf-convert-endian of the gguf package.",
    ),
    "no counts": (gguf_file()[:20], CUT),
    # ---- counts ----
    "10^9 keys": (
        gguf_file(counts=(0, 10**9)),
        INVALID + "it has 1,000,000,000 keys, and no model has more than 65,536" + AGAIN,
    ),
    "10^9 tensors": (
        gguf_file(counts=(10**9, 0)),
        INVALID + "it has 1,000,000,000 tensors, and no model has more than 65,536" + AGAIN,
    ),
    "2^64 - 1 keys": (
        gguf_file(counts=(0, 2**64 - 1)),
        INVALID + f"it has {2**64 - 1:,} keys, and no model has more than 65,536" + AGAIN,
    ),
    "more keys than bytes": (
        gguf_file(counts=(0, 60_000)),
        "is truncated: its 24 bytes do not hold 60,000 keys" + AGAIN,
    ),
    "more tensors than bytes": (
        gguf_file(counts=(60_000, 0)),
        "is truncated: its 24 bytes do not hold 60,000 tensors" + AGAIN,
    ),
    "fewer keys than said": (gguf_file([key("k", U8, b"\1"), bytes(12)]), CUT),
    # ---- keys ----
    "a name of 2^63 bytes": (
        gguf_file([u64(HUGE) + bytes(20)]),
        "is truncated: the name of a key goes on beyond its 52 bytes" + AGAIN,
    ),
    "a name of 2^64 - 1 bytes": (
        gguf_file([u64(2**64 - 1) + bytes(20)]),
        "is truncated: the name of a key goes on beyond its 52 bytes" + AGAIN,
    ),
    "a text of 2^63 bytes": (
        gguf_file([key("k", TEXT, u64(HUGE))]),
        "is truncated: key 'k' goes on beyond its 45 bytes" + AGAIN,
    ),
    "too much text": (
        lambda: gguf_file([key("k", TEXT, text("x" * (24 * 2**20)))]),
        INVALID + "key 'k' makes more than 24 MiB of text, and no model has so much" + AGAIN,
    ),
    "too much text in all": (
        lambda: gguf_file([key(f"k{i}", TEXT, text("🎉" * 2**20)) for i in range(6)]),
        INVALID + "key 'k5' makes more than 24 MiB of text, and no model has so much" + AGAIN,
    ),
    "a name that is not UTF-8": (
        gguf_file([key(b"k\xff", U8, b"\1")]),
        INVALID + "the name of a key is not UTF-8 text" + AGAIN,
    ),
    "half of a surrogate pair": (
        gguf_file([key("k", TEXT, text(b"\xed\xa0\x80"))]),
        INVALID + "key 'k' is not UTF-8 text" + AGAIN,
    ),
    "a text that is not UTF-8": (
        gguf_file([key("k", ARRAY, u32(TEXT) + u64(2) + text("a") + text(b"\xc3"))]),
        INVALID + "key 'k' is not UTF-8 text" + AGAIN,
    ),
    "a key twice": (
        gguf_file([key("k", U8, b"\1"), key("k", U8, b"\2")]),
        INVALID + "key 'k' occurs twice" + AGAIN,
    ),
    "an unknown type of value": (
        gguf_file([key("k", 13, b"\1")]),
        INVALID + "key 'k' is of type 13, which GGUF does not have" + AGAIN,
    ),
    "an unknown type in an array": (
        gguf_file([key("k", ARRAY, u32(99) + u64(1) + bytes(8))]),
        INVALID + "key 'k' is of type 99, which GGUF does not have" + AGAIN,
    ),
    "an array of arrays": (
        gguf_file([key("k", ARRAY, u32(ARRAY) + u64(1) + u32(U8) + u64(1) + b"\1")]),
        INVALID + "key 'k' is an array of arrays" + AGAIN,
    ),
    "arrays of arrays, 10^5 deep": (
        gguf_file([key("k", ARRAY, (u32(ARRAY) + u64(1)) * 10**5)]),
        INVALID + "key 'k' is an array of arrays" + AGAIN,
    ),
    "an array of 2^63": (
        gguf_file([key("k", ARRAY, u32(U64) + u64(HUGE))]),
        INVALID + "key 'k' makes more than 2,097,152 values in arrays, and no model has so many" + AGAIN,
    ),
    "numbers beyond the end": (gguf_file([key("k", ARRAY, u32(U64) + u64(2**20) + bytes(8))]), CUT),
    "strings beyond the end": (gguf_file([key("k", ARRAY, u32(TEXT) + u64(2**19) + bytes(8))]), CUT),
    "too many values": (
        lambda: gguf_file([key(f"k{i}", ARRAY, u32(U8) + u64(2**20) + bytes(2**20)) for i in range(3)]),
        INVALID + "key 'k2' makes more than 2,097,152 values in arrays, and no model has so many" + AGAIN,
    ),
    "too many strings": (
        lambda: gguf_file([key("k", ARRAY, u32(TEXT) + u64(2**20 + 1) + u64(0) * (2**20 + 1))]),
        INVALID + "key 'k' makes more than 1,048,576 strings, and no model has so many" + AGAIN,
    ),
    "no value": (gguf_file([key("kkkkkkkkkkkkkkkk", U64, b"\1")]), CUT),
    # ---- alignment ----
    "an alignment of 0": (
        gguf_file([key("general.alignment", U32, u32(0))]),
        INVALID + "general.alignment is 0, which is not a power of two" + AGAIN,
    ),
    "an odd alignment": (
        gguf_file([key("general.alignment", U32, u32(48))]),
        INVALID + "general.alignment is 48, which is not a power of two" + AGAIN,
    ),
    "a text as alignment": (
        gguf_file([key("general.alignment", TEXT, text("32\n"))]),
        INVALID + "general.alignment is 32?, which is not a power of two" + AGAIN,
    ),
    "a list as alignment": (
        gguf_file([key("general.alignment", ARRAY, u32(U32) + u64(1) + u32(32))]),
        INVALID + "general.alignment is [32], which is not a power of two" + AGAIN,
    ),
    "an alignment beyond the end": (
        gguf_file([key("general.alignment", U64, u64(2**63))], [tensor("a", (4,), 0, 0)], bytes(64)),
        "is truncated: tensor 'a' lies beyond its 160 bytes" + AGAIN,
    ),
    # ---- tensors ----
    "a tensor's name that is not UTF-8": (
        gguf_file(tensors=[tensor(b"\x80", (4,), 0, 0)], data=bytes(64)),
        INVALID + "the name of a tensor is not UTF-8 text" + AGAIN,
    ),
    "a tensor twice": (
        gguf_file(tensors=[tensor("a", (4,), 0, 0), tensor("a", (4,), 0, 32)], data=bytes(64)),
        INVALID + "tensor 'a' occurs twice" + AGAIN,
    ),
    "10^9 dimensions": (
        gguf_file(tensors=[text("a") + u32(10**9) + u64(1, 1, 1)]),
        INVALID + "tensor 'a' has 1,000,000,000 dimensions, and at most 4 are possible" + AGAIN,
    ),
    "five dimensions": (
        gguf_file(tensors=[tensor("a", (1, 1, 1, 1, 1), 0, 0)], data=bytes(64)),
        INVALID + "tensor 'a' has 5 dimensions, and at most 4 are possible" + AGAIN,
    ),
    "a dimension of 0": (
        gguf_file(tensors=[tensor("a", (4, 0), 0, 0)], data=bytes(64)),
        INVALID + "tensor 'a' has a dimension of 0" + AGAIN,
    ),
    "dimensions whose product is 2^252": (
        gguf_file(tensors=[tensor("a", (HUGE,) * 4, 0, 0)], data=bytes(64)),
        "is truncated: tensor 'a' lies beyond its 160 bytes" + AGAIN,
    ),
    "dimensions whose product is 0 in 64 bits": (
        gguf_file(tensors=[tensor("a", (2**32, 2**32), 0, 0)], data=bytes(64)),
        "is truncated: tensor 'a' lies beyond its 160 bytes" + AGAIN,
    ),
    "an offset of 2^64 - 32": (
        gguf_file(tensors=[tensor("a", (8,), 0, 2**64 - 32)], data=bytes(64)),
        "is truncated: tensor 'a' lies beyond its 128 bytes" + AGAIN,
    ),
    "rows that blocks do not divide": (
        gguf_file(tensors=[tensor("a", (48, 2), 2, 0)], data=bytes(64)),
        INVALID + "tensor 'a' has rows of 48, which blocks of 32 do not divide" + AGAIN,
    ),
    "an unknown type": (
        gguf_file(tensors=[tensor("a", (4,), 77, 0)], data=bytes(64)),
        "stores tensor 'a' in type 77" + UNKNOWN,
    ),
    "a withdrawn type": (
        gguf_file(tensors=[tensor("a", (32,), 31, 0)], data=bytes(64)),
        "stores tensor 'a' in type 31 (Q4_0_4_4)" + UNKNOWN,
    ),
    "an offset between alignments": (
        gguf_file(tensors=[tensor("a", (4,), 0, 16)], data=bytes(64)),
        INVALID + "tensor 'a' does not begin at a multiple of 32 bytes" + AGAIN,
    ),
    "tensors that overlap": (
        gguf_file(tensors=[tensor("a", (4,), 0, 64), tensor("b", (17,), 0, 0)], data=bytes(99)),
        INVALID + "tensors 'b' and 'a' overlap" + AGAIN,
    ),
    "two tensors in one place": (
        gguf_file(tensors=[tensor("a", (4,), 0, 0), tensor("b", (4,), 0, 0)], data=bytes(99)),
        INVALID + "tensors 'a' and 'b' overlap" + AGAIN,
    ),
    "the last tensor cut": (GOOD[:-1], f"is truncated: tensor 'b' lies beyond its {len(GOOD) - 1} bytes" + AGAIN),
    "no data": (GOOD[:-100], f"is truncated: tensor 'a' lies beyond its {len(GOOD) - 100} bytes" + AGAIN),
    "names that are long and not printable": (
        gguf_file(tensors=[tensor("\n" * 500, (3, 0), 0, 0)], data=bytes(64)),
        INVALID + f"tensor '...{'?' * 80}' has a dimension of 0" + AGAIN,
    ),
    "strings that take much more memory, before the end": (
        lambda: gguf_file(
            [key("k", ARRAY, u32(TEXT) + u64(2**20 - 9) + text("🎉" + "x" * 19) * (2**20 - 9)), bytes(12)]
        ),
        CUT,
    ),
    "many numbers before the end": (
        lambda: gguf_file([key("k", ARRAY, u32(F32) + u64(2**21) + os.urandom(2**23)), bytes(12)]),
        CUT,
    ),
}


def refused(path):
    """The fault, without the path, of a file that must be refused with little time and memory."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    began = time.process_time()
    try:
        if sys.platform == "linux":
            resource.setrlimit(resource.RLIMIT_AS, (_mapped() + path.stat().st_size + MEMORY, before[1]))
        with pytest.raises(ModelError) as caught:
            GgufFile.open(path)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert time.process_time() - began < SECONDS
    message = caught.value.message
    assert message.isprintable()
    return message


def _mapped():
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("kind", FILES)
def test_refused_in_one_line(tmp_path, kind):
    content, message = FILES[kind]
    path = tmp_path / "model.gguf"
    path.write_bytes(content() if callable(content) else content)
    name = f"'{path}' " if len(str(path)) <= 120 else f"'...{str(path)[-120:]}' "
    assert refused(path) == name + message


def test_a_header_cut_anywhere(tmp_path):
    for size in range(1, len(GOOD)):
        path = tmp_path / f"{size}.gguf"
        path.write_bytes(GOOD[:size])
        with pytest.raises(ModelError, match=r"is truncated|is not a GGUF file"):
            GgufFile.open(path)


NOT_READABLE = "is not a file that can be read; name the model's *.gguf."
PATHS = {
    "nothing": (lambda path: None, "cannot be read: No such file or directory."),
    "a folder": (lambda path: path.mkdir(), NOT_READABLE),
    "a pipe": (os.mkfifo, NOT_READABLE),
    "a link to a device": (lambda path: path.symlink_to("/dev/zero"), NOT_READABLE),
    "a link to itself": (lambda path: path.symlink_to(path.name), "cannot be read: Too many levels of symbolic links."),
}


@pytest.mark.parametrize("kind", PATHS)
def test_what_is_no_file(tmp_path, kind):
    make, message = PATHS[kind]
    path = tmp_path / "model.gguf"
    make(path)
    with pytest.raises(ModelError) as caught:
        GgufFile.open(path)
    assert caught.value.message.endswith(f"model.gguf' {message}")


@pytest.mark.parametrize(
    ("name", "count", "message"),
    [
        ("model-00001-of-00002.gguf", 3, "is one of 3 files, which are found by their names; name it as it was"),
        ("model-00001-of-99999.gguf", 10**9, "is one of 1000000000 files, which are found by their names"),
        ("model-00001-of-00003.gguf", 3, "model-00002-of-00003.gguf' is missing, one of the model's 3 files"),
        ("model-00001-of-99999.gguf", 99_999, "model-00002-of-99999.gguf' is missing, one of the model's 99999 files"),
        ("model-00000-of-00002.gguf", 2, "model-00001-of-00002.gguf' is missing, one of the model's 2 files"),
    ],
)
def test_a_split_that_is_not_there(tmp_path, name, count, message):
    path = tmp_path / name
    path.write_bytes(gguf_file([key("split.count", U32, u32(count))]))
    assert message in refused(path)


def test_files_that_are_not_those_of_one_split(tmp_path):
    path = tmp_path / "model-00001-of-00002.gguf"
    path.write_bytes(gguf_file([key("split.count", U32, u32(2)), key("split.no", U32, u32(0))]))
    other = tmp_path / "model-00002-of-00002.gguf"
    for content in (gguf_file(), gguf_file([key("split.count", U32, u32(2))]), path.read_bytes()):
        other.write_bytes(content)
        assert refused(path).endswith(
            "model-00002-of-00002.gguf' does not say that it is file 2 of 2; download it again."
        )
    other.write_bytes(GOOD[:-1])
    assert "model-00002-of-00002.gguf' is truncated: tensor 'b' lies beyond" in refused(path)


# ---- mutations -----------------------------------------------------------------


NUMBERS = (0, 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1)


def mutated(source: random.Random) -> bytes:
    """A good file with a few changes: bytes, numbers of 64 bits, a part taken out or repeated, an end cut off."""
    content = bytearray(GOOD)
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(content))
        kind = source.randrange(6)
        if kind == 0:
            content[at] ^= 1 << source.randrange(8)
        elif kind == 1:
            content[at] = source.choice((0, 1, 4, 8, 9, 127, 128, 255))
        elif kind == 2:
            number = source.choice(
                (0, 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1, len(content), source.getrandbits(64))
            )
            content[at : at + 8] = u64(number)
        elif kind == 3:
            del content[at : at + source.randint(1, 40)]
        elif kind == 4:
            content[at:at] = content[at : at + source.randint(1, 40)]
        else:
            del content[at + len(content) // 2 :]
    return bytes(content)


def open_mutated(folder: Path, seed: int, count: int) -> int:
    """How many of the files are refused. All others can be read to their last byte."""
    source = random.Random(seed)
    refused_files = 0
    for number in range(count):
        path = folder / f"{number}.gguf"  # one that is overwritten might be written to the disk
        path.write_bytes(mutated(source))
        try:
            read_to_the_end(GgufFile.open(path))
        except ModelError:
            refused_files += 1
        path.unlink()
    return refused_files


def read_to_the_end(opened: GgufFile) -> None:
    for one in opened.tensors.values():
        rows = opened.rows(one, 0, one.num_rows)
        assert rows.size == one.num_bytes
        one.type.dequantize(rows.reshape(-1, one.type.bytes))


def test_mutated_files_are_read_or_refused(tmp_path):
    assert 1000 < open_mutated(tmp_path, 1, 3000) < 3000


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_million_mutated_files_are_read_or_refused(tmp_path, seed):
    assert 30_000 < open_mutated(tmp_path, seed, 100_000) < 100_000
