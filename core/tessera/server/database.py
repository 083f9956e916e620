"""SQLite, as the server's stores use it: on a thread of its own, because a disk may be slow."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tessera.errors import ConfigError
from tessera.server.disk import writing

T = TypeVar("T")
FORMAT = 1
"""Of the server's databases, as their user_version. 0: before there were numbers, and otherwise the same."""


class Database:
    """A database in a file. path: "" keeps it in memory. schema: the statements that create what is not there yet."""

    def __init__(self, path: str, schema: str, flag: str) -> None:
        """flag: the one that names the file. Raises ConfigError if the file cannot be used."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._flag = flag
        try:
            self._connection = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
            self._check_format()
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.executescript(schema)
            self._connection.execute(f"PRAGMA user_version={FORMAT}")
        except sqlite3.Error as error:
            raise ConfigError(f"The file of {flag} cannot be used: {error}.") from error

    def _check_format(self) -> None:
        """Raises ConfigError for what a newer server has written, which it may mean otherwise."""
        (written,) = self._connection.execute("PRAGMA user_version").fetchone()
        if written > FORMAT:
            self._connection.close()
            raise ConfigError(
                f"The file of {self._flag} is of format {written}, and this version of Tessera knows {FORMAT}; use the "
                "version that wrote it, or name another file."
            )

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """Call it from what do() runs, or before the first call of do()."""
        return self._connection.execute(statement, values)

    async def do(self, work: Callable[..., T], *values: Any) -> T:
        """Runs `work` on the thread, as a transaction: what one call does is not mixed with what another does, and is
        done as a whole or not at all. Raises DiskFullError, and what `work` raises."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: self._transact(work, *values))

    def _transact(self, work: Callable[..., T], *values: Any) -> T:
        with writing(f"An object of {self._flag}"):
            self._connection.execute("BEGIN")
            try:
                result = work(*values)
                self._end("COMMIT")
            except BaseException:
                self._end("ROLLBACK")
                raise
            return result

    def _end(self, how: str) -> None:
        if self._connection.in_transaction:  # a full disk may have ended it
            self._connection.execute(how)

    def close(self) -> None:
        self._thread.shutdown()
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
