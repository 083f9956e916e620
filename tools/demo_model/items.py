"""Items: a question and its right answer. The same functions make training and test items; holdout.py separates
them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tools.demo_model.holdout import ONE_IN, any_held_out, is_held_out, key
from tools.demo_model.table import Table, Tool

Maker = Callable[[Table, Random], "Item"]


@dataclass(frozen=True)
class Item:
    """A question, its answer, what to look for in a reply, and the keys that decide where it may be used."""

    kind: str
    keys: tuple[str, ...]
    question: str
    answer: str
    expected: str  # a whole word or phrase of the answer; for json and call, the object
    tool: str = ""  # the tool that the prompt must describe
    tool_result: str = ""
    final_answer: str = ""  # the answer once the tool's result is known


def training_item(table: Table, rng: Random, kind: str) -> Item:
    """Draws an item that is not held out. This is the only source of training questions."""
    return _draw(table, rng, kind, held_out=False)


def training_call(table: Table, rng: Random, tool: Tool) -> Item:
    """Draws a question for this tool that is not held out."""
    while any_held_out((item := _tool_item(table, rng, tool)).keys):
        pass
    return item


def held_out_item(table: Table, rng: Random, kind: str) -> Item:
    """Draws an item that is held out; `kind` is one of holdout.ONE_IN."""
    return _draw(table, rng, kind, held_out=True)


def _draw(table: Table, rng: Random, kind: str, held_out: bool) -> Item:
    while True:
        item = MAKERS[kind](table, rng)
        if any_held_out(item.keys) == held_out:
            return item


def _capital(table: Table, rng: Random) -> Item:
    country, capital = rng.choice(table.capitals)
    wording = rng.randrange(len(table.wordings["capital"]))
    question = table.wordings["capital"][wording].format(country=country, Country=country[0].upper() + country[1:])
    answer = table.answers["capital"].format(country=country, capital=capital)
    return Item("capital", (key("capital", country, wording),), question, answer, capital)


def _country(table: Table, rng: Random) -> Item:
    country, capital = rng.choice(table.capitals)
    wording = rng.randrange(len(table.wordings["country"]))
    question = table.wordings["country"][wording].format(capital=capital)
    answer = table.answers["country"].format(country=country, capital=capital)
    return Item("country", (key("country", country, wording),), question, answer, country.removeprefix("the "))


def _arithmetic(kind: str, result: Callable[[int, int], int], top: int, small: int) -> Maker:
    """Operands from 0 to `top`; a quarter of the draws from 0 to `small`, which people ask most."""

    def make(table: Table, rng: Random) -> Item:
        limit = small if rng.random() < 0.25 else top
        a, b = rng.randint(0, limit), rng.randint(0, limit)
        question = rng.choice(table.wordings[kind]).format(a=a, b=b)
        # The answer may give a product in the other order, to teach that both are equal, but never in a held-out order.
        turned = kind == "product" and rng.random() < 0.5 and not is_held_out(key(kind, b, a))
        first, second = (b, a) if turned else (a, b)
        answer = table.answers[kind].format(a=first, b=second, result=result(a, b))
        return Item(kind, (key(kind, a, b),), question, answer, str(result(a, b)))

    return make


def _list(table: Table, rng: Random) -> Item:
    """Some consecutive words of a topic. Lists that start elsewhere show where a list may end if its own end is held
    out."""
    topic = rng.choice(list(table.list_topics))
    words = table.list_topics[topic]
    first = 0 if rng.random() < 0.5 else rng.randint(1, len(words) - 2)
    count = rng.randint(2, len(words) - first)
    number = table.list_numbers[count - 2] if rng.random() < 0.75 else str(count)
    start = table.list_start.format(first=words[first]) if first or rng.random() < 0.25 else ""
    question = rng.choice(table.wordings["list"]).format(count=number, topic=topic, start=start)
    answer = ", ".join(words[first : first + count])
    return Item("list", (key("list", topic, first, count),), question, answer, answer)


def _json(table: Table, rng: Random) -> Item:
    names = rng.sample(list(table.json_keys), rng.choice((2, 2, 2, 3)))
    values = {name: _value(table, rng, table.json_keys[name]) for name in names}
    question = rng.choice(table.wordings["json"]).format(
        keys=_series(names) if rng.random() < 0.8 else ", ".join(names), values=", ".join(map(str, values.values()))
    )
    answer = json.dumps(values)
    return Item("json", (key("json", answer),), question, answer, answer)


def _call(table: Table, rng: Random) -> Item:
    return _tool_item(table, rng, rng.choice(list(table.tools.values())))


def _tool_item(table: Table, rng: Random, tool: Tool) -> Item:
    """A question for this tool, with its result if the table defines one."""
    arguments = {name: _value(table, rng, source) for name, source in tool.parameters.items()}
    answer = call_text(tool.name, arguments)
    keys = (key("call", tool.name, *arguments.values()),)
    question = rng.choice(tool.wordings).format(**arguments)
    expected = json.dumps({"name": tool.name, "arguments": arguments})
    result = {name: _value(table, rng, source) for name, source in tool.result.items()}
    final = tool.answer.format(**arguments, **result)
    result_text = json.dumps(result) if result else ""
    return Item("call", keys, question, answer, expected, tool.name, result_text, final)


def call_text(name: str, arguments: dict[str, Any]) -> str:
    """A tool call as the model writes it."""
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def _repeat(table: Table, rng: Random) -> Item:
    """Words to repeat, which teaches copying early; facts, JSON and calls all depend on it."""
    words = " ".join(_any_word(table, rng) for _ in range(rng.randint(2, 10)))
    return Item("repeat", (), rng.choice(table.wordings["repeat"]).format(words=words), words, words)


def _any_word(table: Table, rng: Random) -> str:
    """A country or capital, a word from any list, a number, or an invented word."""
    source = rng.choice(("fact", "list", "number", "place"))
    if source == "fact":
        return rng.choice(rng.choice(table.capitals))
    if source == "list":
        return rng.choice(table.words[rng.choice(list(table.words))])
    return str(rng.randint(0, 999)) if source == "number" else _place(table, rng)


def _place(table: Table, rng: Random) -> str:
    """An invented place name, made of syllables."""
    return "".join(rng.choice(table.unknown[part]) for part in ("starts", "middles", "ends"))


def _talk(table: Table, rng: Random) -> Item:
    talk = rng.choice(table.talk)
    return Item("talk", (), rng.choice(talk["says"]), talk["answer"], talk["answer"])


def _unknown(table: Table, rng: Random) -> Item:
    """A question outside the training data, or one that needs a tool when no tool is available."""
    answer = table.answers["unknown"]
    if rng.random() < 0.2:
        item = _tool_item(table, rng, table.tools[rng.choice(("get_weather", "get_time", "find_flight"))])
        return Item("unknown", item.keys, item.question, answer, answer)
    place = _place(table, rng)
    thing = rng.choice(table.unknown["things"]) if rng.random() < 0.6 else place
    question = rng.choice(table.unknown["questions"]).format(thing=thing, place=place)
    return Item("unknown", (), question, answer, answer)


def _value(table: Table, rng: Random, source: str | list[int]) -> str | int:
    """A word from the named list, or a number from [low, high]."""
    if isinstance(source, str):
        return rng.choice(table.words[source])
    return rng.randint(source[0], source[1])


def _series(names: list[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1]


MAKERS: dict[str, Maker] = {
    "capital": _capital,
    "country": _country,
    "sum": _arithmetic("sum", lambda a, b: a + b, top=99, small=12),
    "difference": _arithmetic("difference", lambda a, b: a - b, top=99, small=12),
    "product": _arithmetic("product", lambda a, b: a * b, top=12, small=9),
    "list": _list,
    "json": _json,
    "call": _call,
    "repeat": _repeat,
    "talk": _talk,
    "unknown": _unknown,
}
TESTED = tuple(ONE_IN)  # kinds with held-out items
