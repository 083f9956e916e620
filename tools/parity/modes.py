"""The ways of splitting the same work: alone, in a mixed batch, in chunks, preempted, after prefix hits, with
drafts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera.arrays import int32
from tessera.config import build_config
from tessera.config.modalities import sees_prompt
from tessera.request import Request
from tessera.sampling_params import SamplingParams
from tessera.scheduler.outputs import EngineCoreOutputs
from tools.parity.compare import Compared, compare_all
from tools.parity.family import MAX_POSITIONS
from tools.parity.oracle import CONTINUED_AFTER, Answer
from tools.parity.recording import Ran, WatchedEngine

PLATFORMS = {
    "cpu": "tessera_cpu.platform:CpuPlatform",
    "reference": "tessera.testing:ReferencePlatform",
    "strict": "tessera.testing:StrictPlatform",
    "strict-separate": "tessera.testing:SeparateStrictPlatform",
}

MAX_SEQS = 8
BUDGET = 128
SMALL_BUDGET = 16
CACHE_BYTES = 2**24
EVERY_POINT_PROMPTS = 4
MAX_DRAFTS = 3

Result = tuple[list[Compared], str]


@dataclass(frozen=True)
class Subject:
    """A model's folder, the dotted path of a platform, and the oracle's answers. max_model_len: if different from
    config.json."""

    folder: Path
    platform: str
    answers: Sequence[Answer]
    max_model_len: int | None = None
    dtype: str = "float32"

    @property
    def sees_prompt(self) -> bool:
        """Whether a step computes a whole prompt, whose tokens see each other."""
        file = self.folder / "config.json"
        return file.is_file() and sees_prompt(json.loads(file.read_text()))

    @property
    def small_budget(self) -> int:
        """Tokens a step, where prompts are split if they may be."""
        return (self.max_model_len or MAX_POSITIONS) if self.sees_prompt else SMALL_BUDGET

    @contextmanager
    def engine(self, **flags: Any) -> Iterator[WatchedEngine]:
        """An engine in this process. flags: for build_config, in addition to those of all modes."""
        given: dict[str, Any] = {
            "max_num_seqs": MAX_SEQS,
            "max_num_batched_tokens": BUDGET,
            "kv_cache_memory_bytes": CACHE_BYTES,
            "enable_prefix_caching": False,
            "max_model_len": self.max_model_len,
            **flags,
        }
        config = build_config(
            model=str(self.folder), skip_tokenizer_init=True, dtype=self.dtype, platform=self.platform, **given
        )
        engine = WatchedEngine(dataclasses.replace(config, embedded=True))
        try:
            yield engine
        finally:
            engine.close()


class Numbered:
    """Makes requests for answers, each with its own key."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}

    def __call__(self, answers: Iterable[Answer]) -> list[Request]:
        return [self._request(answer) for answer in answers]

    def _request(self, answer: Answer) -> Request:
        key = len(self.answers)
        self.answers[str(key)] = answer
        count = len(answer.answer)
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        return Request(
            key=key,
            request_id=str(key),
            prompt=int32(answer.prompt),
            params=params,
            max_tokens=count,
            seed=0,
            arrival=float(key),
            media=answer.media,
        )


def alone(subject: Subject) -> Result:
    """One request at a time, each prompt in one piece."""
    numbered, tokens = Numbered(), dict[str, list[int]]()
    with subject.engine() as engine:
        for request in numbered(subject.answers):
            ran = engine.run([request])
            tokens |= ran.tokens
        record = engine.record
    compared = compare_all(numbered.answers, tokens, record.logits)
    return compared, "1 row a step" if record.widest == 1 else ""


def mixed(subject: Subject) -> Result:
    """All at once: prompts start while other rows decode."""
    numbered = Numbered()
    with subject.engine() as engine:
        ran = engine.run(numbered(subject.answers))
    compared = compare_all(numbered.answers, ran.tokens, ran.record.logits)
    return compared, f"up to {ran.record.widest} rows" if ran.record.widest > 1 else ""


def chunked(subject: Subject) -> Result:
    """All at once, with few tokens per step."""
    numbered = Numbered()
    with subject.engine(max_num_batched_tokens=subject.small_budget) as engine:
        ran = engine.run(numbered(subject.answers))
    compared = compare_all(numbered.answers, ran.tokens, ran.record.logits)
    if subject.sees_prompt:
        return compared, "" if ran.record.cut else "prompts are whole"
    return compared, f"{ran.record.cut} partial prompts" if ran.record.cut else ""


