"""Generates the dialogues for training, an endless seeded stream, and the fixed questions of the test."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from random import Random

from tools.demo_model.items import TESTED, Item, held_out_item, training_call, training_item
from tools.demo_model.table import Table, Tool, load

Message = dict[str, str]
Dialogue = list[Message]

# Relative frequency of each kind among the turns without tools; harder kinds are more frequent.
WEIGHTS = {
    "capital": 8,
    "country": 8,
    "sum": 22,
    "difference": 30,
    "product": 20,
    "list": 12,
    "json": 6,
    "repeat": 5,
    "talk": 2,
    "unknown": 2,
}
TOOLS_SHARE = 0.03  # fraction of dialogues
SYSTEM_SHARE = 0.35  # fraction of dialogues without tools
CASUAL_SHARE = 0.06  # fraction of questions in lower case or without a final punctuation mark
TOOLS_HEAD = "# Tools\nYou can call these functions:\n<tools>\n"
TOOLS_TAIL = (
    "\n</tools>\nTo call one, answer with its name and arguments:\n"
    '<tool_call>\n{"name": NAME, "arguments": ARGUMENTS}\n</tool_call>'
)


def training_dialogues(seed: int) -> Iterator[Dialogue]:
    """Dialogues as chat messages. The same seed gives the same stream, and no turn is held out."""
    table, rng = load(), Random(seed)
    while True:
        yield _with_tools(table, rng) if rng.random() < TOOLS_SHARE else _plain(table, rng)


def held_out_questions(count: int, seed: int = 0) -> list[tuple[Item, Dialogue]]:
    """`count` different held-out questions, spread evenly over the kinds, each with the messages to send."""
    table, rng = load(), Random(f"test {seed}")
    questions: dict[str, tuple[Item, Dialogue]] = {}
    while len(questions) < count:
        item = held_out_item(table, rng, TESTED[len(questions) % len(TESTED)])
        dialogue = [{"role": "user", "content": item.question}]
        if item.tool:
            dialogue.insert(0, {"role": "system", "content": tools_text(_pick_tools(table, rng, item.tool))})
        questions.setdefault(item.question, (item, dialogue))
    return list(questions.values())


def tools_text(tools: list[Tool]) -> str:
    """The system message that describes tools; the chat template writes the same for a request's `tools`."""
    return TOOLS_HEAD + "\n".join(json.dumps(tool.schema()) for tool in tools) + TOOLS_TAIL


def _plain(table: Table, rng: Random) -> Dialogue:
    dialogue: Dialogue = []
    if rng.random() < SYSTEM_SHARE:
        dialogue.append({"role": "system", "content": rng.choice(table.systems)})
    for _ in range(_turns(rng)):
        item = training_item(table, rng, rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0])
        dialogue += _ask(rng, item)
    return dialogue


def _with_tools(table: Table, rng: Random) -> Dialogue:
    tools = _pick_tools(table, rng, rng.choice(list(table.tools)))
    system = rng.choice(table.systems) + "\n\n" if rng.random() < 0.3 else ""
    dialogue = [{"role": "system", "content": system + tools_text(tools)}]
    for _ in range(rng.randint(2, 6)):
        if rng.random() < 0.2:
            dialogue += _ask(rng, training_item(table, rng, rng.choice(("capital", "country", "sum", "talk", "list"))))
        else:
            dialogue += _call_turns(rng, training_call(table, rng, rng.choice(tools)))
    return dialogue


def _call_turns(rng: Random, item: Item) -> Dialogue:
    turns = [{"role": "user", "content": item.question}, {"role": "assistant", "content": item.answer}]
    if item.tool_result and rng.random() < 0.5:
        turns.append({"role": "tool", "content": item.tool_result})
        turns.append({"role": "assistant", "content": item.final_answer})
    return turns


def _ask(rng: Random, item: Item) -> Dialogue:
    question = item.question
    if item.kind not in ("json", "call", "repeat") and rng.random() < CASUAL_SHARE:
        question = question.lower() if rng.random() < 0.5 else question.rstrip("?.!")
    return [{"role": "user", "content": question}, {"role": "assistant", "content": item.answer}]


def _pick_tools(table: Table, rng: Random, needed: str) -> list[Tool]:
    """One to three tools in random order, including `needed`."""
    others = [tool for tool in table.tools.values() if tool.name != needed]
    tools = [table.tools[needed], *rng.sample(others, rng.randint(0, 2))]
    rng.shuffle(tools)
    return tools


def _turns(rng: Random) -> int:
    """The number of turns: mostly one to four; one dialogue in 200 fills the context."""
    if rng.random() < 0.005:
        return rng.randint(12, 30)
    return min(1 + int(math.log(1 - rng.random()) / math.log(0.55)), 10)


def render(dialogue: Dialogue) -> str:
    """The text of a dialogue, as the chat template writes it."""
    return "".join(map(_render_message, dialogue))


def _render_message(message: Message) -> str:
    if message["role"] == "tool":
        return f"<|im_start|>user\n<tool_response>\n{message['content']}\n</tool_response><|im_end|>\n"
    return f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n"
