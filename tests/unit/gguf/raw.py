"""GGUF files byte by byte, so that they can be wrong."""

from __future__ import annotations

import struct

U8, U32, F32, FLAG, TEXT, ARRAY, U64 = 0, 4, 6, 7, 8, 9, 10


def u32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def u64(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def text(value: str | bytes) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return u64(len(content)) + content


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return text(name) + u32(kind) + value


def tensor(name: str | bytes, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    """shape: as GGUF has it, the dimension of a row first."""
    return text(name) + u32(len(shape)) + u64(*shape) + u32(kind) + u64(offset)


def gguf_file(
    keys: list[bytes] = [],  # noqa: B006 - not changed
    tensors: list[bytes] = [],  # noqa: B006 - not changed
    data: bytes = b"",
    version: int = 3,
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
) -> bytes:
    """counts: of tensors and keys, if not the right ones."""
    header = b"GGUF" + u32(version) + u64(*(counts or (len(tensors), len(keys)))) + b"".join((*keys, *tensors))
    return header + (b"\0" * (-len(header) % alignment) + data if data else b"")


GOOD = gguf_file(
    [
        key("general.architecture", TEXT, text("llama")),
        key("general.alignment", U32, u32(32)),
        key("tokenizer.ggml.tokens", ARRAY, u32(TEXT) + u64(3) + text("a") + text("é") + text("")),
        key("tokenizer.ggml.scores", ARRAY, u32(F32) + u64(2) + struct.pack("<2f", 0.5, -1.0)),
        key("llama.flag", FLAG, b"\1"),
    ],
    [tensor("a", (4, 3), 0, 0), tensor("b", (64,), 2, 64)],
    bytes(range(100)),
)
"""Two keys, two arrays, a flag; [3, 4] in F32, and 64 values in Q4_0."""
