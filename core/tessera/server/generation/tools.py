"""The tools of a chat: which the model is shown, which it may call or has to, and what a grammar demands for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UnsetType

from tessera.errors import RequestError
from tessera.parsing import plain
from tessera.parsing.calls import Format, Tool, is_name
from tessera.parsing.custom import parameters
from tessera.parsing.forced import forced_calls
from tessera.parsing.response import MarkedFormat, ResponseFormat
from tessera.sampling_params import SamplingParams, StructuredOutputsParams, changed
from tessera.server.generation.chat import ChatFields, CustomSpec, ToolSpec
from tessera.server.generation.structured import (
    RequestedGrammar,
    build_grammar,
    compile_grammar,
    prepare_params,
    structured_outputs,
    tag_format,
)
from tessera.server.served_model import ServedModel
from tessera.server.settings import Limits

_MODES = ("none", "auto", "required")
UNSEEN = {
    name: f"[{what}, which this model cannot see]"
    for what, names in (("An image", ("image", "input_image")), ("A document", ("document", "input_file")))
    for name in names
}
"""What a model is told in place of parts of a tool's result, by their types. It called the tool itself: refusing the
result would end what an agent does, and all it does later in the same chat."""


@dataclass(frozen=True)
class ToolUse:
    """What tools mean for one answer."""

    # how the answer is written: as the model does, or plainly if a call is demanded that it could not write so; None:
    # it is text
    format: ResponseFormat | None
    # as the chat template takes them; None for none
    template_tools: list[dict[str, Any]] | None = None
    # those that the model may call
    tools: tuple[Tool, ...] = ()
    # what a grammar demands, which allows calls; None if nothing is demanded
    forced: Format | None = None
    # whether the answer has to be calls
    required: bool = False
    # whether the request names the one function to call
    names_function: bool = False
    # whether there may be several calls
    parallel: bool = True


@dataclass(frozen=True)
class _ToolChoice:
    mode: str = "auto"
    # of the tools that may be called; None for all
    names: frozenset[str] | None = None
    # whether it names the one function to call
    names_function: bool = False


def tool_use(request: ChatFields, written: ResponseFormat | None, limits: Limits) -> ToolUse:
    """written: how the model writes answers. Raises RequestError."""
    specs = request.tools or []
    choice = _choice(request)
    if len(specs) > limits.tools:
        raise RequestError(f"tools must have at most {limits.tools} tools, got {len(specs)}.", param="tools")
    tools = [_tool(spec, f"tools[{index}]") for index, spec in enumerate(specs)]
    _check_names(tools, choice)
    if not tools or choice.mode == "none":
        # Tools that may not be called are not shown: the model would call them all the same.
        return ToolUse(written)
    required, parallel = choice.mode == "required", request.parallel_tool_calls is not False
    if required and (written is None or written.calls is None or not written.forces):
        written = MarkedFormat(plain.NAME, None if written is None else written.reasoning, plain.PLAIN)
    if written is None or written.calls is None:
        raise RequestError(
            "This server reads no calls of tools from this model's answers; leave out tools, or let its operator "
            "choose a --tool-call-parser: json works with every model.",
            param="tools",
        )
    parallel = parallel and not choice.names_function
    callable_tools = tuple(tool for tool in tools if choice.names is None or tool.name in choice.names)
    if not written.forces and (not parallel or any(tool.strict for tool in callable_tools)):
        raise _unforced("A strict tool and parallel_tool_calls=false", "tools")
    return ToolUse(
        written,
        template_tools=[msgspec.to_builtins(spec.as_function()) for spec in specs],
        tools=callable_tools,
        forced=forced_calls(written.calls, callable_tools, required=required, parallel=parallel),
        required=required,
        names_function=choice.names_function,
        parallel=parallel,
    )


def _answer_grammar(grammar: RequestedGrammar, use: ToolUse) -> RequestedGrammar:
    """What a grammar demands of the answer: calls, or what else the request asks for, which is then for answers without
    calls. grammar: that of the request's fields. Raises RequestError."""
    written = use.format
    if grammar.params is not None and written is not None and not written.forces:
        raise _unforced("A format of the answer", grammar.place)
    if use.forced is None and (grammar.params is None or not use.tools):
        if grammar.params is None or written is None or not written.marks_answers:
            return grammar
        return _tagged(written.answer(tag_format(grammar)), grammar.place)
    if use.required or grammar.params is None:
        assert use.forced is not None
        return _tagged(use.forced)
    assert written is not None
    assert written.calls is not None
    calls = use.forced or forced_calls(written.calls, use.tools, required=True, parallel=use.parallel)
    return _tagged({"type": "or", "elements": [written.answer(tag_format(grammar)), calls]})


def _unforced(what: str, param: str) -> RequestError:
    return RequestError(
        f"{what} cannot be enforced: the model's response_template says how answers are read, and it is not known how "
        "they have to be written; the server's operator can say with --tool-call-parser and --reasoning-parser.",
        param=param,
    )


def _tagged(content: Format | None, place: str = "tools") -> RequestedGrammar:
    """Raises RequestError."""
    tag = {"type": "structural_tag", "format": content}
    try:
        return RequestedGrammar(StructuredOutputsParams(structural_tag=tag), place)
    except RequestError:
        raise RequestError(
            f"{place} cannot be used: they are too large together to be enforced; name fewer, or let the model choose "
            "without strict.",
            param=place,
        ) from None


