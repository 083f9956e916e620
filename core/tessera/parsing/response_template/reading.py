"""Reads an answer by a response_template as it arrives.

The rules are those of transformers' parser: within a region only its own end counts, elsewhere the first beginning of
one; of delimiters that begin at the same place the longest; text in no region goes to the one without a beginning, or
is dropped. Where the text so far may be the beginning of a delimiter, it waits.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

from tessera.parsing.calls import Format
from tessera.parsing.reader import Malformed, SearchMatch, Wait
from tessera.parsing.response import ReasoningMarkers, ResponseFormat, ResponseParser, Trimmed
from tessera.parsing.response_template.budget import Budget, OutOfTime
from tessera.parsing.response_template.spec import Delimiter, Field, Template
from tessera.parsing.response_template.values import Called, calls_in

_LOG = logging.getLogger(__name__)

VIEW = 512
"""How many characters of text a pattern looks at. So a delimiter has at most half as many, and a pattern whose cost
grows with the square of what it looks at does not grow with the square of the answer."""


class _Place(NamedTuple):
    """A delimiter to look for. opens: whether it begins the region, or ends it."""

    opens: bool
    field: Field
    delimiter: Delimiter


class _Stuck(Exception):  # noqa: N818 - ends the reading by patterns, and is never shown
    """Delimiters that match no text follow each other without end."""


@dataclass(frozen=True)
class _Watch:
    """The delimiters that may come next."""

    places: tuple[_Place, ...]

    @cached_property
    def first(self) -> re.Pattern[str] | None:
        """A character that one of them may begin with; None if not all of them say."""
        firsts = [place.delimiter.firsts for place in self.places]
        known = "".join(one for one in firsts if one is not None)
        if None in firsts:
            return None
        return re.compile(f"[{re.escape(known)}]" if known else r"(?!)")


class _Regions:
    """One answer."""

    def __init__(self, template: Template, parser: ResponseParser) -> None:
        self._template = template
        self._parser = parser
        self._budget = Budget()
        implicit = template.implicit
        self._implicit = implicit
        ends = [_Place(False, implicit, implicit.closes)] if implicit is not None and implicit.closes else []
        self._outside = _Watch((*(_Place(True, one, one.opens) for one in template.fields if one.opens), *ends))
        self._inside = {
            one.name: _Watch((_Place(False, one, one.closes),) if one.closes else ()) for one in template.fields
        }
        self._field: Field | None = implicit
        self._opened = False
        self._begun = ""
        self._body: list[str] = []
        self._captures: dict[str, str] = {}
        self._before: tuple[list[str], bool] = ([], True)
        self._raw = False
        """Whether the content before was given back, so that white space after it is kept."""
        self._joined: set[str] = set()
        self._idle = 0
        self._text = ""
        self._clean: dict[str, int] = {}
        """The place in the text before which a delimiter, by its name, does not begin: so far it was looked for."""

    def read(self) -> Wait:
        parser = self._parser
        parser.content.cut()
        try:
            yield from self._read()
        except (OutOfTime, _Stuck) as error:
            if isinstance(error, OutOfTime):
                _LOG.warning("The patterns of the response_template took too long; the rest of an answer is its text.")
            self._give_back("")
            parser.content.fresh = False
            yield from parser.reader.until((), parser.content)

    def _read(self) -> Wait:
        reader = self._parser.reader
        while True:
            found = yield from reader.find(self._search, self._take)
            if found is None:
                self._close("")
                return
            (place, match), text = found
            self._idle = 0 if text else self._idle + 1
            if self._idle > 2 * len(self._template.fields):
                raise _Stuck
            if place.opens:
                before = self._around()
                self._close("")
                self._open(place.field, text, match.groupdict(), before)
            else:
                self._close(text)

    # ---- what comes next

    def _search(self, text: str, at: int, ended: bool) -> SearchMatch | int:
        inside = self._field is not None and self._field is not self._implicit
        watch = self._inside[self._field.name] if inside and self._field is not None else self._outside
        begin = at
        if watch.first is not None:
            first = watch.first.search(text, at)
            if first is None:
                return len(text)
            begin = first.start()
        end = min(begin + VIEW, len(text))
        over = ended and end == len(text)
        best, waits = self._best(watch.places, text, begin, end, over=over)
        if best is None and waits == begin and end - begin >= VIEW:
            return begin + VIEW // 2
        return waits if best is None else best

    def _best(
        self, places: Sequence[_Place], text: str, begin: int, end: int, *, over: bool
    ) -> tuple[SearchMatch | None, int]:
        """The delimiter that comes first, and the place up to which none may begin that is not whole yet. over: whether
        the text ends there."""
        best, key, waits = None, (0, 0, False, ""), end
        if text is not self._text:
            self._text, self._clean = text, {}
        for place in places:
            delimiter = place.delimiter
            start = max(begin, self._clean.get(delimiter.name, 0))
            search = delimiter.pattern.search if delimiter.literals else self._searching(delimiter)
            match = search(text, start, end, partial=not over) if start <= end else None
            self._clean[delimiter.name] = max(start, end) if match is None else match.start()
            if match is None:
                continue
            if not over and delimiter.may_grow(match, end):
                waits = min(waits, match.start())
                continue
            own = (match.start(), -len(match[0]), not place.opens, place.field.name)
            if best is None or own < key:
                best, key = SearchMatch(match.start(), match.end(), (place, match)), own
        return (None if best is not None and best.begin >= waits else best), waits

    def _searching(self, delimiter: Delimiter) -> Callable[..., Any]:
        return partial(self._budget.search, delimiter.pattern)

    # ---- regions

    def _take(self, text: str) -> None:
        """Text within a region, or in none."""
        self._idle = 0
        if self._field is None:
            return
        if not self._opened:
            self._open(self._field, "", {}, self._around())
        if self._field.is_calls:
            self._body.append(text)
        elif self._field.is_reasoning:
            self._parser.reasoning(text)
        else:
            self._parser.content(text)

    def _around(self) -> tuple[list[str], bool]:
        """The white space that the content ends with so far, and whether any that follows is dropped."""
        if self._field is not None and self._opened and not self._field.stripped:
            return [], False  # it is part of the content
        return self._parser.content.withheld, self._parser.content.fresh

    def _open(self, region: Field, begun: str, captures: dict[str, str | None], before: tuple[list[str], bool]) -> None:
        """A region begins. begun: the text that begins it. before: of _around(), before the last region was closed."""
        parser = self._parser
        self._field, self._opened, self._begun, self._body, self._before = region, True, begun, [], before
        self._captures = {name: text for name, text in captures.items() if text is not None}
        if region.is_calls:
            return
        if region.is_reasoning:
            parser.begin_reasoning()
        elif self._raw:
            self._raw = False
            return
        else:
            parser.content.cut()
        text = self._text_of(region)
        if region.join and region.name in self._joined:
            text.emit(region.join, text.place())
        self._joined.add(region.name)
        text.fresh = region.stripped

    def _close(self, ended: str) -> None:
        """The region is over, if there is one. ended: the text that ends it."""
        found, opened = self._field, self._opened
        if found is not None and opened:
            if found.is_calls:
                self._calls(found, ended)
            else:
                if not found.stripped:
                    self._text_of(found).finish()
                self._text_of(found).cut()
                if found.is_reasoning:
                    self._parser.end_reasoning()
        self._field, self._opened = self._implicit, False

    def _calls(self, region: Field, ended: str) -> None:
        """The calls of a region. It is content if it has none, or if the request has no tools."""
        parser = self._parser
        called: list[Called] = []
        try:
            if parser.tools:
                called = calls_in(region, "".join(self._body), self._captures, parser.tools, self._budget)
        except Malformed:
            pass
        except OutOfTime:
            self._give_back(ended)
            raise
        if not called:
            self._give_back(ended)
            return
        parser.content.cut()
        for call in called:
            parser.begin(call.name, call.call_id)
            parser.arguments(call.arguments)

    def _give_back(self, ended: str) -> None:
        """What was held of a region is content, as it was written."""
        found, parser = self._field, self._parser
        if found is not None and self._opened and found.is_reasoning:
            parser.end_reasoning()
        if found is not None and self._opened and found.is_calls:
            parser.content.withheld, parser.content.fresh = self._before
            parser.content("".join((self._begun, *self._body, ended)))
            self._raw = True
        self._opened = False

    def _text_of(self, region: Field) -> Trimmed:
        return self._parser.reasoning if region.is_reasoning else self._parser.content


@dataclass(frozen=True)
class TemplateFormat(ResponseFormat):
    """The format of a checkpoint's response_template. family: one that writes what the template reads, for what a
    grammar has to demand; None: that is said by the template itself. special: the special tokens that reading needs."""

    template: Template = field(kw_only=True)
    family: ResponseFormat | None = None
    special: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        return self.special

    @property
    def reasons(self) -> bool:
        return self.template.reasoning is not None

    def reads(self, *, tools: bool) -> bool:
        return True

    @property
    def prompt_anchor(self) -> str:
        return self.template.anchor

    @property
    def before_calls(self) -> ReasoningMarkers | None:
        own = None if self.family is None or not self.reasons else self.family.before_calls
        return own or self.reasoning

    @property
    def without_reasoning(self) -> str:
        if self.family is None or self.family.reasoning is None:
            return super().without_reasoning
        return self.family.without_reasoning

    @property
    def marks_answers(self) -> bool:
        answer = self.template.answer
        return self.family is None and answer is not None and answer.opens is not None

    def answer(self, content: Format) -> Format:
        if self.family is not None:
            return self.family.answer(content)
        found = self.template.answer
        begin, end = ("", "") if found is None else found.literals
        return {"type": "tag", "begin": begin, "content": content, "end": end} if begin else content

    def read(self, parser: ResponseParser) -> Wait:
        return _Regions(self.template, parser).read()
