"""SQLite, as the server's stores use it: on a thread of its own, because a disk may be slow."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tessera.errors import ConfigError

T = TypeVar("T")


class Database:
    """A database in a file. path: "" keeps it in memory. schema: the statements that create what is not there yet."""

    def __init__(self, path: str, schema: str, flag: str) -> None:
        """flag: the one that names the file. Raises ConfigError if the file cannot be used."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        try:
            self._connection = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.executescript(schema)
        except sqlite3.Error as error:
            raise ConfigError(f"The file of {flag} cannot be used: {error}.") from error

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """Call it from what do() runs, or before the first call of do()."""
        return self._connection.execute(statement, values)

    async def do(self, work: Callable[..., T], *values: Any) -> T:
        """Runs `work` on the thread; what one call does is not mixed with what another does."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(*values))

    def close(self) -> None:
        self._thread.shutdown()
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
