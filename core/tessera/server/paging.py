"""Pages of a list, as OpenAI's lists have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from starlette.requests import Request

from tessera.errors import NotFoundError, RequestError

MAX_LIMIT = 100
MAX_ID_CHARS = 256
Order = Literal["asc", "desc"]


class ItemList(msgspec.Struct):
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class Deleted(msgspec.Struct):
    id: str
    object: str
    deleted: bool = True


@dataclass(frozen=True)
class PageQuery:
    """The query's order, after (an id), and limit. A limit of 0 is an empty page, which OpenAI's lists have too."""

    ascending: bool
    after: str | None
    limit: int

    @classmethod
    def from_request(
        cls,
        request: Request,
        *,
        order: Order = "desc",
        default: int = 20,
        min_limit: int = 0,
        max_limit: int = MAX_LIMIT,
    ) -> PageQuery:
        """order, default: where the query has no order and no limit. min_limit, max_limit: of the limit. Raises
        RequestError."""
        query = request.query_params
        asked = query.get("order", order)
        if asked not in ("asc", "desc"):
            raise RequestError("order must be asc or desc.", param="order")
        text = query.get("limit", str(default))
        if not is_number(text) or not min_limit <= int(text) <= max_limit:
            raise RequestError(f"limit must be {min_limit} to {max_limit}.", param="limit")
        after = query.get("after")
        return cls(asked == "asc", None if after is None else after[:MAX_ID_CHARS], int(text))

    def has_more(self, num_items: int) -> bool:
        """num_items: the number of items from the page's place on, or more than fit the page. An empty page says that
        there are no more, so that nobody asks for the next one forever."""
        return num_items > self.limit > 0


def is_number(text: str) -> bool:
    """Whether it is a whole number of at most nine digits."""
    return text.isascii() and text.isdigit() and len(text) < 10


def unknown_place() -> NotFoundError:
    return NotFoundError("There is no item with the id in `after`.", param="after")


def page_of(items: Sequence[dict[str, Any]], request: Request, *, order: Order = "desc") -> ItemList:
    """The page of these items that the query asks for. items: in ascending order. order: where the query has none.
    Raises RequestError, NotFoundError."""
    asked = PageQuery.from_request(request, order=order)
    ordered = list(items) if asked.ascending else list(reversed(items))
    if asked.after is not None:
        place = next((place for place, item in enumerate(ordered) if item["id"] == asked.after), None)
        if place is None:
            raise unknown_place()
        ordered = ordered[place + 1 :]
    page = ordered[: asked.limit]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return ItemList(page, first, last, has_more=asked.has_more(len(ordered)))
