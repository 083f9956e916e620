"""Keeps responses, conversations and chats by SQLite, in memory or in a file: within a limit, apart for each tenant."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from tessera.errors import RequestError
from tessera.server.database import Database
from tessera.server.disk import DiskFullError
from tessera.server.paging import PageQuery, unknown_place

T = TypeVar("T")
Kind = Literal["response", "conversation", "chat"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS kept (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, tenant TEXT NOT NULL, made REAL NOT NULL, used REAL NOT NULL,
    size INTEGER NOT NULL, body BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_use ON kept (used);
CREATE INDEX IF NOT EXISTS by_making ON kept (kind, tenant, made, id);
"""

MAX_METADATA = 16
MAX_METADATA_CHARS = 512


class ObjectPage(NamedTuple):
    items: list[Any]
    has_more: bool


class Store:
    """Objects by id. path: of a file; "" keeps them in memory, until the server ends. most_bytes: of all objects
    together; those that were used least recently are dropped for new ones."""

    def __init__(self, path: str, most_bytes: int) -> None:
        """Raises ConfigError if the file cannot be used."""
        self._most_bytes = most_bytes
        self._database = Database(path, _SCHEMA, "--response-store")
        self._bytes = 0
        self._count()

    async def put(self, kind: Kind, key: str, tenant: str, value: Any) -> None:
        """Keeps an object, in place of an earlier one with this id. Raises DiskFullError."""
        await self._write(self._put, kind, key, tenant, msgspec.json.encode(value))

    async def get(self, kind: Kind, key: str, tenant: str) -> Any:
        """The object; None if there is none for this tenant."""
        body = await self._database.do(self._get, kind, key, tenant)
        if body is None:
            return None
        with contextlib.suppress(DiskFullError):  # it can be read all the same
            await self._database.do(self._touch, key)
        return msgspec.json.decode(body)

    async def delete(self, kind: Kind, key: str, tenant: str) -> bool:
        """Returns whether there was one."""
        return await self._write(self._delete, kind, key, tenant)

    async def change(self, kind: Kind, key: str, tenant: str, change: Callable[[Any], None]) -> Any:
        """The object as it is after `change`, which changes it in place with no other change in between; None if there
        is none. What `change` raises is passed on, and the object stays as it was. Raises DiskFullError."""
        return await self._write(self._change, kind, key, tenant, change)

    async def page(self, kind: Kind, tenant: str, query: PageQuery, wanted: Callable[[Any], bool]) -> ObjectPage:
        """A tenant's objects for which `wanted` is true, by when they were first put. Raises NotFoundError if there is
        none with the id in query.after."""
        return await self._database.do(self._page, kind, tenant, query, wanted)

    def close(self) -> None:
        self._database.close()

    async def _write(self, work: Callable[..., T], *values: Any) -> T:
        """As a whole or not at all."""
        try:
            return await self._database.do(work, *values)
        except DiskFullError:
            await self._database.do(self._count)
            raise

    # ---- on the thread

    def _count(self) -> None:
        (self._bytes,) = self._database.execute("SELECT coalesce(sum(size), 0) FROM kept").fetchone()

    def _put(self, kind: Kind, key: str, tenant: str, body: bytes) -> None:
        now, before = time.time(), self._creation_time(kind, key, tenant)
        self._delete(kind, key, tenant)
        row = (key, kind, tenant, now if before is None else before, now, len(body), body)
        self._database.execute("INSERT INTO kept VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        self._bytes += len(body)
        while self._bytes > self._most_bytes:
            oldest, size = self._database.execute("SELECT id, size FROM kept ORDER BY used LIMIT 1").fetchone()
            self._database.execute("DELETE FROM kept WHERE id = ?", (oldest,))
            self._bytes -= size

    def _change(self, kind: Kind, key: str, tenant: str, change: Callable[[Any], None]) -> Any:
        body = self._get(kind, key, tenant)
        if body is None:
            return None
        value = msgspec.json.decode(body)
        change(value)
        self._put(kind, key, tenant, msgspec.json.encode(value))
        return value

    def _creation_time(self, kind: Kind, key: str, tenant: str) -> float | None:
        found = self._database.execute(
            "SELECT made FROM kept WHERE id = ? AND kind = ? AND tenant = ?", (key, kind, tenant)
        ).fetchone()
        return None if found is None else found[0]

    def _page(self, kind: Kind, tenant: str, page_query: PageQuery, wanted: Callable[[Any], bool]) -> ObjectPage:
        beyond, order = (">", "ASC") if page_query.ascending else ("<", "DESC")
        query = "SELECT body FROM kept WHERE kind = ? AND tenant = ?"
        given: list[str | float] = [kind, tenant]
        if page_query.after is not None:
            made = self._creation_time(kind, page_query.after, tenant)
            if made is None:
                raise unknown_place()
            query, given = f"{query} AND (made, id) {beyond} (?, ?)", [kind, tenant, made, page_query.after]
        rows = self._database.execute(f"{query} ORDER BY made {order}, id {order}", tuple(given))
        found = (value for (body,) in rows if wanted(value := msgspec.json.decode(body)))
        items = list(islice(found, page_query.limit + 1))
        return ObjectPage(items[: page_query.limit], page_query.has_more(len(items)))

    def _get(self, kind: Kind, key: str, tenant: str) -> bytes | None:
        found = self._database.execute(
            "SELECT body FROM kept WHERE id = ? AND kind = ? AND tenant = ?", (key, kind, tenant)
        ).fetchone()
        if found is None:
            return None
        body: bytes = found[0]
        return body

    def _touch(self, key: str) -> None:
        self._database.execute("UPDATE kept SET used = ? WHERE id = ?", (time.time(), key))

    def _delete(self, kind: Kind, key: str, tenant: str) -> bool:
        given = (key, kind, tenant)
        found = self._database.execute(
            "SELECT size FROM kept WHERE id = ? AND kind = ? AND tenant = ?", given
        ).fetchone()
        if found is None:
            return False
        self._database.execute("DELETE FROM kept WHERE id = ? AND kind = ? AND tenant = ?", given)
        self._bytes -= found[0]
        return True


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(24)}"


def check_metadata(metadata: Mapping[str, Any] | None) -> None:
    """Raises RequestError."""
    if metadata is not None and (
        len(metadata) > MAX_METADATA
        or any(
            len(name) > 64 or not isinstance(text, str) or len(text) > MAX_METADATA_CHARS
            for name, text in metadata.items()
        )
    ):
        raise RequestError(
            f"metadata has at most {MAX_METADATA} names of 64 characters with texts of {MAX_METADATA_CHARS}.",
            param="metadata",
        )