def full_cache(subject: Subject) -> Result:
    """A cache that holds just one request of the maximum length: the last to arrive is preempted, and may find some of
    its blocks again. If every layer has a window or keeps a state, requests hold too little to get in each other's
    way; if there is an encoder, they wait until there is room for what it made."""
    numbered = Numbered()
    with subject.engine() as engine:
        least = engine.cache_bytes(max(MAX_POSITIONS, subject.max_model_len or 0))
        room = "requests leave room" if engine.bounded else "one encoder fits" if engine.has_encoder else ""
    with subject.engine(kv_cache_memory_bytes=least, enable_prefix_caching=True) as engine:
        ran = engine.run(numbered(subject.answers))
    compared = compare_all(numbered.answers, ran.tokens, ran.record.logits, cached=True)
    return compared, _preemptions(ran) or room


def each_token(subject: Subject) -> Result:
    """Every request is preempted after each token, so that all of it is recomputed for the next one."""
    numbered = Numbered()
    with subject.engine() as engine:
        ran = engine.run(numbered(subject.answers), lambda _, outputs: _preempt(engine, outputs))
    return compare_all(numbered.answers, ran.tokens, ran.record.logits), _preemptions(ran)


def every_point(subject: Subject) -> Result:
    """Repeats everything for every k: after step k all running requests are preempted once, even in the middle of
    prompts."""
    numbered, tokens = Numbered(), dict[str, list[int]]()
    answers = subject.answers[:EVERY_POINT_PROMPTS]
    with subject.engine(max_num_batched_tokens=subject.small_budget) as engine:
        ran = engine.run(numbered(answers))
        tokens |= ran.tokens
        for point in range(1, engine.steps + 1):
            ran = engine.run(numbered(answers), _after(point, engine))
            tokens |= ran.tokens
    return compare_all(numbered.answers, tokens, ran.record.logits), _preemptions(ran)


def prefix_hits(subject: Subject) -> Result:
    """The prompts, then the same ones, then each with the first part of its answer, all at once; all rounds are
    compared. Prompts that see themselves come again one by one instead, as windows may not hold the blocks of more."""
    numbered, tokens = Numbered(), dict[str, list[int]]()
    continued = [answer.continued(CONTINUED_AFTER) for answer in subject.answers]
    again = [[answer] for answer in subject.answers for _ in range(2)] if subject.sees_prompt else [continued]
    rounds = (subject.answers, subject.answers, *again)
    with subject.engine(enable_prefix_caching=True) as engine:
        engine.scheduler.split_short_prompts()
        has_encoder = engine.has_encoder
        for answers in rounds:
            ran = engine.run(numbered(answers))
            tokens |= ran.tokens
    compared = compare_all(numbered.answers, tokens, ran.record.logits, cached=True)
    hits = ran.counters.cached_prompt_tokens
    return compared, f"{hits} tokens hit" if hits else "prefixes are not cached" if has_encoder else ""


def drafts(subject: Subject) -> Result:
    """All at once, and then each with the first part of its answer, so that there are prefix hits, with three drafts
    for each row that decodes. Most of them are right. Of a position that was computed with a wrong draft, what was
    computed later is compared."""
    numbered, tokens = Numbered(), dict[str, list[int]]()
    drafted = {"method": "ngram", "num_speculative_tokens": MAX_DRAFTS}
    continued = [] if subject.sees_prompt else [answer.continued(CONTINUED_AFTER) for answer in subject.answers]
    with subject.engine(enable_prefix_caching=True, speculative_config=drafted) as engine:
        engine.scheduler.draft([answer.tokens for answer in subject.answers], subject.answers[0].logits.shape[-1])
        for answers in filter(None, (subject.answers, continued)):
            ran = engine.run(numbered(answers))
            tokens |= ran.tokens
    newest = {name: list(dict(logits).items()) for name, logits in ran.record.logits.items()}
    compared = compare_all(numbered.answers, tokens, newest, cached=True)
    counters = ran.counters
    some = 0 < counters.accepted_tokens < counters.draft_tokens
    return compared, f"{counters.accepted_tokens} of {counters.draft_tokens} drafts accepted" if some else ""


MODES: dict[str, Callable[[Subject], Result]] = {
    "alone": alone,
    "mixed batch": mixed,
    "chunked": chunked,
    "full cache": full_cache,
    "preempted each token": each_token,
    "preempted every point": every_point,
    "prefix hits": prefix_hits,
    "drafts": drafts,
}


def _preempt(engine: WatchedEngine, outputs: EngineCoreOutputs) -> None:
    engine.scheduler.preempt(outputs.keys.tolist())


def _after(point: int, engine: WatchedEngine) -> Callable[[int, EngineCoreOutputs], None]:
    def preempt(step: int, _: EngineCoreOutputs) -> None:
        if step == point:
            engine.scheduler.preempt_all()

    return preempt


def _preemptions(ran: Ran) -> str:
    count = ran.counters.preemptions
    return f"{count} preemptions" if count else ""
