"""Holds the rendering of published chat templates against transformers': `python -m tools.template_table`.

The templates are those of llama.cpp and vLLM, in the source archives that pip downloads into build/; `--folder` takes
all *.jinja below a folder instead. Each gets the same chats, here as a client of OpenAI's API sends them, and there as
transformers documents them. The prompt is the same, or transformers' own for a chat that is changed as ADAPTED says, or
both refuse the chat; anything else fails."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import tokenizers
from jinja2 import TemplateError
from tokenizers import models
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from tessera.errors import TesseraError
from tessera.text.template import ChatTemplate

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build/templates"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
LEAST = 100
"""Templates that the archives have at least: fewer mean that they have moved."""
Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Archive:
    """A package whose source archive holds templates. folder: of the templates, in the archive. tools: packages that
    pip needs to read the archive's metadata, and environment: variables for that."""

    package: str
    version: str
    folder: str
    tools: Sequence[str] = ()
    environment: Mapping[str, str] | None = None


ARCHIVES = (
    Archive("llama_cpp_python", "0.3.36", "vendor/llama.cpp/models/templates"),
    Archive(
        "vllm",
        "0.33.0",
        "examples",
        ("setuptools-rust", "setuptools-scm", "wheel"),
        {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": "0.33.0"},
    ),
)


# ---- chats -----------------------------------------------------------------------------------------------------------

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "What's in Zürich?"}
ANSWER = {"role": "assistant", "content": "A lake."}
NEXT = {"role": "user", "content": "And then?"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Says what is there.",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string", "description": "Where."}},
                "required": ["place"],
            },
        },
    }
    for name in ("look", "listen")
]


def call(name: str, key: str) -> dict[str, Any]:
    return {"id": key, "type": "function", "function": {"name": name, "arguments": {"place": "Zürich"}}}


def result(name: str, key: str) -> dict[str, Any]:
    return {"role": "tool", "name": name, "tool_call_id": key, "content": '{"seen": "a lake"}'}


LOOK, LISTEN = call("look", "call00001"), call("listen", "call00002")
CALLS = {"role": "assistant", "content": None, "tool_calls": [LOOK]}
BOTH = {"role": "assistant", "content": None, "tool_calls": [LOOK, LISTEN]}
RESULT, OTHER = result("look", "call00001"), result("listen", "call00002")
THOUGHT = {"role": "assistant", "content": "A lake.", "reasoning_content": "Lakes are wet."}
PARTS = {"role": "user", "content": [{"type": "text", "text": "What is in"}, {"type": "text", "text": "Zürich?"}]}

CHATS: Mapping[str, tuple[Messages, bool]] = {
    "a question": ([USER], False),
    "a system message": ([SYSTEM, USER], False),
    "turns": ([SYSTEM, USER, ANSWER, NEXT], False),
    "tools": ([SYSTEM, USER], True),
    "a call": ([USER, CALLS, RESULT], True),
    "a call, with a text": ([SYSTEM, USER, {**CALLS, "content": "Let me look."}, RESULT], True),
    "calls at once": ([USER, BOTH, RESULT, OTHER], True),
    "a call before": ([SYSTEM, USER, CALLS, RESULT, ANSWER, NEXT], True),
    "reasoning": ([USER, THOUGHT, NEXT], False),
    "reasoning, then a call": ([USER, {**CALLS, "reasoning_content": "Let me see."}, RESULT], True),
    "parts": ([PARTS], False),
    "an image left out": ([USER, CALLS, {**RESULT, "content": "(an image, which is not shown)"}, ANSWER, NEXT], True),
}
"""By name, and whether tools are offered."""


def of_a_client(messages: Messages) -> Messages:
    """As OpenAI's API has it: the arguments of calls are JSON text."""
    return _with_arguments(messages, lambda arguments: json.dumps(arguments, ensure_ascii=False))


def _with_arguments(messages: Messages, change: Callable[[Any], Any]) -> Messages:
    changed = deepcopy(messages)
    for message in changed:
        for each in message.get("tool_calls", ()):
            each["function"]["arguments"] = change(each["function"]["arguments"])
    return changed


# ---- what transformers makes of a chat that is changed ---------------------------------------------------------------


def _with_content(content: Any) -> Callable[[Messages], Messages]:
    return lambda messages: [
        {**each, "content": content} if each.get("content", 0) is None else each for each in messages
    ]


def _with_reasoning(messages: Messages) -> Messages:
    return [
        {**each, "reasoning": each["reasoning_content"]} if "reasoning_content" in each else each for each in messages
    ]


