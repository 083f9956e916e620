"""JSON Schemas (draft 4 to 2020-12) as grammars of llguidance, and what to tell a client whose schema is refused.

`document` knows the schema's parts and where references lead, `cases` what parts that must all hold allow together, as
`forms` by type, and `lark` writes these down. All that is written is valid by the schema; `Rules` names the exceptions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tessera.text.json_schema.cases import Cases
from tessera.text.json_schema.document import MAX_DEPTH, MAX_SUBSCHEMAS, Document, SchemaError, format_place, subschemas
from tessera.text.json_schema.formats import FORMATS
from tessera.text.json_schema.lark import Embedded, GrammarWriter
from tessera.text.json_schema.patterns import Patterns
from tessera.text.json_schema.rules import TOO_COMPLEX, WRONG, Rules
from tessera.text.json_schema.strings import Strings, escape_slashes

if TYPE_CHECKING:
    from llguidance import LLMatcher

__all__ = (
    "FORMATS",
    "MAX_DEPTH",
    "MAX_REASON_CHARS",
    "MAX_SUBSCHEMAS",
    "TOO_COMPLEX",
    "WHITESPACE",
    "Compiled",
    "Rules",
    "SchemaError",
    "compile_schema",
    "escape_slashes",
    "explain_refusal",
    "format_place",
    "subschemas",
)

MAX_REASON_CHARS = 300
WHITESPACE = r"(\n[ \t]{0,64}|[ ]{1,2}|\t)"
"""Between the parts of JSON, at most once at each place: bounded, so that no model fills its answer with it."""

Make = Callable[[dict[str, Any]], "LLMatcher"]
"""Makes a matcher over single bytes of a grammar as llguidance has it."""


class Compiled(NamedTuple):
    # In Lark's syntax, without options.
    rules: str
    # By the names that the rules have for them.
    embedded: dict[str, Embedded]


def compile_schema(schema: Any, name: str, rules: Rules, make: Make) -> Compiled:
    """A schema as a grammar. name: with which the names of its strings begin. Raises SchemaError."""
    if not rules.lenient:
        _refuse_unserved(schema)
    document = Document(schema)
    patterns = Patterns(make)
    cases = Cases(document, patterns, rules)
    try:
        found = GrammarWriter(cases, patterns, name).write((document.root,))
    except RecursionError:
        raise SchemaError("", TOO_COMPLEX) from None
    return Compiled(*found)


_UNSERVED = ("unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef")
"""What depends on how a schema was come to, and not on what it says."""


def _refuse_unserved(schema: Any) -> None:
    """Raises SchemaError."""
    for place, each in subschemas(schema):
        if not isinstance(each, dict):
            continue
        for keyword in _UNSERVED:
            if each.get(keyword, True) is not True:
                raise SchemaError(format_place((*place, keyword)), f"{keyword} is not supported")
        if "$ref" in each and "$id" in each and not each.get("$schema", ""):
            raise SchemaError(format_place((*place, "$ref")), "a $ref beside an $id is not supported")


def explain_refusal(schema: Any, make: Make) -> SchemaError:
    """Why llguidance refuses what a schema was compiled to."""
    for place, each in subschemas(schema):
        if not isinstance(each, dict):
            continue
        for pattern in (each.get("pattern"), *(each.get("patternProperties") or ())):
            if isinstance(pattern, str) and _wrong(pattern, make):
                keyword = "pattern" if pattern == each.get("pattern") else "patternProperties"
                return SchemaError(format_place((*place, keyword)), WRONG)
    return SchemaError("", TOO_COMPLEX)


def _wrong(pattern: str, make: Make) -> bool:
    said = Patterns(make).error(Strings(patterns=[(pattern, ())]))
    return bool(said) and not said.startswith("Unsatisfiable")
