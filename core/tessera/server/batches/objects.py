"""What is known of files and batches, in SQLite: objects by id and in the order in which they were made, apart for each
tenant."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from tessera.server.database import Database
from tessera.server.paging import PageQuery, unknown_place

T = TypeVar("T")
Kind = Literal["file", "batch"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, tenant TEXT NOT NULL,
    label TEXT NOT NULL, body BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS by_tenant ON objects (kind, tenant, number);
CREATE INDEX IF NOT EXISTS by_label ON objects (kind, label, number);
"""
_PUT = """
INSERT INTO objects (id, kind, tenant, label, body) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET label = excluded.label, body = excluded.body
"""


class BatchObjects:
    """path: of a file; "" keeps them in memory. label: a word by which objects of a kind are found."""

    def __init__(self, path: str) -> None:
        """Raises ConfigError if the file cannot be used."""
        self._database = Database(path, _SCHEMA, "--batch-store")

    async def put(self, kind: Kind, key: str, tenant: str, label: str, value: Any) -> None:
        """Keeps an object, in place of an earlier one with this id."""
        given = (key, kind, tenant, label, msgspec.json.encode(value))
        await self._database.do(self._database.execute, _PUT, given)

    async def get(self, kind: Kind, key: str, tenant: str, form: type[T]) -> T | None:
        """The object; None if there is none for this tenant."""
        where = "SELECT body FROM objects WHERE id = ? AND kind = ? AND tenant = ?"
        rows = await self._rows(where, (key, kind, tenant))
        return msgspec.json.decode(rows[0][0], type=form) if rows else None

    async def delete(self, key: str) -> None:
        await self._database.do(self._database.execute, "DELETE FROM objects WHERE id = ?", (key,))

    async def page(
        self, kind: Kind, tenant: str, page: PageQuery, form: type[T], label: str | None = None
    ) -> tuple[list[T], bool]:
        """The tenant's objects on a page, and whether there are more behind it. label: only these; None: all. Raises
        NotFoundError."""
        where, values = "kind = ? AND tenant = ?", [kind, tenant]
        if page.after is not None:
            found = await self._rows(f"SELECT number FROM objects WHERE id = ? AND {where}", (page.after, *values))  # noqa: S608 - of constants
            if not found:
                raise unknown_place()
            where += f" AND number {'>' if page.ascending else '<'} ?"
            values.append(found[0][0])
        if label is not None:
            where += " AND label = ?"
            values.append(label)
        order = "ASC" if page.ascending else "DESC"
        query = f"SELECT body FROM objects WHERE {where} ORDER BY number {order} LIMIT ?"  # noqa: S608 - of constants
        rows = await self._rows(query, (*values, page.limit + 1))
        return [msgspec.json.decode(body, type=form) for (body,) in rows[: page.limit]], page.has_more(len(rows))

    async def count(self, kind: Kind) -> int:
        rows = await self._rows("SELECT count(*) FROM objects WHERE kind = ?", (kind,))
        count: int = rows[0][0]
        return count

    async def drop_oldest(self, kind: Kind, label: str, limit: int) -> None:
        """Drops the oldest with this label until there are at most `limit` of them."""
        query = (
            "DELETE FROM objects WHERE number IN (SELECT number FROM objects WHERE kind = ? AND label = ? "
            "ORDER BY number DESC LIMIT -1 OFFSET ?)"
        )
        await self._database.do(self._database.execute, query, (kind, label, limit))

    def labelled(self, kind: Kind, label: str, form: type[T]) -> list[T]:
        """All objects of all tenants with this label, the oldest first. Call it before the asynchronous methods."""
        query = "SELECT body FROM objects WHERE kind = ? AND label = ? ORDER BY number"
        return [msgspec.json.decode(body, type=form) for (body,) in self._database.execute(query, (kind, label))]

    def ids(self) -> set[str]:
        """Those of all files, and of the files that batches which have not ended write. Call it before the asynchronous
        methods."""
        rows = self._database.execute("SELECT kind, id, body FROM objects WHERE kind = 'file' OR label = 'open'")
        found: set[str] = set()
        for kind, key, body in rows:
            found |= {key} if kind == "file" else {*msgspec.json.decode(body, type=_Outputs).files}
        return found

    async def _rows(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return await self._database.do(lambda: self._database.execute(query, values).fetchall())

    def close(self) -> None:
        self._database.close()


class _Outputs(msgspec.Struct):
    files: list[str]
