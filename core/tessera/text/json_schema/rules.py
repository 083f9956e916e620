"""How a schema is read, and why it may be refused as a whole."""

from __future__ import annotations

from typing import NamedTuple

TOO_COMPLEX = "it is too large or too complex"
NONE = "no value is valid by it"
ENDLESS = f"{NONE}: it demands itself, without end"
EXCLUSIVE = "its schemas must exclude one another; use anyOf"
WRONG = "the regular expression is wrong, or looks around"


class Rules(NamedTuple):
    """How a schema is read. closed: objects have no properties but those that the schema lists, where it does not say.
    strict: true refuses oneOf whose schemas may hold together, which is taken as anyOf otherwise; false leaves out
    uniqueItems where it cannot be enforced, which is refused otherwise. lenient: leave out all that is refused."""

    closed: bool = True
    strict: bool | None = None
    lenient: bool = False

    @property
    def loose(self) -> bool:
        return self.lenient or self.strict is False
