"""The tools of a response: functions and custom tools, alone or in namespaces, and what is left out beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tessera.errors import RequestError
from tessera.server.generation.chat import CustomSpec, FunctionSpec, ToolSpec
from tessera.server.generation.items import Item, whole_name

NAMES: Mapping[str, str] = {
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    ".function.": ".",
    ".custom.": ".",
}
"""What errors of a chat are called in a response."""
_WEB_SEARCH = re.compile(r"web_search(_preview)?(_\d{4}_\d\d_\d\d)?")


@dataclass
class Tools:
    """The tools of one response."""

    # as a chat has them
    specs: list[ToolSpec] = field(default_factory=list)
    # those of the request that the model is told of, as it has them
    request_tools: list[Item] = field(default_factory=list)
    # what fields of the chat are called in the request, for errors
    names: dict[str, str] = field(default_factory=dict)
    # of tools in a namespace, by the name that the model knows: the namespace and the name in it
    spaces: dict[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def from_request(cls, request_tools: Sequence[Item] | None) -> Tools:
        """A search of the web is an offer that a model need not take up, so it is left out beside tools that the client
        runs: agents make it to every model. Raises RequestError."""
        tools, request_tools = cls(), request_tools or ()
        kept = [index for index, tool in enumerate(request_tools) if not _searches_web(tool)]
        for index in kept or range(len(request_tools)):
            tools.request_tools.append(request_tools[index])
            for spec, place in tools._specs(request_tools[index], f"tools[{index}]"):
                own = f"tools[{len(tools.specs)}]"
                if own != place:
                    tools.names |= {f"{own}.{kind}.": f"{place}." for kind in ("function", "custom")}
                tools.specs.append(spec)
        tools.names |= NAMES
        return tools

    def public_item(self, item: Item) -> Item:
        """A call as the client is told of it: the namespace has a field of its own."""
        if item.get("name") not in self.spaces:
            return item
        space, name = self.spaces[item["name"]]
        return {**item, "name": name, "namespace": space}

    def _specs(self, tool: Item, place: str) -> Iterator[tuple[ToolSpec, str]]:
        """The tools that one of the request is, each with its place."""
        if tool.get("type") != "namespace":
            yield _spec(tool, place), place
            return
        space, members = tool.get("name"), tool.get("tools")
        if not isinstance(space, str) or not isinstance(members, list):
            raise RequestError(f"{place} must be a namespace with a name and tools.", param=place)
        for index, member in enumerate(members):
            where = f"{place}.tools[{index}]"
            if not isinstance(member, dict) or not isinstance(member.get("name"), str):
                raise RequestError(f"{where} must be a function or a custom tool, with a name.", param=where)
            name = whole_name(space, member["name"])
            yield _spec({**member, "name": name}, where), where
            self.spaces[name] = (space, member["name"])


def choice_of(choice: str | Item | None) -> str | Item | None:
    """The choice of tools as a chat has it, with the names that the model knows."""
    match choice:
        case {"type": "allowed_tools", "mode": mode, "tools": list(tools)}:
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [*map(_named, tools)]}}
        case {"type": "allowed_tools"}:
            raise RequestError("tool_choice must have a mode and tools that are allowed.", param="tool_choice")
    return _named(choice) if isinstance(choice, dict) else choice


def _named(tool: Item) -> Item:
    """A choice of one tool; one in a namespace is meant only by both of its names."""
    match tool:
        case {"type": "function" | "custom" as kind, "name": str(name), "namespace": space}:
            return {"type": kind, "name": whole_name(space, name)}
    return tool


def _searches_web(tool: Item) -> bool:
    kind = tool.get("type")
    return isinstance(kind, str) and _WEB_SEARCH.fullmatch(kind) is not None


def _spec(tool: Item, place: str) -> ToolSpec:
    match tool:
        case {"type": "function", "name": str(name)}:
            parameters = tool.get("parameters")
            if not isinstance(parameters, dict | None):
                raise RequestError(f"{place}.parameters must be an object.", param=f"{place}.parameters")
            description = tool.get("description")
            spec = FunctionSpec(name, parameters=parameters, strict=tool.get("strict") is True)
            if isinstance(description, str):
                spec.description = description
            return ToolSpec("function", spec)
        case {"type": "custom", "name": str(name)}:
            form = tool.get("format")
            if isinstance(form, dict) and form.get("type") == "grammar":
                form = {"type": "grammar", "grammar": form}
            elif not isinstance(form, dict | None):
                raise RequestError(f"{place}.format must be an object.", param=f"{place}.format")
            description = tool.get("description")
            return ToolSpec(
                "custom",
                custom=CustomSpec(name, description if isinstance(description, str) else msgspec.UNSET, form),
            )
    raise RequestError(
        f"{place} must be a function, a custom tool or a namespace, with a name; other tools are not served.",
        param=place,
    )
