"""Reads table.toml: the kinds, wordings, facts and words of the demo model."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Tool:
    """A function the model can call, and how people ask for it."""

    name: str
    description: str
    parameters: dict[str, Any]  # parameter -> name of a word list, or [low, high]
    wordings: list[str]
    result: dict[str, Any]  # what the function returns, in the same form; empty if no answer follows
    answer: str

    def schema(self) -> dict[str, Any]:
        """The function as in a request's `tools` field."""
        properties = {
            name: {"type": "string" if isinstance(source, str) else "integer"}
            for name, source in self.parameters.items()
        }
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class Table:
    """The contents of table.toml."""

    systems: list[str]
    wordings: dict[str, list[str]]
    answers: dict[str, str]
    talk: list[dict[str, Any]]
    unknown: dict[str, list[str]]
    list_numbers: list[str]
    list_start: str
    list_topics: dict[str, list[str]]
    json_keys: dict[str, Any]
    tools: dict[str, Tool]
    words: dict[str, list[str]]
    capitals: list[tuple[str, str]]


@cache
def load() -> Table:
    """Reads the committed table."""
    raw = tomllib.loads((Path(__file__).parent / "table.toml").read_text(encoding="utf-8"))
    tools = [Tool(**{"result": {}, "answer": "", **tool}) for tool in raw["tools"]]
    return Table(
        systems=raw["systems"],
        wordings=raw["wordings"],
        answers=raw["answers"],
        talk=raw["talk"],
        unknown=raw["unknown"],
        list_numbers=raw["lists"]["numbers"],
        list_start=raw["lists"]["start"],
        list_topics=raw["lists"]["topics"],
        json_keys=raw["json_keys"],
        tools={tool.name: tool for tool in tools},
        words={**raw["words"], **raw["lists"]["topics"]},
        capitals=[(country, capital) for country, capital in raw["facts"]["capitals"]],
    )
