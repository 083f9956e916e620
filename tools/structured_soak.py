"""Draws many tokens under random JSON Schemas and checks every one of them afterwards: `python -m tools.structured_soak
--tokens 1000000`.

The bundled demo answers at a high temperature, with speculation on, and some of the answers reason first, within a
budget. Each answer is then read by a matcher of its own over single bytes, which has seen nothing of the run, and what
is whole also by jsonschema. Ends with 1 if a token was not allowed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator

from tessera.errors import RequestError
from tessera.llm import LLM
from tessera.request import CompletionOutput
from tessera.sampling_params import ReasoningParams, SamplingParams, StructuredOutputsParams
from tessera.text.grammar import byte_tokenizer, compile_grammar

BATCH = 64
MOST_TOKENS = 192
BUDGET = 24
DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
THINKING = ReasoningParams("<think>", "</think>", begun=True)
TEMPERATURE = 1.5


class Task(NamedTuple):
    schema: dict[str, Any]
    reasons: bool


class Schemas:
    """Random schemas of what is enforced: objects, arrays, choices, numbers and strings with their bounds."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def any(self, depth: int = 0) -> dict[str, Any]:
        single = [self._integer, self._number, self._string, self._pattern, self._enum, self._const, self._format]
        nested = [self._object, self._object, self._array, self._any_of, self._open]
        kinds: list[Callable[[int], dict[str, Any]]] = [*(nested if depth < 3 else ()), *(single if depth else ())]
        return self._random.choice(kinds)(depth)

    def _object(self, depth: int) -> dict[str, Any]:
        names = self._random.sample(
            ["name", "size", 'quo"te', "tags", "näme", "a\\b", "next", "x"], k=self._random.randint(1, 5)
        )
        required = [name for name in names if self._random.random() < 0.6]
        properties = {name: self.any(depth + 1) for name in names}
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def _open(self, depth: int) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.any(depth + 1)}

    def _array(self, depth: int) -> dict[str, Any]:
        least = self._random.randint(0, 2)
        return {
            "type": "array",
            "items": self.any(depth + 1),
            "minItems": least,
            "maxItems": least + self._random.randint(0, 4),
        }

    def _any_of(self, depth: int) -> dict[str, Any]:
        return {"anyOf": [self.any(depth + 1) for _ in range(self._random.randint(2, 3))]}

    def _integer(self, _depth: int) -> dict[str, Any]:
        low = self._random.randint(-2000, 2000)
        return {"type": "integer", "minimum": low, "maximum": low + self._random.randint(0, 10**6)}

    def _number(self, _depth: int) -> dict[str, Any]:
        return {"type": "number", "minimum": -1.5, "exclusiveMaximum": self._random.choice([0.25, 10, 1e6])}

    def _string(self, _depth: int) -> dict[str, Any]:
        least = self._random.randint(0, 3)
        return {"type": "string", "minLength": least, "maxLength": least + self._random.randint(0, 12)}

    def _pattern(self, _depth: int) -> dict[str, Any]:
        return {
            "type": "string",
            "pattern": self._random.choice(["^[a-z]{2,5}-[0-9]+$", "^(a|bc)*$", '^"[^"]{1,4}"$', "^\\S+$"]),
        }

    def _format(self, _depth: int) -> dict[str, Any]:
        return {"type": "string", "format": self._random.choice(["date", "time", "date-time", "uuid", "ipv4"])}

    def _enum(self, _depth: int) -> dict[str, Any]:
        return {"enum": self._random.sample(["a", "b\n", 5, None, True, [1, "x"], {"k": False}, 2.5], k=3)}

    def _const(self, _depth: int) -> dict[str, Any]:
        return {"const": self._random.choice(["x", [], {"a": 1}, -7])}


def params_of(task: Task, seed: int) -> SamplingParams:
    reasoning: dict[str, Any] = {"reasoning": THINKING, "thinking_token_budget": BUDGET} if task.reasons else {}
    return SamplingParams(
        temperature=TEMPERATURE,
        seed=seed,
        max_tokens=MOST_TOKENS,
        structured_outputs={"json": task.schema},
        **reasoning,
    )


def what_is_wrong(task: Task, answer: CompletionOutput) -> str | None:
    """Of one answer, by judges that have not seen how it came about."""
    text = answer.text
    if task.reasons:
        _, marker, text = text.partition(THINKING.end)
        if not marker:
            return None if answer.finish_reason == "length" else "the reasoning has no end"
    matcher = compile_grammar(StructuredOutputsParams(json=task.schema), BYTES)
    data = text.removesuffix("\ufffd").encode()  # a character that was cut short
    allowed = matcher.validate_tokens(list(data))
    if allowed < len(data):
        return f"byte {allowed} is not allowed: {data[max(0, allowed - 20) : allowed + 5]!r}"
    if answer.finish_reason == "stop":
        errors = [error.message for error in Draft202012Validator(task.schema).iter_errors(json.loads(text))]
        return errors[0] if errors else None
    return None


BYTES = byte_tokenizer()


def run(llm: LLM, tasks: Sequence[Task], seed: int) -> tuple[int, int, list[str]]:
    """Tokens, answers that are whole, and what is wrong."""
    prompts = [f"Write JSON, number {seed + place}: " for place in range(len(tasks))]
    params = [params_of(task, seed + place) for place, task in enumerate(tasks)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    tokens, whole, wrong = 0, 0, []
    for task, output in zip(tasks, outputs, strict=True):
        (answer,) = output.outputs
        tokens += len(answer.token_ids)
        whole += answer.finish_reason == "stop"
        if said := what_is_wrong(task, answer):
            wrong.append(f"{said}\n  {json.dumps(task.schema)}\n  {answer.text!r}")
    return tokens, whole, wrong


def usable(schemas: Schemas) -> dict[str, Any]:
    """A schema that is not refused."""
    while True:
        schema = schemas.any()
        try:
            compile_grammar(StructuredOutputsParams(json=schema), BYTES)
        except RequestError:
            continue
        return schema


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1_000_000, help="how many to draw at least")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    schemas, tokens, whole, answers, wrong = Schemas(asked.seed), 0, 0, 0, list[str]()
    began = shown = time.monotonic()
    with LLM(speculative_config=DRAFTS, max_num_seqs=BATCH) as llm:
        while tokens < asked.tokens:
            tasks = [Task(usable(schemas), reasons=bool(place % 2)) for place in range(BATCH)]
            more, ended, found = run(llm, tasks, asked.seed + answers)
            tokens, whole, answers, wrong = tokens + more, whole + ended, answers + len(tasks), wrong + found
            if time.monotonic() - shown > 10:
                shown = time.monotonic()
                print(f"{tokens} of {asked.tokens} tokens, {tokens / (shown - began):.0f} a second", flush=True)
        drafts: dict[str, Any] = {metric.name: metric.value for metric in llm.get_metrics()}
    for said in wrong[:10]:
        print(said)
    print(f"{drafts['spec_decode_num_accepted_tokens']} drafts accepted of {drafts['spec_decode_num_draft_tokens']}")
    print(f"{tokens} tokens in {answers} answers, {whole} of them whole, in {time.monotonic() - began:.0f} s")
    print(f"{len(wrong)} answers have a token that is not allowed")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
