"""Server-sent events, as the WHATWG's standard has them: bytes in, the data of each event out."""

from __future__ import annotations

from collections.abc import Iterator

from tessera.errors import ServerError

MAX_EVENT_BYTES = 2**24


class EventReader:
    """Takes a stream in pieces of any size. Lines end in LF, CRLF or CR; comments and other fields than data are left
    out."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, content: bytes) -> Iterator[bytes]:
        """The data of each event that ends in what has come so far. Raises ServerError for one without end."""
        lines = (self._rest + content).splitlines(keepends=True)
        # A last line may go on, and a CR may be the first half of a CRLF.
        self._rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        for line in lines:
            yield from self._take(line.rstrip(b"\r\n"))
        if self._size + len(self._rest) > MAX_EVENT_BYTES:
            raise ServerError(f"The server sent an event of more than {MAX_EVENT_BYTES} bytes.")

    def _take(self, line: bytes) -> Iterator[bytes]:
        if not line:
            if self._data:
                yield b"\n".join(self._data)
            self._data, self._size = [], 0
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(value)
