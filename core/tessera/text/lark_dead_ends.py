"""Rules of a grammar in Lark's syntax that need themselves without end: an answer that began one could not end.

A rule ends if one of its alternatives needs nothing but what ends: the least such set. Terminals end, and so do rules
that are compiled as terminals, since llguidance refuses those that need themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""
    (?:\s | (?://|\#)[^\n]*)*
    (?: (?P<constant>"(?:\\.|[^"\\\n])*"i? | /(?:\\.|[^/\\])+/[imslux]* | <[^<>\s]+> | @[\w-]+)
      | %(?P<directive>\w+)
      | [!?]?(?P<name>[A-Za-z_][\w-]*)
        (?P<defined>\s*(?:::\s*_)?\s*(?:\.\s*-?\d+)?\s*
          (?P<options>\[(?:"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\])*/|[^\]"/])*\])?\s*:(?!:))?
      | (?P<optional>[?*] | \{\s*0*\s*, | ~\s*0+(?!\d))
      | (?P<mark>->\s*\w+ | \d\w* | .))
    """,
    re.VERBOSE | re.DOTALL,
)
_JSON = frozenset(("json", "regex", "llguidance"))
_CAPTURE = re.compile(r"""\[\s*capture\s*(?:=\s*"(?:\\.|[^"\\])*"\s*)?\]""")
"""The option of a rule that does not make it a terminal."""


@dataclass(eq=False)
class _Need:
    """A rule, or a part of one."""

    # How many of its parts have to end, those that do already left out: one of several, or all.
    missing: int = 0
    # Which are its parts, as far as they do not always end.
    parts: list[_Need] = field(default_factory=list)
    # Of which it is a part.
    wholes: list[_Need] = field(default_factory=list)
    # The rule's own; "" for a part.
    name: str = ""
    # The rules that a rule mentions, in order, whether they have to end or not.
    mentions: list[_Need] = field(default_factory=list)

    def join(self, parts: list[_Need], missing: int) -> None:
        self.parts, self.missing = parts, missing
        for part in parts:
            part.wholes.append(self)


@dataclass
class _Alternatives:
    """What is being read: a rule, or what stands in brackets."""

    alternatives: list[_Need | None] = field(default_factory=list)
    # Of the alternative that is read; None for what always ends.
    sequence: list[_Need | None] = field(default_factory=list)


def endless_rule(lark: str) -> str | None:
    """The first rule, as the beginning leads to it, that has no end. A grammar that is wrong may have any."""
    reader = _Reader(lark)
    reader.read()
    return next(filter(None, (reader.endless(), *map(endless_rule, reader.nested))), None)


class _Reader:
    """Reads a grammar token by token."""

    def __init__(self, lark: str) -> None:
        self._lark = lark
        self._rules: dict[str, _Need] = {}
        self._groups = [_Alternatives()]
        self._rule = _Need()
        # The texts of %lark, each a grammar of its own.
        self.nested: list[str] = []

    def read(self) -> None:
        place = 0
        while place < len(self._lark) and (found := _TOKEN.match(self._lark, place)):
            place = found.end()
            directive, sequence = found["directive"], self._groups[-1].sequence
            if directive in _JSON:
                place = self._after_json(place)
                sequence.append(None)
            elif directive == "lark":
                place = self._after_lark(place)
                sequence.append(None)
            elif directive in ("ignore", "import"):
                self._begin(_Need())
            elif found["defined"]:
                self._define(found["name"], found["options"] or "")
            elif found["name"]:
                sequence.append(self._mention(found["name"]))
            elif found["optional"]:
                if sequence:
                    sequence[-1] = None
            elif found["constant"]:
                sequence.append(None)
            else:
                self._read_mark(found["mark"] or "")
        self._begin(_Need())

    def _read_mark(self, mark: str) -> None:
        group = self._groups[-1]
        if mark == "|":
            group.alternatives.append(_all(group.sequence))
            group.sequence = []
        elif mark in ("(", "["):
            self._groups.append(_Alternatives())
        elif mark in (")", "]") and len(self._groups) > 1:
            self._groups.pop()
            within = _any([*group.alternatives, _all(group.sequence)])
            self._groups[-1].sequence.append(None if mark == "]" else within)

    def _mention(self, name: str) -> _Need | None:
        rule = self._named(name)
        if rule is not None:
            self._rule.mentions.append(rule)
        return rule

    def _named(self, name: str) -> _Need | None:
        return self._rules.setdefault(name, _Need(name=name)) if name.lstrip("_")[:1].islower() else None

    def _define(self, name: str, options: str) -> None:
        self._begin(self._named(name) or _Need())
        if options and not _CAPTURE.fullmatch(options):
            self._rule = _Need()  # whatever it says

    def _begin(self, rule: _Need) -> None:
        """Ends the rule that was read, and begins another."""
        group = self._groups[0]
        whole = _any([*group.alternatives, _all(group.sequence)])
        if whole is not None:
            self._rule.join([whole], 1)
        self._groups, self._rule = [_Alternatives()], rule

    def _after_json(self, place: int) -> int:
        begin = len(self._lark) - len(self._lark[place:].lstrip())
        try:
            return json.JSONDecoder().raw_decode(self._lark, begin)[1]
        except (ValueError, RecursionError):
            return place

    def _after_lark(self, place: int) -> int:
        """Notes the grammar within the braces."""
        begin, depth = place, 0
        while found := _TOKEN.match(self._lark, place):
            place = found.end()
            depth += {"{": 1, "}": -1}.get(found["mark"] or (found["optional"] or "")[:1], 0)
            if depth <= 0:
                break
        self.nested.append(self._lark[begin:place].strip().removeprefix("{").removesuffix("}"))
        return place

    def endless(self) -> str | None:
        """The first rule, as the beginning leads to it, that needs itself without end."""
        start = self._rules.get("start") or _Need()
        rules = _reached([start], lambda need: need.mentions)
        needs = _reached(rules, lambda need: need.parts)
        ending = [need for need in needs if not need.missing]
        for need in ending:
            for whole in need.wholes:
                whole.missing -= 1
                if not whole.missing:
                    ending.append(whole)
        endless = next((rule for rule in rules if rule.missing > 0), None)
        return None if endless is None else _in_circle(endless)


def _in_circle(need: _Need) -> str:
    """The first rule that one without end needs, and that needs itself."""
    passed: list[_Need] = []
    while need not in passed:
        passed.append(need)
        need = next(part for part in need.parts if part.missing > 0)
    return next(each.name for each in passed[passed.index(need) :] if each.name)


def _reached(needs: list[_Need], below: Callable[[_Need], list[_Need]]) -> list[_Need]:
    """What these lead to, themselves included, each once and in order."""
    found, waiting = dict[int, _Need](), needs[::-1]
    while waiting:
        need = waiting.pop()
        if id(need) not in found:
            found[id(need)] = need
            waiting += reversed(below(need))
    return list(found.values())


def _all(sequence: list[_Need | None]) -> _Need | None:
    parts = [part for part in sequence if part is not None]
    return _need(parts, len(parts)) if parts else None


def _any(alternatives: list[_Need | None]) -> _Need | None:
    parts = [part for part in alternatives if part is not None]
    return _need(parts, 1) if len(parts) == len(alternatives) else None


def _need(parts: list[_Need], missing: int) -> _Need:
    need = _Need()
    need.join(parts, missing)
    return need
