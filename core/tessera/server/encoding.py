"""Content codings of request bodies (RFC 9110, section 8.4): identity and gzip."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from tessera.errors import RequestError

GZIP = frozenset({b"gzip", b"x-gzip"})
IDENTITY = frozenset({b"", b"identity"})
_STEP_BYTES = 2**18
_GZIP_WINDOW = 16 + zlib.MAX_WBITS  # zlib's way to say that the data is gzip's


class Gunzip:
    """Decodes a gzip body of one or several members (RFC 1952) as it arrives, a step at a time, so that whoever counts
    the bytes can stop a bomb at its limit."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP_WINDOW)
        self._begun = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What the data adds, in pieces of at most 256 KiB. Raises RequestError for data that is not gzip's."""
        while data:
            if self._member.eof:
                self._member = zlib.decompressobj(_GZIP_WINDOW)
            self._begun = True
            try:
                piece = self._member.decompress(data, _STEP_BYTES)
            except zlib.error:
                raise _broken() from None
            data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            yield piece
        while piece := self._flushed():
            yield piece

    def _flushed(self) -> bytes:
        """What zlib still holds after it has taken all data."""
        return b"" if self._member.eof or not self._begun else self._member.decompress(b"", _STEP_BYTES)

    def end(self) -> None:
        """Raises RequestError if the body ended within a member."""
        if not (self._begun and self._member.eof):
            raise _broken()


def _broken() -> RequestError:
    return RequestError("The body is not valid gzip, which its Content-Encoding header says it is.")
