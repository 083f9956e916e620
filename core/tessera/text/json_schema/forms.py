"""What values a schema allows, by type: forms without any choice left, whose parts are conjunctions of subschemas."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tessera.text.json_schema.document import Subschema
from tessera.text.json_schema.numbers import Numbers
from tessera.text.json_schema.strings import Strings

Conjunction = tuple[Subschema, ...]
"""Subschemas that must all hold."""


@dataclass
class Literals:
    # As JSON has them, each by itself.
    values: list[Any]


@dataclass
class Arrays:
    # Of the first items.
    prefix: list[Conjunction] = field(default_factory=list)
    # Of the others; None if there are none.
    rest: Conjunction | None = ()
    # How many items there are.
    min_items: int = 0
    max_items: int | None = None
    # The schema that says that items differ.
    unique: Subschema | None = None
    # Of one item at least; None if nothing is said.
    contains: Conjunction | None = None


class Property(NamedTuple):
    """A property that is listed by its name."""

    name: str
    # Of its value.
    conjunction: Conjunction
    required: bool


class Region(NamedTuple):
    """Properties by what their names match."""

    # A terminal of Lark; None: any name.
    name: str | None
    # Of their values.
    conjunction: Conjunction


@dataclass
class ObjectForm:
    # In the order in which they come.
    properties: list[Property] = field(default_factory=list)
    # Those that are not listed, which come last.
    regions: list[Region] = field(default_factory=list)
    # How many properties there are.
    min_properties: int = 0
    max_properties: int | None = None
    # The schema that says how many there are at least.
    minimum_schema: Subschema | None = None


Form = Literals | Numbers | Strings | Arrays | ObjectForm
