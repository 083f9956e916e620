"""Holds structured outputs against the schemas of JSONSchemaBench with MaskBench's texts
(https://github.com/guidance-ai/jsonschemabench): `python -m tools.json_schema_bench PATH`.

PATH is a file of JSON lines, compressed with xz or not: `name` (the set, `---`, the schema's own), `schema`, and
`tests`, each with `valid` and `data`. Each text goes byte by byte through the grammar that the product compiles, with
its properties in their own order; a valid one that it does not take so is tried once more in the grammar's."""

from __future__ import annotations

import argparse
import json
import lzma
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from tessera.errors import RequestError
from tessera.sampling_params import StructuredOutputsParams
from tessera.text.grammar import byte_tokenizer, compile_grammar

MAX_PROCESSES = 2
MAX_STEPS = 20_000
"""Pieces of text that are tried to find the order of a value's properties."""
DIED = "it cannot be used: its process died."
MAX_EXAMPLES = 20
"""Texts of each kind of mistake that are printed."""


class Text(NamedTuple):
    valid: bool
    data: Any


class Entry(NamedTuple):
    """A schema of the set, and texts that are valid by it or not."""

    name: str
    schema: Any
    texts: tuple[Text, ...]

    @property
    def set(self) -> str:
        return self.name.partition("---")[0]


@dataclass
class Outcome:
    """What became of one schema. refused: why; None: it compiled. wrong: texts that were judged wrongly."""

    name: str
    seconds: float
    refused: str | None = None
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[str, str]] = field(default_factory=list)


def read(path: Path, sample: int | None = None, seed: int = 0) -> list[Entry]:
    """The schemas of a file, or as many of them at random. Raises OSError, ValueError."""
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as lines:
        rows = [json.loads(line) for line in lines]
    if sample is not None and sample < len(rows):
        rows = random.Random(seed).sample(rows, sample)
    return [Entry(row["name"], row["schema"], tuple(Text(each["valid"], each["data"]) for each in row["tests"]))
            for row in rows]  # fmt: skip


def check(entry: Entry, options: dict[str, Any]) -> Outcome:
    """options: further fields of StructuredOutputsParams."""
    tokenizer, before = byte_tokenizer(), time.perf_counter()
    try:
        asked = StructuredOutputsParams(json=json.dumps(entry.schema), **options)
        matcher = compile_grammar(asked, tokenizer)
    except RequestError as error:
        return Outcome(entry.name, time.perf_counter() - before, refused=error.message)
    outcome = Outcome(entry.name, time.perf_counter() - before)
    for text in entry.texts:
        took = takes(matcher, text.data)
        if text.valid and not took:
            took = Reordered(entry.schema).taken(compile_grammar(asked, tokenizer), text.data)
        outcome.counts[f"{'valid' if text.valid else 'invalid'}{' accepted' if took else ''}"] += 1
        if took != text.valid:
            kind = "invalid, accepted" if took else "valid, not accepted"
            outcome.wrong.append((kind, json.dumps(text.data, ensure_ascii=False)))
        if is_exhausted(matcher):  # by this text: another's answer begins anew, as in the product
            matcher = compile_grammar(asked, tokenizer)
    return outcome


def is_exhausted(matcher: Any) -> bool:
    """Whether the lexer that a matcher's copies share exceeded a limit."""
    own = matcher.deep_copy()
    own.compute_bitmask()
    return bool(own.is_error())


def takes(matcher: Any, data: Any) -> bool:
    own = matcher.deep_copy()
    text = json.dumps(data, ensure_ascii=False).encode(errors="surrogatepass")
    return bool(own.consume_tokens(list(text)) and own.is_accepting())


class Reordered:
    """Writes a value with its properties in the order in which a grammar wants them: as the schema lists them or, where
    that is not it, as they can follow."""

    def __init__(self, schema: Any = None) -> None:
        self._ranks = {name: rank for rank, name in enumerate(dict.fromkeys(listed_names(schema)))}
        self._orders: dict[int, list[str]] = {}
        self._steps = MAX_STEPS

    def taken(self, matcher: Any, data: Any) -> bool:
        """Whether the grammar takes it in some order, as far as was tried."""
        after = self._followed(matcher, data)
        return after is not None and bool(after.is_accepting())

    def _followed(self, matcher: Any, data: Any) -> Any:
        """The matcher after a value; None if it does not go on with it."""
        if isinstance(data, dict) and data:
            return self._object(matcher, data)
        if not isinstance(data, list) or not data:
            return self._after(matcher, json.dumps(data, ensure_ascii=False))
        for place, each in enumerate(data):
            matcher = self._after(matcher, ", " if place else "[")
            matcher = None if matcher is None else self._followed(matcher, each)
            if matcher is None:
                return None
        return self._after(matcher, "]")

    def _object(self, matcher: Any, data: dict[str, Any]) -> Any:
        """A property that can no longer follow is put where it could have followed first, and all is tried again."""
        order = self._orders.get(id(data), sorted(data, key=lambda name: self._ranks.get(name, len(self._ranks))))
        while self._steps > 0:
            own, written, passed = matcher, list[str](), list[Any]()
            for _ in order:
                begin = ", " if written else "{"
                passed.append((own, begin))
                left = (name for name in order if name not in written)
                name = next((name for name in left if self._may_follow(own, begin + _key(name))), None)
                own = None if name is None else self._followed(self._after(own, begin + _key(name)), data[name])
                if name is None or own is None:
                    break
                written.append(name)
            if own is not None:
                self._orders[id(data)] = written
                return self._after(own, "}")
            rest = [name for name in order if name not in written]
            late, place = self._earlier(rest, passed[: len(written)])
            if late is None:
                return None
            rest.remove(late)
            order = [*written[:place], late, *written[place:], *rest]
        return None

    def _earlier(self, names: list[str], passed: list[tuple[Any, str]]) -> tuple[str | None, int]:
        """A property that could have followed before, and where first; None if none could."""
        for name in names:
            for place, (matcher, begin) in enumerate(passed):
                if self._may_follow(matcher, begin + _key(name)):
                    return name, place
        return None, 0

    def _may_follow(self, matcher: Any, text: str) -> bool:
        self._steps -= 1
        written = text.encode(errors="surrogatepass")
        return bool(matcher.validate_tokens(list(written)) == len(written))

    def _after(self, matcher: Any, text: str) -> Any:
        """The matcher after a text; None if it does not go on with it."""
        self._steps -= 1
        if matcher is None:
            return None
        own = matcher.deep_copy()
        return own if own.consume_tokens(list(text.encode(errors="surrogatepass"))) else None


