"""What patterns of strings match, asked of llguidance, which alone decides what an answer may be."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tessera.text.json_schema.strings import Strings, Unanchored

if TYPE_CHECKING:
    from llguidance import LLMatcher


class Patterns:
    """Remembers what it was asked. make: a matcher, over single bytes, of a grammar as llguidance has it."""

    def __init__(self, make: Callable[[dict[str, Any]], LLMatcher]) -> None:
        self._make = make
        self._matchers: dict[str, LLMatcher | None] = {}
        self._errors: dict[str, str] = {}
        self._names: dict[str, bool] = {}

    def match(self, strings: Strings, text: str) -> bool:
        """Whether a string is one of these; for positive ones."""
        matcher = self._matcher(strings)
        if matcher is None:
            return False
        copy = matcher.deep_copy()
        written = json.dumps(text, ensure_ascii=False).encode(errors="surrogatepass")
        return bool(copy.consume_tokens(list(written)) and copy.is_accepting())

    def search(self, pattern: str, text: str) -> bool:
        """Whether a pattern matches somewhere in a text."""
        return self.match(Strings(patterns=[(pattern, ())]), text)

    def error(self, strings: Strings) -> str:
        """What llguidance says of positive strings that it does not take; "" if it takes them. There are none where
        the error is of an unsatisfiable schema."""
        self._matcher(strings)
        return self._errors.get(_key(strings), "")

    def none(self, strings: Strings) -> bool:
        """Whether no string is one of these, as far as can be told."""
        if strings.max_length is not None and strings.min_length > strings.max_length:
            return True
        if not strings.positive and not self._any_left(strings):
            return True
        if (
            len(strings.patterns) + len(strings.formats) + (strings.max_length is not None or strings.min_length > 0)
            < 2
        ):
            return False
        positive = Strings(strings.min_length, strings.max_length, strings.patterns, strings.formats)
        return self.error(positive).startswith("Unsatisfiable")

    def _any_left(self, strings: Strings) -> bool:
        """Whether a string is left by what is excluded, as far as can be told."""
        try:
            return self.matches_any(strings.terminal())
        except Unanchored:
            return True

    def matches_any(self, terminal: str) -> bool:
        """Whether there is a name that a terminal of Lark matches."""
        if terminal not in self._names:
            matcher = self._make({"lark_grammar": f"start: NAME\nNAME: {terminal}"})
            self._names[terminal] = matcher.is_error() or bool(matcher.consume_tokens([ord('"')]))
        return self._names[terminal]

    def _matcher(self, strings: Strings) -> LLMatcher | None:
        key = _key(strings)
        if key not in self._matchers:
            matcher = self._make({"json_schema": strings.schema()})
            failed = matcher.is_error()
            self._matchers[key] = None if failed else matcher
            if failed:
                self._errors[key] = matcher.get_error()
        return self._matchers[key]


def _key(strings: Strings) -> str:
    return json.dumps(strings.schema())
