"""Messages over a stream arrive whole, and a stream that ends or lies about a length is noticed."""

from __future__ import annotations

import asyncio
import io

import pytest

from tessera.processes.frames import frame, frame_bytes, read_frame, read_frame_async


class Trickle(io.RawIOBase):
    """A stream that has one byte at a time."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # the buffers that read_frame() has
        return self._stream.readinto(buffer[:1])


def test_messages_arrive_whole_one_after_the_other() -> None:
    stream = Trickle(frame(b"one") + frame(b"") + frame(b"three"))
    assert [bytes(read_frame(stream.readinto)) for _ in range(3)] == [b"one", b"", b"three"]
    with pytest.raises(EOFError):
        read_frame(stream.readinto)


@pytest.mark.parametrize("size", range(1, 10))
def test_a_stream_that_ends_within_a_message_is_at_its_end(size: int) -> None:
    with pytest.raises(EOFError):
        read_frame(io.BytesIO(frame(b"ab")[:size]).readinto)


def test_a_length_over_the_limit_is_refused_before_anything_is_allocated() -> None:
    with pytest.raises(ValueError, match="5 bytes is too long; the most is 4"):
        read_frame(io.BytesIO(frame(b"12345")).readinto, 4)
    with pytest.raises(ValueError, match="too long"):
        read_frame(io.BytesIO(b"\xff" * 8).readinto)


async def test_a_loop_reads_the_same_frames() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(frame(b"one") + frame(b"two")[:-1])
    reader.feed_eof()
    assert await read_frame_async(reader) == b"one"
    with pytest.raises(EOFError):
        await read_frame_async(reader)


def test_how_long_the_message_in_a_frame_is() -> None:
    assert frame_bytes(frame(b"12345")) == 5
