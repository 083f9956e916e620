"""From the text of a region to its value, as a response_template says; and from values to the calls of tools."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tessera.parsing.calls import Tool
from tessera.parsing.parameters import Declared, Parameters
from tessera.parsing.reader import Malformed
from tessera.parsing.response_template.budget import Budget
from tessera.parsing.response_template.spec import PLACEHOLDER, Field, compiled

_OPEN, _CLOSE = "\x01", "\x02"
"""What stands for a string that had been taken out of a text."""
_TAKEN_OUT = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
_BARE_KEY = re.compile(r"(?<=[{,])(\w+):")


class Called(NamedTuple):
    """arguments: JSON. call_id: the model's own, if it gave one."""

    name: str
    arguments: str
    call_id: str | None


def calls_in(
    field: Field, text: str, captures: Mapping[str, str], tools: Mapping[str, Tool], budget: Budget
) -> list[Called]:
    """The calls in a region. captures: of its delimiters. Raises Malformed for what is no call, OutOfTime."""
    try:
        value = _value(field, text, captures, budget)
        return [_called(one, tools) for one in (value if isinstance(value, list) else [value])]
    except (ValueError, LookupError, RecursionError, OverflowError):
        raise Malformed from None


def _called(value: Any, tools: Mapping[str, Tool]) -> Called:
    function = value.get("function", value) if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise Malformed
    name, arguments, call_id = function["name"], function.get("arguments", {}), value.get("id")
    if isinstance(arguments, dict):
        tool = tools.get(name)
        arguments = json.dumps(_typed(arguments, tool), ensure_ascii=False, allow_nan=False)
    if not isinstance(arguments, str):
        raise Malformed
    return Called(name, arguments, call_id if isinstance(call_id, str) and call_id else None)


def _value(field: Field, text: str, captures: Mapping[str, str], budget: Budget) -> Any:
    value = _parsed(text, field.content, field.args, budget)
    if field.transform is None:
        return value
    if not field.each:
        return _transformed(field.transform, {**captures, "content": value})
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise Malformed
    return [_transformed(field.transform, {**captures, **one}) for one in value]


def _transformed(transform: Any, scope: Mapping[str, Any]) -> Any:
    """The transform with values in place of its placeholders. Raises LookupError for one that there is not."""
    if isinstance(transform, dict):
        return {key: _transformed(value, scope) for key, value in transform.items()}
    if isinstance(transform, list):
        return [_transformed(value, scope) for value in transform]
    found = PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    if found is None:
        return transform
    value: Any = scope
    for key in found[1].split("."):
        if not isinstance(value, Mapping):
            raise Malformed
        value = value[key]
    return value


# ---- parsers of a region's text --------------------------------------------------------------------------------------


def _parsed(text: str, parser: str, args: Mapping[str, Any], budget: Budget) -> Any:
    plain = text.strip() if args.get("strip", True) else text
    match parser:
        case "json":
            return _json(text, args, plain)
        case "xml-inline":
            return _tags(text, args, budget)
        case "kv-lines":
            return _lines(text, args, budget)
        case "int":
            return int(plain)
        case "float":
            return float(plain)
        case "bool":
            return plain.lower() in ("true", "1")
    return plain


def _json(text: str, args: Mapping[str, Any], plain: str) -> Any:
    """JSON, or what the options make JSON of: strings between other quotes, keys without quotes."""
    delimiters = args.get("string_delims") or ()
    if delimiters and (_OPEN in text or _CLOSE in text):
        raise Malformed
    working, taken = text, list[str]()
    for begin, end in delimiters:
        working = _take_out(working, begin, end, taken)
    if args.get("unquoted_keys"):
        working = _BARE_KEY.sub(r'"\1":', working)
    if taken:
        working = _TAKEN_OUT.sub(lambda match: json.dumps(taken[int(match[1])]), working)
    try:
        return json.loads(working)
    except ValueError:
        if args.get("allow_non_json"):
            return plain
        raise


def _take_out(text: str, begin: str, end: str, taken: list[str]) -> str:
    """The text with the number of each string in its place."""
    parts, at = list[str](), 0
    while True:
        opened = text.find(begin, at)
        closed = -1 if opened < 0 else text.find(end, opened + len(begin))
        if closed < 0:
            return "".join((*parts, text[at:]))
        parts += (text[at:opened], f"{_OPEN}{len(taken)}{_CLOSE}")
        taken.append(text[opened + len(begin) : closed])
        at = closed + len(end)


def _tags(text: str, args: Mapping[str, Any], budget: Budget) -> dict[str, Any]:
    """Tags with a key and a value each, which a pattern finds; what is between them is dropped."""
    found: dict[str, Any] = {}
    for match in budget.all(compiled(args["tag_pattern"], "tag_pattern"), text):
        groups = match.groupdict()
        key, value = groups["key"], _inner(groups.get("value", ""), args, budget)
        if key not in found or not args.get("merge_duplicates"):
            found[key] = value
            continue
        if not isinstance(found[key], list):
            found[key] = [found[key]]
        found[key].append(value)
    return found


def _lines(text: str, args: Mapping[str, Any], budget: Budget) -> dict[str, Any]:
    """A key and a value on each line; other lines are dropped."""
    strip, separator = args.get("strip", True), args.get("kv_sep", ":")
    found: dict[str, Any] = {}
    for line in text.split(args.get("line_sep", "\n")):
        key, separated, value = (line.strip() if strip else line).partition(separator)
        if separated:
            found[key.strip() if strip else key] = _inner(value.strip() if strip else value, args, budget)
    return found


def _inner(text: str | None, args: Mapping[str, Any], budget: Budget) -> Any:
    """text: None for a group that matched nothing."""
    parser = args.get("value_parser")
    if parser is None:
        return text
    if text is None:
        raise Malformed
    return _parsed(text, parser.get("name", "text"), parser.get("args", {}), budget)


# ---- arguments by the types of a tool's parameters -------------------------------------------------------------------


def _typed(arguments: Mapping[str, Any], tool: Tool | None) -> dict[str, Any]:
    """The arguments with values in place of texts that stand for them."""
    own = Parameters() if tool is None else tool.declared
    return {key: _as_declared(value, own.declared(key)) for key, value in arguments.items()}


def _as_declared(value: Any, declared: Declared) -> Any:
    types = _types(declared)
    if isinstance(value, str):
        return value if declared.values and value in declared.values else _cast(value, types)
    if isinstance(value, list) and types and "array" not in types:
        return [_cast(one, types) if isinstance(one, str) else one for one in value]
    return value


def _types(declared: Declared) -> tuple[str, ...]:
    """In the order of the schema; none where it says none."""
    return declared.types if declared.says_type else ()


def _cast(text: str, types: tuple[str, ...]) -> Any:
    """The value of the first type that the text is one of; else the text."""
    for kind in types:
        try:
            return _CASTS[kind](text)
        except (LookupError, ValueError, RecursionError, OverflowError):
            continue
    return text


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)


def _number(text: str) -> float | int:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return int(number) if number.is_integer() and "." not in text else number


def _boolean(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()]


def _null(text: str) -> None:
    return {"null": None, "None": None}[text.strip()]


def _nested(text: str, kind: type) -> Any:
    value = json.loads(text)
    if not isinstance(value, kind):
        raise ValueError(text)
    return value


_CASTS: Mapping[str, Any] = {
    "integer": _integer, "number": _number, "boolean": _boolean, "null": _null,
    "object": lambda text: _nested(text, dict), "array": lambda text: _nested(text, list),
}  # fmt: skip
