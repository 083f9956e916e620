"""A disk that takes nothing more: whoever wanted to store something is told so, and the log has the reason."""

from __future__ import annotations

import errno
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from tessera.errors import OverloadedError

_LOG = logging.getLogger(__name__)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The last is that of a limit on the size of files."""
_SQLITE_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


class DiskFullError(OverloadedError):
    """What was to be stored is not."""

    code = "storage_full"


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Raises DiskFullError for a disk or a quota that is full; any other error as it is. what: for the log."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise _full(what, error.strerror) from error
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in _SQLITE_FULL:
            raise
        raise _full(what, str(error)) from error


def _full(what: str, reason: str | None) -> DiskFullError:
    _LOG.error("%s cannot be stored: %s. Free some of the disk.", what, reason)
    return DiskFullError("The server cannot store this now; see its log.")
