"""Pages of a list of items, as OpenAI's lists have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from starlette.requests import Request

from tessera.errors import NotFoundError, RequestError
from tessera.server.responses.protocol import Item, ItemList

MAX_LIMIT = 100


@dataclass(frozen=True)
class Paging:
    """What a query asks for: limit items in their order, after the one with this id."""

    ascending: bool
    after: str | None
    limit: int

    @classmethod
    def of(cls, request: Request, *, order: Literal["asc", "desc"] = "desc") -> Paging:
        """order: where the query has none. Raises RequestError."""
        query = request.query_params
        asked = query.get("order", order)
        if asked not in ("asc", "desc"):
            raise RequestError("order must be asc or desc.", param="order")
        text = query.get("limit", "20")
        if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MAX_LIMIT:
            raise RequestError(f"limit must be 1 to {MAX_LIMIT}.", param="limit")
        return cls(asked == "asc", query.get("after"), int(text))


def nothing_after() -> NotFoundError:
    return NotFoundError("There is no item with the id in `after`.", param="after")


def page_of(items: Sequence[Item], request: Request, *, order: Literal["asc", "desc"] = "desc") -> ItemList:
    """items: in ascending order. order: where the query has none. Raises RequestError, NotFoundError."""
    paging = Paging.of(request, order=order)
    ordered = list(items) if paging.ascending else list(reversed(items))
    if paging.after is not None:
        place = next((place for place, item in enumerate(ordered) if item["id"] == paging.after), None)
        if place is None:
            raise nothing_after()
        ordered = ordered[place + 1 :]
    page = ordered[: paging.limit]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return ItemList(page, first, last, has_more=len(page) < len(ordered))