def _joined(messages: Messages) -> Messages:
    return [
        {**each, "content": "\n".join(part["text"] for part in each["content"])}
        if isinstance(each.get("content"), list)
        else each
        for each in messages
    ]


NULL = "(null)"
"""A content that transformers is not made to leave out."""
ADAPTED: Mapping[str, Callable[[Messages], Messages]] = {
    "an empty content: the template refuses null": _with_content(""),
    "a content of null: the template shows calls beside that alone": _with_content(NULL),
    "arguments as text: the template joins or prints them": of_a_client,
    "reasoning by its third name, the only one that the template reads": _with_reasoning,
    "parts joined by line breaks: the template expects a string": _joined,
}
"""What a chat is given as where a template does not take it, or drops something, as transformers documents it."""


class Oracle:
    """transformers' rendering."""

    def __init__(self) -> None:
        self._tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(models.BPE()), **SPECIAL)

    def prompt(self, source: str, messages: Messages, tools: Messages | None) -> str | None:
        """None if the template refuses the messages."""
        options = {"chat_template": source, "tools": tools, "add_generation_prompt": True}
        try:
            if any(each.get("content") == NULL for each in messages):
                chat = [{**each, "content": None} if each.get("content") == NULL else each for each in messages]
                return str(render_jinja_template([chat], **options, **SPECIAL)[0][0])
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False, **options))
        except (TemplateError, TypeError, ValueError, AttributeError, KeyError):
            return None


def explained(oracle: Oracle, source: str, name: str) -> tuple[str, str | None]:
    """How the prompt of a chat stands to transformers', and the difference if nothing explains it."""
    messages, with_tools = CHATS[name]
    tools = TOOLS if with_tools else None
    theirs = oracle.prompt(source, messages, tools)
    try:
        own: str | None = ChatTemplate(source, SPECIAL).render(of_a_client(messages), tools=tools)
    except TesseraError:
        own = None
    if own == theirs:
        return "equal" if own is not None else "refused by both", None
    for count in (1, 2, 3):
        for names in combinations(ADAPTED, count):
            changed = messages
            for each in names:
                changed = ADAPTED[each](changed)
            if own is not None and oracle.prompt(source, changed, tools) == own:
                return "; ".join(names), None
    return "not explained", f"ours: {own!r}\n    theirs: {theirs!r}"


# ---- templates -------------------------------------------------------------------------------------------------------


def fetched(archive: Archive) -> Path:
    """The source archive. pip asks the package for its metadata, and may need tools for that, but builds nothing.
    Raises CalledProcessError."""
    path = FOLDER / f"{archive.package}-{archive.version}.tar.gz"
    if path.exists():
        return path
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    asked = ["--no-binary", archive.package, "--dest", str(FOLDER), f"{archive.package}=={archive.version}"]
    environment = {**os.environ, **(archive.environment or {})}
    if archive.tools:
        site = FOLDER / f"{archive.package}-tools"
        subprocess.run([*pip, "install", "--quiet", "--target", str(site), *archive.tools], check=True)
        environment["PYTHONPATH"] = str(site)
        asked.insert(0, "--no-build-isolation")
    subprocess.run([*pip, "download", "--quiet", "--no-deps", *asked], check=True, env=environment)
    return path


def published() -> Iterator[tuple[str, str]]:
    """Templates by name. Raises CalledProcessError."""
    for archive in ARCHIVES:
        begin = f"{archive.package}-{archive.version}/{archive.folder}/"
        with tarfile.open(fetched(archive)) as files:
            for member in files:
                rest = member.name.removeprefix(begin)
                if member.name.startswith(begin) and "/" not in rest and rest.endswith(".jinja"):
                    found = files.extractfile(member)
                    assert found is not None
                    yield f"{archive.package}: {rest}", found.read().decode()


def in_folder(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*.jinja")):
        yield str(path.relative_to(folder)), path.read_text(encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.template_table", description=__doc__)
    parser.add_argument("--folder", type=Path, help="take the templates from this folder")
    folder = parser.parse_args().folder
    oracle, counts, failed = Oracle(), Counter[str](), 0
    templates = list(published() if folder is None else in_folder(folder))
    if folder is None and len(templates) < LEAST:
        print(f"The archives hold {len(templates)} templates; at least {LEAST} are expected.")
        return 1
    for template, source in templates:
        for chat in CHATS:
            how, difference = explained(oracle, source, chat)
            counts[how] += 1
            if difference is not None:
                failed += 1
                print(f"{template}, {chat}:\n    {difference}")
            elif how != "equal":
                print(f"{template}, {chat}: {how}")
    print(f"{len(templates)} templates with {len(CHATS)} chats each:")
    for how, count in counts.most_common():
        print(f"{count:6}  {how}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
