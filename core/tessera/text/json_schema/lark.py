"""Forms of JSON as a grammar of llguidance, in Lark's syntax.

Values that are one token of JSON become terminals, of which each place has one: numbers, names, literals. Strings whose
patterns say what they are become grammars of their own, which llguidance quotes as JSON does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from tessera.text.json_schema.cases import Cases
from tessera.text.json_schema.document import SchemaError, format_place
from tessera.text.json_schema.forms import Arrays, Conjunction, Form, Literals, ObjectForm
from tessera.text.json_schema.keywords import is_number, mapping, required
from tessera.text.json_schema.numbers import Numbers, multiples
from tessera.text.json_schema.patterns import Patterns
from tessera.text.json_schema.rules import ENDLESS, NONE, TOO_COMPLEX
from tessera.text.json_schema.strings import Strings, Unanchored, literal

MAX_STATES = 20_000
MAX_UNIQUE = 64
"""Values of which an array may hold each once: the bits of a parameter of a rule."""
UNIQUE = f"only items of at most {MAX_UNIQUE} values are kept apart; use enum, or send strict: false to leave it out"
REPEATED = (
    "a property that is not listed can be repeated, so one at most of these counts; list the properties, or send "
    "strict: false to let them all count"
)
ANCHORS = "^ may only be its beginning and $ its end, where not or oneOf leave something out"
MULTIPLES = "multipleOf is not supported beside a not that excludes some numbers"
_MOST_COUNTED = 2_000


class Embedded(NamedTuple):
    """A grammar within the grammar."""

    # A JSON Schema of strings, or of multiples, as llguidance compiles it.
    schema: dict[str, Any]
    # Whether it begins the whole text, which does not begin with white space.
    initial: bool


class State:
    """A conjunction on its way to a rule."""

    def __init__(self, name: str, conjunction: Conjunction, forms: list[Form]) -> None:
        self.name = name
        self.conjunction = conjunction
        self.forms = forms
        self.alive = False


class GrammarWriter:
    """Writes the grammar of one schema."""

    def __init__(self, cases: Cases, patterns: Patterns, name: str) -> None:
        self._cases = cases
        self._patterns = patterns
        self._name = name
        self._states: dict[frozenset[Any], State] = {}
        self._rules: list[str] = []
        self._terminals: dict[str, str] = {}
        self._embedded: dict[str, Embedded] = {}
        self._embedding: dict[str, dict[str, Any]] = {}  # schemas, by the rules that embed them
        self._by_schema: dict[str, str] = {}  # those rules
        self._terminal_of: dict[str, str] = {}  # terminals that say the same as a rule that embeds a schema
        self._count = 0

    def write(self, root: Conjunction) -> tuple[str, dict[str, Embedded]]:
        """The rules, of which the first is `start`, and what they embed by its name. Raises SchemaError, also where no
        value is valid."""
        start = self._explore(root)
        self._judge()
        if not start.alive:
            if any(isinstance(form, Numbers) and not form.writable for form in start.forms):
                raise SchemaError("", MULTIPLES)
            raise self._impossible(start)
        whole = ""
        for state in self._states.values():
            if state.alive:
                alternatives = list(dict.fromkeys(self._alternatives(state)))
                self._rules.append(f"{state.name}: {' | '.join(alternatives)}")
                if state is start:
                    whole = self._whole(start, alternatives)
        terminals = (f"{name}: {body}" for body, name in self._terminals.items())
        return "\n".join((f"start: {whole}", *self._rules, *terminals)), self._embedded

    # ---- which states there are, and which lead to a value

    def _explore(self, root: Conjunction) -> State:
        start, waiting = self._state(root)
        while waiting:
            for below in _below(waiting.pop()):
                _, more = self._state(below)
                waiting += more
        return start

    def _state(self, conjunction: Conjunction) -> tuple[State, list[Form]]:
        """A state, and its forms if it is new."""
        key = frozenset(conjunction)
        found = self._states.get(key)
        if found is not None:
            return found, []
        if len(self._states) >= MAX_STATES:
            raise SchemaError("", TOO_COMPLEX)
        forms = self._cases.forms(conjunction)
        found = self._states[key] = State(f"v{len(self._states)}", conjunction, forms)
        return found, list(forms)

    def _alive(self, conjunction: Conjunction) -> bool:
        return self._states[frozenset(conjunction)].alive

    def _judge(self) -> None:
        """A state lives if one of its forms needs nothing but what lives: the least such set, so that a schema which
        only refers to itself has no value."""
        changed = True
        while changed:
            changed = False
            for state in reversed(self._states.values()):
                if not state.alive and any(self._lives(form) for form in state.forms):
                    state.alive = changed = True

    def _impossible(self, start: State) -> SchemaError:
        """Why no value is valid: for what has none itself, wherever it is demanded, or else without an end."""
        for state in self._states.values():
            state.alive = True
        dead: list[State] = []
        while more := [each for each in self._states.values() if each.alive and not any(map(self._lives, each.forms))]:
            for state in more:
                state.alive = False
            dead += more
        if start.alive:
            return SchemaError("", ENDLESS)
        found = start
        while below := [self._states[frozenset(part)] for form in found.forms[:1] for part in _demanded(form)]:
            first = next((state for state in dead if state in below), found)
            if dead.index(first) >= dead.index(found):
                break
            found = first
        conjunction = found.conjunction
        while inner := self._required_and_impossible(conjunction):
            conjunction = inner
        return SchemaError(format_place(conjunction[0].place), NONE)

    def _required_and_impossible(self, conjunction: Conjunction) -> Conjunction:
        """A property that has no value by itself, if one is required."""
        for schema in conjunction:
            listed = mapping(schema, "properties") if isinstance(schema.schema, dict) else {}
            for name in required(schema) if listed else ():
                if name in listed and not self._cases.forms((schema.child("properties", name),)):
                    return (schema.child("properties", name),)
        return ()

    def _lives(self, form: Form) -> bool:
        match form:
            case Numbers():
                return form.writable
            case Strings():
                return not self._patterns.none(form)
            case Arrays():
                if form.contains is not None and not self._alive(_contained(form)):
                    return False
                return form.min_items <= self._length(form)
            case ObjectForm():
                if not all(self._alive(each.conjunction) for each in form.properties if each.required):
                    return False
                living = sum(self._alive(each.conjunction) for each in form.properties)
                return living >= form.min_properties or any(self._alive(region.conjunction) for region in form.regions)
        return True

    def _length(self, form: Arrays) -> float:
        """How many items an array may have."""
        for place, item in enumerate(form.prefix):
            if not self._alive(item):
                return place
        most = float("inf") if form.max_items is None else form.max_items
        if form.rest is None or not self._alive(form.rest):
            return min(most, len(form.prefix))
        values = self._finite(form.rest) if form.unique is not None and not form.prefix else None
        return most if values is None else min(most, len(values))

    def _finite(self, conjunction: Conjunction) -> list[Any] | None:
        """The values of items, if they are few enough to be counted."""
        forms = self._states[frozenset(conjunction)].forms
        if not all(isinstance(form, Literals) for form in forms):
            return None
        values = [value for form in forms if isinstance(form, Literals) for value in form.values]
        distinct = list({literal(value): value for value in values}.values())
        return distinct if len(distinct) <= MAX_UNIQUE else None

    # ---- rules

    def _rule(self, body: str, *, parameter: bool = False) -> str:
        name = f"r{self._count}"
        self._count += 1
        self._rules.append(f"{name}{'::_ ' if parameter else ''}: {body or _NOTHING}")
        return name

    def _terminal(self, body: str) -> str:
        return self._terminals.setdefault(body, f"T{len(self._terminals)}")

    def _value(self, conjunction: Conjunction) -> str:
        return self._states[frozenset(conjunction)].name

    def _alternatives(self, state: State) -> Iterator[str]:
        tokens: list[str] = []
        for form in state.forms:
            if not self._lives(form):
                continue
            match form:
                case Literals():
                    yield from self._literals(form.values, tokens)
                case Numbers():
                    yield from self._numbers(form, tokens)
                case Strings():
                    yield self._string(form)
                case Arrays():
                    yield from self._array(form)
                case ObjectForm():
                    yield self._object(form)
        if tokens:
            yield self._terminal(" | ".join(dict.fromkeys(tokens)))

    def _literals(self, values: Iterable[Any], tokens: list[str]) -> Iterator[str]:
        for value in values:
            if isinstance(value, dict | list):
                yield " ".join(_tokens(value))
            else:
                tokens += _spellings(value)

    def _numbers(self, numbers: Numbers, tokens: list[str]) -> Iterator[str]:
        step = numbers.step
        if numbers.multiples and step is None:
            yield self._of_schema(_multiples(numbers))
            return
        body = f"/{numbers.regex()}/"
        if step is not None and not numbers.integer:
            body = f"({body} & /{multiples(step)}/)"
        if numbers.fractional:
            body = rf"({body} & {_NOT_WHOLE})"
        if numbers.excluded:
            body += "".join(f" & ~/{_number(value)}/" for value in numbers.excluded)
            body = f"({body} & {_DISTINCT})"
        tokens.append(body)

    def _string(self, strings: Strings) -> str:
        if strings.positive:
            rule = self._of_schema(strings.schema())
            if not strings.patterns:
                self._terminal_of[rule] = strings.terminal()
            return rule
        try:
            return self._terminal(strings.terminal())
        except Unanchored:
            place = next((place for _, place in (*strings.excluded_patterns, *strings.patterns)), ())
            raise SchemaError(format_place(place), ANCHORS) from None

    def _of_schema(self, schema: dict[str, Any]) -> str:
        key = repr(schema)
        if key not in self._by_schema:
            self._by_schema[key] = rule = self._embed(Embedded(schema, initial=False))
            self._embedding[rule] = schema
        return self._by_schema[key]

    def _whole(self, start: State, alternatives: list[str]) -> str:
        """The whole text. What is embedded may begin with white space, which an answer does not, so it is embedded
        without any if it is alone. Beside others llguidance confuses white space, so it has to be a terminal there."""
        embedding = self._embedding.keys() & set(alternatives)
        if len(alternatives) == 1 and embedding:
            return self._embed(Embedded(self._embedding[alternatives[0]], initial=True))
        if embedding <= self._terminal_of.keys():
            return " | ".join(
                self._terminal(self._terminal_of[each]) if each in embedding else each for each in alternatives
            )
        return start.name

    def _embed(self, embedded: Embedded) -> str:
        name = f"{self._name}s{len(self._embedded)}"
        self._embedded[name] = embedded
        return self._rule(f"@{name}")

    # ---- arrays

    def _array(self, form: Arrays) -> Iterator[str]:
        max_items = self._length(form)
        if form.contains is not None:
            yield self._array_that_holds(form, max_items)
            return
        values = None
        if form.unique is not None and max_items > 1 and form.rest is not None:
            values = None if form.prefix else self._finite(form.rest)
            if values is None and not self._cases.rules.loose:
                raise form.unique.error(UNIQUE, "uniqueItems")
        if values is not None:
            yield self._unique(form, values, max_items)
            return
        if not form.min_items:
            yield '"[" "]"'
        if max_items:
            yield f'"[" {self._items(form, max_items)} "]"'

    def _items(self, form: Arrays, max_items: float) -> str:
        """One item at least."""
        if not form.prefix:
            assert form.rest is not None
            item = self._value(form.rest)
            return f"{item} {_repeat(_COMMA + item, max(form.min_items - 1, 0), max_items - 1)}"
        prefix = form.prefix if max_items >= len(form.prefix) else form.prefix[: int(max_items)]
        tail = ""
        if max_items > len(prefix) and form.rest is not None:
            least = max(form.min_items - len(prefix), 0)
            tail = _repeat(_COMMA + self._value(form.rest), least, max_items - len(prefix))
        for place in range(len(prefix) - 1, 0, -1):
            tail = f"{_COMMA}{self._value(prefix[place])} {tail}"
            tail = self._rule(tail if place < form.min_items else f"({tail})?")
        return f"{self._value(prefix[0])} {tail}"

    def _array_that_holds(self, form: Arrays, max_items: float) -> str:
        """The item that has to be there may come first, last, or between others."""
        assert form.rest is not None
        item, held = self._value(form.rest), self._value(_contained(form))
        if max_items == float("inf") and form.min_items <= 1:
            return f'"[" ({item} ",")* {held} ("," {item})* "]"'
        max_items = min(max_items, max(form.min_items, _MOST_HELD))
        ways = []
        for before in range(int(max_items)):
            after = _repeat(_COMMA + item, max(form.min_items - 1 - before, 0), max_items - 1 - before)
            ways.append(f'"[" {_repeat(f"{item} {_COMMA}", before, before)} {held} {after} "]"')
        return self._rule(" | ".join(ways))

    def _unique(self, form: Arrays, values: list[Any], max_items: float) -> str:
        """Each value once, which a parameter of the rules remembers."""
        name = f"r{self._count}"
        more = f"{name}m"
        self._count += 1
        lines = [
            f"{' '.join(_tokens(value))} {more}::set_bit({place}) %if bit_clear({place})"
            for place, value in enumerate(values)
        ]
        self._rules.append(f"{name}::_ : " + "\n  | ".join(lines))
        last = int(min(max_items, len(values)))
        self._rules.append(
            f'{more}::_ : "" %if bit_count_ge(_, {max(form.min_items, 1)})\n'
            f'  | "," {name}::_ %if bit_count_lt(_, {last})'
        )
        whole = f'"[" {name}::0x0 "]"'
        return whole if form.min_items else self._rule(f'"[" "]" | {whole}')

    # ---- objects

    def _object(self, form: ObjectForm) -> str:
        members = [each for each in form.properties if self._alive(each.conjunction)]
        regions = [region for region in form.regions if self._alive(region.conjunction)]
        extra = ""
        if regions:
            pairs = ((self._name_of(each.name), self._value(each.conjunction)) for each in regions)
            extra = self._rule(" | ".join(f'{name} ":" {value}' for name, value in pairs))
        if form.min_properties > _MOST_COUNTED:
            raise SchemaError("", TOO_COMPLEX)
        loose = self._cases.rules.loose
        if form.minimum_schema is not None and form.min_properties > len(members) + 1 and not loose:
            raise form.minimum_schema.error(REPEATED, "minProperties")
        listing = _Listing(self._rule, form, extra, distinct=not loose)
        texts = [(f'{literal(each.name)} ":" {self._value(each.conjunction)}', each.required) for each in members]
        return f'"{{" {listing.write(texts)} "}}"'

    def _name_of(self, terminal: str | None) -> str:
        return self._of_schema({"type": "string"}) if terminal is None else self._terminal(terminal)


class _Listing:
    """Writes the properties of an object in their order, with commas, and counts them as far as it matters. rule: makes
    a rule. extra: a property that is not named; "" for none. distinct: only one of these counts as one of the least
    that there have to be, since the others may have its name."""

    def __init__(self, rule: Callable[[str], str], form: ObjectForm, extra: str, *, distinct: bool) -> None:
        self._rule = rule
        self._distinct = distinct
        self._min = form.min_properties
        self._max = None if form.max_properties is None else min(form.max_properties, _MOST_COUNTED)
        self._extra = extra
        self._cap = max(1, form.min_properties) if self._max is None else max(1, self._max)

    def write(self, members: list[tuple[str, bool]]) -> str:
        """members: each with whether it has to be there. None can be left out so that too few remain."""
        if self._max is None and self._min <= 1:
            return self._uncounted(members)
        following = {count: self._end(count) for count in range(self._cap + 1)}
        for place in range(len(members) - 1, -1, -1):
            text, needed = members[place]
            following = {
                count: self._step(text, count, needed=needed, following=following)
                for count in range(min(place, self._cap) + 1)
            }
        found = following[0]
        assert found is not None, "a form that lives has members enough"
        return found

    def _uncounted(self, members: list[tuple[str, bool]]) -> str:
        """What follows each member that may be the first, from the last to the first of these: llguidance follows a
        rule where it is first mentioned, and so is never deep within a long list."""
        last = next((place for place, (_, needed) in enumerate(members) if needed), len(members) - 1)
        following, firsts = self._end(1), []
        if not (members and members[last][1]) and (nothing := self._end(0)) is not None:
            firsts.append(nothing or _NOTHING)
        for place in range(len(members) - 1, -1, -1):
            text, needed = members[place]
            if place <= last:
                firsts.append(f"{text} {following}".strip())
            following = f"{_COMMA}{text} {following}".strip() if needed else f"({_COMMA}{text})? {following}".strip()
            if 0 < place <= last:
                following = self._rule(following)
        return firsts[0] if len(firsts) == 1 else self._rule(" | ".join(firsts))

    def _step(self, text: str, count: int, *, needed: bool, following: dict[int, str | None]) -> str | None:
        """What may follow once `count` properties are written: this one or, if it may be left out, what follows it."""
        after = following[min(count + 1, self._cap)] if self._max is None or count < self._max else None
        written = None if after is None else f"{_COMMA if count else ''}{text} {after}".strip()
        without = None if needed else following[count]
        if written is None or without is None:
            return without if written is None else written
        if count and without == after:
            return self._rule(f"({_COMMA}{text})? {without}") if without else f"({_COMMA}{text})?"
        return self._rule(f"{written} | {without or _NOTHING}")

    def _end(self, count: int) -> str | None:
        least = max(self._min - count, 0)
        most = float("inf") if self._max is None else self._max - count
        if not self._extra or most <= 0:
            return "" if not least else None
        if least > 1 and self._distinct:
            return None
        if count:
            return _repeat(_COMMA + self._extra, least, most)
        whole = f"{self._extra} {_repeat(_COMMA + self._extra, max(least - 1, 0), most - 1)}"
        return whole if least else f"({whole})?"


_NOTHING = '""'
_NOT_WHOLE = r"/-?[0-9]{1,9}\.[0-9]{0,5}[1-9]/"
"""Of at most 15 digits, for a reader that has binary numbers would round others to whole ones."""
_DISTINCT = r"/-?(?:[0-9]+|[0-9.]{3,16})/"
"""Without an exponent, and as a fraction of at most 15 digits, of which no two are the same binary number."""
_COMMA = '"," '
_MOST_HELD = 32
_LARGEST = 10**15


def _contained(form: Arrays) -> Conjunction:
    assert form.contains is not None
    return (*(form.rest or ()), *form.contains)


def _below(form: Form) -> list[Conjunction]:
    if isinstance(form, Arrays):
        rest = [] if form.rest is None else [form.rest]
        return [*form.prefix, *rest, *([] if form.contains is None else [_contained(form)])]
    if isinstance(form, ObjectForm):
        return [*(each.conjunction for each in form.properties), *(region.conjunction for region in form.regions)]
    return []


def _demanded(form: Form) -> list[Conjunction]:
    """Parts without which a value of this form is none."""
    if isinstance(form, Arrays):
        rest = [] if form.rest is None or form.min_items <= len(form.prefix) else [form.rest]
        return [*form.prefix[: form.min_items], *rest, *([] if form.contains is None else [_contained(form)])]
    if isinstance(form, ObjectForm):
        return [each.conjunction for each in form.properties if each.required]
    return []


def _repeat(item: str, minimum: int, maximum: float) -> str:
    if maximum <= 0:
        return ""
    if maximum == float("inf"):
        return f"({item})*" if not minimum else f"({item}){{{minimum},}}"
    if maximum == 1:
        return f"({item})" if minimum else f"({item})?"
    return f"({item}){{{minimum},{int(maximum)}}}"


def _tokens(value: Any) -> Iterator[str]:
    """A JSON value in Lark's syntax, with white space allowed where JSON has it."""
    if isinstance(value, dict):
        yield '"{"'
        for place, (name, each) in enumerate(value.items()):
            yield f'{_COMMA if place else ""}{literal(name)} ":"'
            yield from _tokens(each)
        yield '"}"'
    elif isinstance(value, list):
        yield '"["'
        for place, each in enumerate(value):
            yield from (_COMMA,) if place else ()
            yield from _tokens(each)
        yield '"]"'
    else:
        yield f"({' | '.join(_spellings(value))})"


