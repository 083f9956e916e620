"""Pages of a list of items, as OpenAI's lists have them."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request

from tessera.errors import NotFoundError, RequestError
from tessera.server.responses.protocol import Item, ItemList

MAX_LIMIT = 100


def page_of(items: Sequence[Item], request: Request) -> ItemList:
    """By the query's order (desc unless it is asc), after (an id) and limit (1 to 100). Raises RequestError."""
    query = request.query_params
    if query.get("order", "desc") not in ("asc", "desc"):
        raise RequestError("order must be asc or desc.", param="order")
    text = query.get("limit", "20")
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MAX_LIMIT:
        raise RequestError(f"limit must be 1 to {MAX_LIMIT}.", param="limit")
    ordered = list(items) if query.get("order") == "asc" else list(reversed(items))
    after = query.get("after")
    if after is not None:
        place = next((place for place, item in enumerate(ordered) if item["id"] == after), None)
        if place is None:
            raise NotFoundError("There is no item with the id in `after`.", param="after")
        ordered = ordered[place + 1 :]
    page = ordered[: int(text)]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return ItemList(page, first, last, has_more=len(page) < len(ordered))