async def prepare_constrained(
    model: ServedModel, request: ChatFields, use: ToolUse, params: SamplingParams, client: str
) -> SamplingParams:
    """The params of an answer with tools, or with a form that the request demands; as of prepare_params(). Errors name
    fields of the request, never the structural tag. Raises RequestError, TextWorkerError."""
    grammar = structured_outputs(request)
    whole = _answer_grammar(grammar, use)
    params = changed(params, structured_outputs=whole.params)
    await _check_tools(model, use, client)
    try:
        return await prepare_params(model, whole, params, client)
    except RequestError as error:
        if whole == grammar or error.param == "bad_words":
            raise
        if grammar.params is not None:
            await compile_grammar(model, grammar, client)
        raise _of_field(error, whole.place) from None


def _of_field(error: RequestError, place: str) -> RequestError:
    """The same error of a field of the request."""
    _, _, reason = error.message.partition(" cannot be used: ")
    return type(error)(f"{place} cannot be used: {reason or error.message}", param=place, code=error.code)


async def _check_tools(model: ServedModel, use: ToolUse, client: str) -> None:
    """Compiles the parameters of strict tools and the formats of custom ones, to name the one that cannot be enforced.
    Raises RequestError, TextWorkerError."""
    places = {spec["function"]["name"]: f"tools[{index}]" for index, spec in enumerate(use.template_tools or ())}
    for tool in use.tools:
        if tool.form is not None:
            await _check_form(model, use, tool, f"{places[tool.name]}.custom.format", client)
        elif tool.strict and tool.parameters is not None and use.forced is not None:
            place = f"{places[tool.name]}.function.parameters"
            await compile_grammar(model, build_grammar("json", tool.parameters, place, strict=True), client)


async def _check_form(model: ServedModel, use: ToolUse, tool: Tool, place: str, client: str) -> None:
    """Compiles a call of a custom tool: what its format may be depends on how the model writes calls."""
    assert use.format is not None
    assert use.format.calls is not None
    try:
        await compile_grammar(model, RequestedGrammar(_tagged(use.format.calls.tag(tool)).params), client)
    except RequestError as error:
        raise _of_field(error, place) from None


def _tool(spec: ToolSpec, place: str) -> Tool:
    if spec.type == "custom" and not isinstance(spec.custom, UnsetType):
        return _custom(spec.custom, f"{place}.custom")
    function = spec.function
    if spec.type != "function" or isinstance(function, UnsetType):
        raise RequestError(
            f"{place}.type must be function or custom, and {place}.function or {place}.custom say which.",
            param=f"{place}.type",
        )
    _check_name(function.name, f"{place}.function.name")
    schema = None if isinstance(function.parameters, UnsetType) else function.parameters
    return Tool(function.name, schema, strict=function.strict is True)


def _custom(spec: CustomSpec, place: str) -> Tool:
    _check_name(spec.name, f"{place}.name")
    form: Format | None = None
    match spec.format:
        case None | {"type": "text"}:
            pass
        case {"type": "grammar", "grammar": {"syntax": "lark", "definition": str(definition)}}:
            form = {"type": "grammar", "grammar": definition}
        case {"type": "grammar", "grammar": {"syntax": "regex", "definition": str(definition)}}:
            form = {"type": "regex", "pattern": definition}
        case _:
            raise RequestError(
                f"{place}.format must have the type text, or grammar and a grammar with its syntax (lark or regex) and "
                "definition.",
                param=f"{place}.format",
            )
    return Tool(spec.name, parameters(), strict=form is not None, custom=True, form=form)


def _check_name(name: str, place: str) -> None:
    if not is_name(name):
        raise RequestError(f"{place} must have 1 to 128 characters of A-Z a-z 0-9 _ . -.", param=place)


def _check_names(tools: Sequence[Tool], choice: _ToolChoice) -> None:
    names = {tool.name for tool in tools}
    if len(names) < len(tools):
        raise RequestError("tools must have different names.", param="tools")
    if choice.names is not None and not choice.names <= names:
        raise RequestError("tool_choice names a function that is not among tools.", param="tool_choice")
    if choice.mode == "required" and not tools:
        raise RequestError("tool_choice demands a call, so tools must have a tool.", param="tool_choice")


def _choice(request: ChatFields) -> _ToolChoice:
    """Raises RequestError."""
    given = request.tool_choice
    match given:
        case None:
            return _ToolChoice()
        case "none" | "auto" | "required":
            return _ToolChoice(given)
        case {"type": "function" | "custom"}:
            return _ToolChoice("required", frozenset((_name_of(given, "tool_choice"),)), names_function=True)
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(tools)}}:
            place = "tool_choice.allowed_tools.tools"
            return _ToolChoice(mode, frozenset(_name_of(tool, f"{place}[{index}]") for index, tool in enumerate(tools)))
    raise RequestError(
        f"tool_choice must be one of {', '.join(_MODES)}, or name a function of tools.", param="tool_choice"
    )


def _name_of(tool: Any, place: str) -> str:
    match tool:
        case {"type": "function", "function": {"name": str(name)}} | {"type": "custom", "custom": {"name": str(name)}}:
            return name
        case {"type": "function" | "custom", "name": str(name)}:
            return name
    raise RequestError(f"{place} must name a function or a custom tool.", param="tool_choice")