def _spellings(value: Any) -> list[str]:
    """A value that is neither an object nor an array; 2.0 may be written 2."""
    whole = isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST
    return [literal(value), literal(int(value))] if whole else [literal(value)]


def _number(value: Any) -> str:
    """How a number may be written without an exponent."""
    assert is_number(value)
    whole, _, fraction = f"{value:f}".partition(".") if not isinstance(value, int) else (str(value), "", "")
    fraction = fraction.rstrip("0")
    sign = "-?" if value == 0 else ""
    return rf"{sign}{whole}\.{fraction}0*" if fraction else rf"{sign}{whole}(?:\.0*)?"


def _multiples(numbers: Numbers) -> dict[str, Any]:
    """As a JSON Schema for llguidance, which knows multiples."""
    low = -_LARGEST if numbers.low is None else _plain(numbers.low)
    high = _LARGEST if numbers.high is None else _plain(numbers.high)
    schema: dict[str, Any] = {
        "type": "integer" if numbers.integer else "number",
        "exclusiveMinimum" if numbers.low_open else "minimum": low,
        "exclusiveMaximum" if numbers.high_open else "maximum": high,
    }
    if len(numbers.multiples) == 1:
        schema["multipleOf"] = numbers.multiples[0]
    else:
        schema["allOf"] = [{"multipleOf": step} for step in numbers.multiples]
    return schema


def _plain(number: Any) -> int | float:
    return int(number) if number == int(number) else float(number)
