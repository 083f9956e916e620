"""Walks through the grammars of JSON Schemas with random tokens, to find answers that cannot be completed:
`python -m tools.json_schema_walks PATH`.

PATH is a file as tools/json_schema_bench.py reads it. Each schema that compiles is answered at random, over the bundled
demo's vocabulary or single bytes, by what follows a request's grammar in the engine; after some tokens, what ends
strings, lists and objects is preferred. Each answer must be accepted, be JSON, and be valid by jsonschema, a oneOf that
cannot be enforced counting as anyOf, or be cut by its length. Ends with 1 if one comes to a dead end, is not JSON, or
is not valid."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend, validator_for

from tessera.arrays import Array
from tessera.errors import RequestError
from tessera.features.grammar import CompiledGrammar, GrammarPosition
from tessera.sampling_params import StructuredOutputsParams
from tessera.text import Vocabulary
from tessera.text.grammar import TokenTable, compile_grammar
from tools.json_schema_bench import MAX_PROCESSES, Entry, read

DEMO = Path(__file__).parents[1] / "core/tessera/demo"
FREE_TOKENS, MOST_TOKENS = 60, 400
CLOSING = (b'"', b"}", b"]", b'"}', b"]}", b'"]', b"}}")
SECONDS = 20.0
"""For all walks of one schema; then they are cut."""
KINDS = ("valid", "cut", "dead_end", "too_complex", "no JSON", "invalid", "not checked", "as anyOf")
WRONG = ("dead_end", "too_complex", "no JSON", "invalid")


class Words(NamedTuple):
    """A vocabulary: the bytes of each token, its end-of-text tokens, and tokens that end strings, lists and objects."""

    table: TokenTable
    tokenizer: Any
    closing: frozenset[int]


@dataclass
class Walks:
    """What became of one schema."""

    name: str
    # Why; None: it compiled.
    refused: str | None = None
    # Of compiling, and of the slowest mask.
    compile_ms: float = 0.0
    mask_ms: float = 0.0
    num_masks: int = 0
    # How many answers ended in which way.
    ends: Counter[str] = field(default_factory=Counter)
    # Answers that came to no good end: which, and their texts.
    wrong: list[tuple[str, str]] = field(default_factory=list)


@cache
def words(vocabulary: str) -> Words:
    if vocabulary == "bytes":
        table = TokenTable([bytes((value,)) for value in range(256)])
    else:
        config = json.loads((DEMO / "config.json").read_text())
        table = TokenTable.from_vocabulary(
            Vocabulary.from_folder(str(DEMO)), config["vocab_size"], (config["eos_token_id"],)
        )
    closing = frozenset(token for token, spelled in enumerate(table.tokens) if spelled in CLOSING)
    return Words(table, table.tokenizer(), closing)


def walked(entry: Entry, vocabulary: str, count: int, seed: int) -> Walks:
    spelled, walks = words(vocabulary), Walks(entry.name)
    before = time.perf_counter()
    try:
        params = StructuredOutputsParams(json=json.dumps(entry.schema))
        compiled = CompiledGrammar("json", lambda: compile_grammar(params, spelled.tokenizer), _at_once)
        compiled.matcher()
    except RequestError as error:
        walks.refused = error.message
        return walks
    walks.compile_ms = 1000 * (time.perf_counter() - before)
    rng, until = random.Random(f"{seed} {entry.name}"), time.monotonic() + SECONDS
    for _ in range(count):
        end, text = answered(compiled, spelled, rng, walks, until)
        if end == "accepted":
            end = judged(entry.schema, text)
        walks.ends[end] += 1
        if end in WRONG:
            walks.wrong.append((end, text.decode(errors="replace")))
    return walks


def _at_once(make: Any) -> Future[Any]:
    """Compiles on this thread."""
    future: Future[Any] = Future()
    try:
        future.set_result(make())
    except RequestError as error:
        future.set_exception(error)
    return future


def answered(
    compiled: CompiledGrammar, vocabulary: Words, rng: random.Random, walks: Walks, until: float
) -> tuple[str, bytes]:
    """How a random answer ended, and its text."""
    ends = tuple(vocabulary.table.ends)
    grammar, text = GrammarPosition(compiled, ends, ()), bytearray()
    assert grammar.ready()
    for number in range(MOST_TOKENS):
        if grammar.complete:
            return "accepted", bytes(text)
        before = time.perf_counter()
        allowed = mask(grammar, len(vocabulary.table.tokens))
        walks.mask_ms = max(walks.mask_ms, 1000 * (time.perf_counter() - before))
        walks.num_masks += 1
        if grammar.failure is not None:
            return grammar.failure.reason, bytes(text)
        if time.monotonic() > until:
            break
        token = drawn(allowed, ends, vocabulary.closing, rng, closes=number >= FREE_TOKENS)
        if not grammar.accept(token):
            return "too_complex", bytes(text)
        if token in ends:
            return "accepted", bytes(text)
        text += vocabulary.table.tokens[token]
    return "cut", bytes(text)


def mask(grammar: GrammarPosition, size: int) -> Array:
    bits = np.full(-(-size // 32), -1, np.int32)
    grammar.mask(bits)
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:size])


def drawn(allowed: Array, ends: tuple[int, ...], closing: frozenset[int], rng: random.Random, *, closes: bool) -> int:
    tokens: list[int] = allowed.tolist()
    if closes:
        preferred = [token for token in tokens if token in ends] or [token for token in tokens if token in closing]
        tokens = preferred or tokens
    return rng.choice(tokens)


def judged(schema: Any, text: bytes) -> str:
    """as anyOf: valid but for a oneOf of which several hold, which is taken so without strict."""
    try:
        value = json.loads(text)
    except ValueError:
        return "no JSON"
    try:
        own = extend(validator_for(schema, default=Draft202012Validator), {"multipleOf": exact_multiple})
        if own(schema).is_valid(value):
            return "valid"
        return "as anyOf" if own(as_any_of(schema)).is_valid(value) else "invalid"
    except Exception:  # noqa: BLE001 - jsonschema fails in many ways on what is no schema, or refers elsewhere
        return "not checked"


def as_any_of(schema: Any) -> Any:
    """The same with anyOf for each oneOf."""
    if isinstance(schema, list):
        return [as_any_of(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: as_any_of(value) for key, value in schema.items()}
    if isinstance(found.get("oneOf"), list):
        found["allOf"] = [*found.get("allOf", ()), {"anyOf": found.pop("oneOf")}]
    return found


def exact_multiple(_validator: Any, divisor: Any, value: Any, _schema: Any) -> Iterator[ValidationError]:
    """multipleOf of decimals: jsonschema divides floats, by which 4.1 is no multiple of 0.01."""
    if isinstance(value, int | float) and Fraction(str(value)) % Fraction(str(divisor)):
        yield ValidationError(f"{value} is not a multiple of {divisor}")


def all_walks(entries: Iterable[Entry], options: tuple[str, int, int], processes: int) -> Iterator[Walks]:
    jobs = ((entry, *options) for entry in entries)
    if processes == 1:
        yield from (walked(*job) for job in jobs)
        return
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(_walked, jobs, chunksize=4)


def _walked(job: tuple[Entry, str, int, int]) -> Walks:
    return walked(*job)


def report(every: list[Walks]) -> str:
    sets: dict[str, list[Walks]] = {}
    for walks in every:
        sets.setdefault(walks.name.partition("---")[0], []).append(walks)
    heads = ("schemas", "compiled", *KINDS, "compile ms p50", "p99", "slowest mask ms p50", "p99")
    lines = [" ".join(f"{head:>9}" for head in ("set", *heads))]
    rows = [*sorted(sets.items()), ("altogether", every)]
    return "\n".join([*lines, *(line(name, walks) for name, walks in rows)])


def line(name: str, every: list[Walks]) -> str:
    compiled = [walks for walks in every if walks.refused is None]
    ends = sum((walks.ends for walks in compiled), Counter[str]())
    cells = [f"{name:16}", f"{len(every):9}", f"{len(compiled):9}", *(f"{ends[kind]:9}" for kind in KINDS)]
    for times in ([walks.compile_ms for walks in compiled], [walks.mask_ms for walks in compiled]):
        times.sort()
        cells += [f"{times[len(times) * share // 100]:9.1f}" if times else f"{'':9}" for share in (50, 99)]
    return " ".join(cells)


def resumed(path: Path | None) -> list[Walks]:
    """What an earlier run has written."""
    if path is None or not path.exists():
        return []
    rows = [json.loads(row) for row in path.read_text().splitlines()]
    return [Walks(**{**row, "ends": Counter(row["ends"])}) for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("path", type=Path, help="a file of JSON lines")
    parser.add_argument("--vocabulary", choices=("demo", "bytes"), default="demo")
    parser.add_argument("--walks", type=int, default=20, help="of each schema")
    parser.add_argument("--sample", type=int, help="as many schemas at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample and the walks")
    parser.add_argument("--processes", type=int, default=MAX_PROCESSES, choices=range(1, MAX_PROCESSES + 1))
    parser.add_argument("--out", type=Path, help="append results to this file, and go on where it ends")
    parser.add_argument("--list", action="store_true", help="print each answer that came to no good end")
    given = parser.parse_args()
    every = resumed(given.out)
    done = {walks.name for walks in every}
    entries = [entry for entry in read(given.path, given.sample, given.seed) if entry.name not in done]
    for walks in all_walks(entries, (given.vocabulary, given.walks, given.seed), given.processes):
        every.append(walks)
        if given.out is not None:
            with given.out.open("a") as out:
                out.write(json.dumps(vars(walks)) + "\n")
    print(report(every))
    for walks in every if given.list else ():
        for end, said in walks.wrong:
            print(f"{end}  {walks.name}: {said[:500]!r}")
    return int(any(walks.wrong for walks in every))


if __name__ == "__main__":
    sys.exit(main())
