"""Asks the held-out questions and prints the score by kind.

Runs a model folder with transformers, or asks a server with the openai client at temperature 0:

    python -m tools.demo_model.evaluate --model core/tessera/demo
    python -m tools.demo_model.evaluate --base-url http://127.0.0.1:8000/v1
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import Any

from tools.demo_model.generate import Dialogue, held_out_questions
from tools.demo_model.items import Item
from tools.demo_model.judge import is_right

QUESTIONS = 200
MAX_TOKENS = 96


def main() -> None:
    """Runs the command line; exits with 1 if a given threshold is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", type=Path, help="folder of the model")
    source.add_argument("--base-url", help="where an OpenAI-compatible server answers, /v1 included")
    parser.add_argument("--served-name", default="tessera-demo", help="name of the model on the server")
    parser.add_argument("--questions", type=int, default=QUESTIONS)
    parser.add_argument("--seed", type=int, default=0, help="which held-out questions")
    parser.add_argument("--at-least", type=float, default=0.0, help="share that must be right")
    parser.add_argument("--each-at-least", type=float, default=0.0, help="share of every kind that must be right")
    parser.add_argument("--below", type=float, default=1.01, help="share that must not be reached")
    parser.add_argument("--show-wrong", action="store_true")
    arguments = parser.parse_args()
    questions = held_out_questions(arguments.questions, arguments.seed)
    dialogues = [messages for _, messages in questions]
    if arguments.model:
        replies = answer_by_transformers(arguments.model, dialogues)
    else:
        replies = answer_by_server(arguments.base_url, arguments.served_name, dialogues)
    total, each = report([item for item, _ in questions], replies, arguments.show_wrong)
    good = total >= arguments.at_least and min(each.values()) >= arguments.each_at_least and total < arguments.below
    raise SystemExit(0 if good else 1)


def report(items: list[Item], replies: list[str], show_wrong: bool) -> tuple[float, dict[str, float]]:
    """Prints the score by kind; returns the fraction of right answers, overall and by kind."""
    asked, right = Counter(item.kind for item in items), Counter[str]()
    for item, reply in zip(items, replies, strict=True):
        right[item.kind] += is_right(item, reply)
        if show_wrong and not is_right(item, reply):
            print(f"wrong: {item.question!r} got {reply!r}, expected {item.expected!r}")
    for kind in asked:
        print(f"{kind:12}{right[kind]:4} of {asked[kind]:4}  {right[kind] / asked[kind]:7.1%}")
    total = right.total() / asked.total()
    print(f"{'all':12}{right.total():4} of {asked.total():4}  {total:7.1%}", flush=True)
    return total, {kind: right[kind] / asked[kind] for kind in asked}


def answer_by_server(base_url: str, name: str, dialogues: list[Dialogue]) -> list[str]:
    """A server's replies, one request per dialogue."""
    from openai import OpenAI

    replies = []
    with OpenAI(base_url=base_url, api_key="none") as client:
        for messages in dialogues:
            asked: Any = messages  # the client has its own message types
            completion = client.chat.completions.create(
                model=name, messages=asked, temperature=0, max_tokens=MAX_TOKENS
            )
            replies.append(completion.choices[0].message.content or "")
    return replies


def answer_by_transformers(folder: Path, dialogues: list[Dialogue]) -> list[str]:
    """Greedy replies of a model folder in bfloat16. Prompts of the same length run together, so none is padded."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    render = partial(tokenizer.apply_chat_template, add_generation_prompt=True, tokenize=False)
    prompts = list(map(render, dialogues))
    by_length = defaultdict(list)
    for index, prompt in enumerate(prompts):
        by_length[len(tokenizer.encode(prompt))].append(index)
    replies = [""] * len(dialogues)
    for length, indices in by_length.items():
        batch = tokenizer([prompts[index] for index in indices], return_tensors="pt")
        with torch.inference_mode():
            out = model.generate(**batch, max_new_tokens=MAX_TOKENS, do_sample=False)
        for index, ids in zip(indices, out[:, length:], strict=True):
            replies[index] = tokenizer.decode(ids, skip_special_tokens=True)
    return replies


if __name__ == "__main__":
    main()
