"""The families of models whose answers are known: how each writes its reasoning and its calls, by the name that
--reasoning-parser and --tool-call-parser take, and how a family is recognised.

Names are vLLM's where it has the family too. A new family is a row here, if its calls are written in one of the ways of
calls.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from tessera.errors import ConfigError
from tessera.parsing import plain
from tessera.parsing.calls import JsonCalls, MarkedCalls, NamedCalls, ObjectCalls, PythonCalls, TaggedCalls
from tessera.parsing.harmony import HARMONY
from tessera.parsing.response import MarkedFormat, ReasoningMarkers, ResponseFormat

_DSML = "｜DSML｜"

CALLS: Mapping[str, MarkedCalls] = MappingProxyType(
    {
        "hermes": JsonCalls("<tool_call>", "</tool_call>", space="\n", separator="\n"),
        "qwen3_coder": TaggedCalls(
            ("<tool_call>", "</tool_call>"), ("<function=", ">\n"), ("<parameter=", ">"), ("", "</parameter>"),
            end="</function>", line=True,
        ),
        "llama3_json": JsonCalls("<|python_tag|>", arguments_key="parameters", whole=True, between=";", separator="; "),
        "llama4_pythonic": PythonCalls(("<|python_start|>", "<|python_end|>")),
        "pythonic": PythonCalls(),
        "mistral_list": JsonCalls("[TOOL_CALLS]", listed=True, separator=", ", id_chars=9),
        "mistral": NamedCalls(("[TOOL_CALLS]", ""), "[ARGS]", id_marker="[CALL_ID]", id_chars=9),
        "deepseek_v3": NamedCalls(
            ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"), "\n```json\n",
            ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
            lead="function<｜tool▁sep｜>", after="\n```", separator="\n",
        ),
        "deepseek_v31": NamedCalls(
            ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"), "<｜tool▁sep｜>",
            ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        ),
        "deepseek_v32": TaggedCalls(
            (f"<{_DSML}function_calls>", f"</{_DSML}function_calls>"), (f'<{_DSML}invoke name="', '">\n'),
            (f'<{_DSML}parameter name="', '">'), ("", f"</{_DSML}parameter>"), end=f"</{_DSML}invoke>",
            together=True, marks_strings=True,
        ),
        "glm45": TaggedCalls(
            ("<tool_call>", "</tool_call>"), ("", "\n"), ("<arg_key>", "</arg_key>"), ("<arg_value>", "</arg_value>"),
        ),
        "kimi_k2": NamedCalls(
            ("<|tool_call_begin|>", "<|tool_call_end|>"), "<|tool_call_argument_begin|>",
            ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"), numbered=True,
        ),
        "granite": JsonCalls("<|tool_call|>", listed=True, separator=", "),
        "functiongemma": ObjectCalls(("<start_function_call>", "<end_function_call>"), "<escape>"),
        "gemma4": ObjectCalls(("<|tool_call>", "<tool_call|>"), '<|"|>'),
        plain.NAME: plain.PLAIN,
    }
)  # fmt: skip
"""Ways of writing calls, by name."""

_THINK = ReasoningMarkers("<think>", "</think>")

REASONING: Mapping[str, ReasoningMarkers] = MappingProxyType(
    {
        "deepseek_r1": replace(_THINK, begun=True),
        "qwen3": _THINK,
        "deepseek_v3": _THINK,
        "glm45": _THINK,
        "kimi_k2": _THINK,
        "granite": ReasoningMarkers("Here is my thought process:", "Here is my response:"),
        "mistral": ReasoningMarkers("[THINK]", "[/THINK]"),
        "gemma4": ReasoningMarkers("<|channel>thought\n", "<channel|>"),
    }
)
"""What stands around reasoning, by name."""

OPENAI = "openai"
"""The name of gpt-oss's format, which has both."""

# What a chat template must contain to be of a family; the first that fits is taken.
_TEMPLATES: tuple[tuple[str, str], ...] = (
    (OPENAI, r"<\|channel\|>"),
    ("deepseek_v32", r"DSML"),
    ("deepseek_v3", r"<｜tool▁call▁begin｜>[\s\S]{0,200}```json"),
    ("deepseek_v31", r"<｜tool▁call▁begin｜>"),
    ("kimi_k2", r"<\|tool_call_begin\|>"),
    ("gemma4", r"<\|tool_call>"),
    ("functiongemma", r"<start_function_call>"),
    ("qwen3_coder", r"<function="),
    ("glm45", r"<arg_key>"),
    ("mistral", r"\[ARGS\]"),
    ("mistral_list", r"\[TOOL_CALLS\]"),
    ("granite", r"<\|tool_call\|>"),
    ("hermes", r"<tool_call>"),
    ("llama4_pythonic", r"<\|python_start\|>"),
    ("llama3_json", r'"parameters": '),
)
_REASONING_TEMPLATES: tuple[tuple[str, str], ...] = (
    ("gemma4", r"<\|channel>"),
    ("mistral", r"\[THINK\]"),
    ("granite", r"Here is my thought process"),
    ("deepseek_r1", r"<｜Assistant｜><think>\\n"),
    ("qwen3", r"</?think>"),
)


def response_format(tool_calls: str, reasoning: str, template: str) -> ResponseFormat | None:
    """The format that a server reads answers in; None: answers are text. tool_calls, reasoning: names, "auto" or
    "none". template: the model's chat template. Raises ConfigError for an unknown name."""
    calls = _named("--tool-call-parser", tool_calls, CALLS, _TEMPLATES, template)
    thoughts = _named("--reasoning-parser", reasoning, REASONING, _REASONING_TEMPLATES, template)
    if OPENAI in (calls, thoughts):
        return HARMONY
    if not calls and not thoughts:
        return None
    return MarkedFormat(calls or thoughts, REASONING.get(thoughts), CALLS.get(calls))


def with_calls(response_format: ResponseFormat | None) -> ResponseFormat:
    """The format with calls, if it has none, as JSON: a model can be told how to write that, or made to."""
    if response_format is None:
        return MarkedFormat(plain.NAME, None, plain.PLAIN)
    if isinstance(response_format, MarkedFormat) and response_format.calls is None:
        return replace(response_format, calls=plain.PLAIN)
    return response_format


def _named(
    flag: str, choice: str, names: Mapping[str, object], templates: tuple[tuple[str, str], ...], template: str
) -> str:
    """A name of `names`, OPENAI, or "" for none."""
    if choice == "none":
        return ""
    if choice == "auto":
        return next((name for name, pattern in templates if re.search(pattern, template)), "")
    if choice not in names and choice != OPENAI:
        raise ConfigError(f"{flag} is one of auto, none, {', '.join(sorted((*names, OPENAI)))}.")
    return choice