def listed_names(schema: Any) -> Iterator[str]:
    """The names of properties, in the order in which a schema lists them."""
    if isinstance(schema, list):
        for each in schema:
            yield from listed_names(each)
    elif isinstance(schema, dict):
        listed = schema.get("properties")
        yield from listed if isinstance(listed, dict) else ()
        for each in schema.values():
            yield from listed_names(each)


def _key(name: str) -> str:
    return f"{json.dumps(name, ensure_ascii=False)}: "


def reason(message: str) -> str:
    """Why a schema was refused, without its place, and with names and numbers left out."""
    said = message.rpartition(" cannot be used: ")[2]
    return re.sub(r"'[^']*'|/.*/|\d+", "…", said)[:90]


def outcomes(entries: Iterable[Entry], options: dict[str, Any], processes: int) -> Iterator[Outcome]:
    """In order. A schema may end the process that compiles it, as it may end a text worker's; another one goes on."""
    free: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()
    for _ in range(processes):
        free.put(_process())

    def run(entry: Entry) -> Outcome:
        process = free.get()
        try:
            return process.submit(check, entry, options).result()
        except BrokenProcessPool:
            process.shutdown(wait=False)
            process = _process()
            return Outcome(entry.name, 0.0, refused=DIED)
        finally:
            free.put(process)

    with ThreadPoolExecutor(processes) as threads:
        yield from threads.map(run, entries)
    for _ in range(processes):
        free.get().shutdown()


def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def line(name: str, outcomes: list[Outcome]) -> str:
    counts = sum((outcome.counts for outcome in outcomes), Counter[str]())
    compiled = sum(outcome.refused is None for outcome in outcomes)
    invalid, valid = (counts[kind] + counts[f"{kind} accepted"] for kind in ("invalid", "valid"))
    share = counts["valid accepted"] / valid if valid else 1.0
    times = sorted(outcome.seconds for outcome in outcomes)
    return (
        f"{name:16} {len(outcomes):6} {compiled / len(outcomes):9.1%} {counts['invalid accepted']:8} of {invalid:<7}"
        f"{share:9.2%} of {valid:<7} {1000 * times[len(times) // 2]:7.1f} {1000 * times[len(times) * 99 // 100]:8.1f}"
    )


def report(every: list[Outcome]) -> str:
    sets: dict[str, list[Outcome]] = {}
    for outcome in every:
        sets.setdefault(outcome.name.partition("---")[0], []).append(outcome)
    heads = ("schemas", "compile", "invalid accepted", "valid accepted", "ms p50", "ms p99")
    lines = ["{:16} {:>7} {:>8} {:>19} {:>18} {:>8} {:>8}".format("", *heads)]
    lines += [line(name, found) for name, found in sorted(sets.items())]
    lines.append(line("altogether", every))
    reasons = Counter(reason(outcome.refused) for outcome in every if outcome.refused is not None)
    lines += ["", "refused:", *(f"{count:6} {said}" for said, count in reasons.most_common(MAX_EXAMPLES))]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("path", type=Path, help="a file of JSON lines")
    parser.add_argument("--sample", type=int, help="as many schemas at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--processes", type=int, default=MAX_PROCESSES, choices=range(1, MAX_PROCESSES + 1))
    parser.add_argument("--open", action="store_true", help="objects may have properties that no schema names")
    parser.add_argument("--strict", action="store_true", help="refuse oneOf whose schemas may hold together")
    parser.add_argument("--list", action="store_true", help="print each refusal and each text that is judged wrongly")
    given = parser.parse_args()
    options = {"disable_additional_properties": not given.open, **({"strict": True} if given.strict else {})}
    every = list(outcomes(read(given.path, given.sample, given.seed), options, given.processes))
    print(report(every))
    for outcome in every if given.list else ():
        if outcome.refused is not None:
            print(f"refused  {outcome.name}: {outcome.refused}")
        for kind, text in outcome.wrong:
            print(f"{kind}  {outcome.name}: {text[:2000]}")
    return int(any(kind == "invalid, accepted" for outcome in every for kind, _ in outcome.wrong))


if __name__ == "__main__":
    sys.exit(main())
