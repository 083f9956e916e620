"""Answers: tiny models from prompts to tokens, on the platform and on the reference (bronze); and answers after
preemption, prefix hits and block copies, which must not change them (silver)."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from tessera.config.engine import QUANTIZATIONS
from tessera.errors import PlatformError, RefusedError, RequestError
from tessera.llm import LLM
from tessera.platform.runner import ModelRunner
from tessera.request import CompletionOutput, RequestOutput
from tessera.sampling_params import SamplingParams
from tessera.step import SchedulerOutput
from tessera.testing.compare import TOLERANCES
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent
from tessera.testing.conformance.target import KIT_PLATFORMS, Target
from tessera.testing.conformance.tiny import (
    FAMILIES,
    VOCAB,
    TinyAnswers,
    TinyRun,
    compare_answers,
    prompts_of,
    save_tiny,
)

# ---- models


_ANSWER = 12  # tokens
_SLACK = 10  # times the tolerance of one op: the errors of layers add up
_ROUNDED = 0.02  # of a log probability: the last bit of a float may decide how an activation is rounded


def model_cases(target: Target) -> Iterator[Case]:
    """One per family and dtype, and one for all of them: a platform may refuse some families, but not all."""
    trials = {
        f"{family}-{dtype}": _Trial(target, family, dtype)
        for family in FAMILIES
        for dtype in target.platform.capabilities.dtypes
    }
    for name, trial in trials.items():
        yield Case(f"model/{name}", "bronze", "model", trial.run)
    yield Case("model/any", "bronze", "model", partial(_one_runs, list(trials.values())))


def quantized_cases(target: Target) -> Iterator[Case]:
    """One per value of --quantization, for a platform's own runner; at op depth the products are tried alone."""
    if target.brings_a_runner:
        for name in QUANTIZATIONS:
            trial = _Trial(target, "llama", target.exact_dtype, name)
            yield Case(f"quantized/{name}", "silver", "quantized model", trial.run)


def _one_runs(model_runs: Sequence[_Trial]) -> Verdict:
    if all(trial.refusal is not None for trial in model_runs):
        raise ConformanceError(f"the platform refuses every model that was tried: {model_runs[0].refusal}")
    return PASSED


@dataclass
class _Trial:
    """A family in a dtype, quantized at load or not. The reference runs first: what it cannot do is no fault of the
    platform's."""

    target: Target
    family: str
    dtype: str
    quantization: str | None = None

    def run(self) -> Verdict:
        with self._folder() as folder:
            expected = self._answers(folder, KIT_PLATFORMS["reference"])
            try:
                found = self._answers(folder, self.target.path)
            except RefusedError as refused:
                return absent(refused.message)
            except PlatformError as refused:
                if self.quantization is None:
                    raise
                return absent(refused.message)
        for place, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
            what = f"{self.family} in {self.dtype}, prompt {place} of {len(theirs.prompt_token_ids or ())} tokens"
            self._compare(what, mine, theirs)
        return PASSED

    @cached_property
    def refusal(self) -> str | None:
        """Why the platform refuses the model; None if the engine starts."""
        with self._folder() as folder:
            try:
                self._engine(folder, self.target.path).close()
            except RefusedError as refused:
                return refused.message
        return None

    @contextmanager
    def _folder(self) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="tessera-conformance-") as folder:
            save_tiny(Path(folder), self.family, self.dtype)
            yield folder

    def _engine(self, folder: str, platform: str) -> LLM:
        return LLM(
            folder, platform=platform, skip_tokenizer_init=True, dtype=self.dtype, max_num_seqs=4,
            max_num_batched_tokens=64, kv_cache_memory_bytes=1 << 21, check_kv_cache=not self.target.brings_a_runner,
            quantization=self.quantization,
        )  # fmt: skip

    def _answers(self, folder: str, platform: str) -> list[RequestOutput]:
        """To prompts of many lengths, in chunks, half of them greedily and half drawn by seed."""
        chance = random.Random(0)  # noqa: S311  # no secret: the same prompts each time
        prompts = [[chance.randrange(3, VOCAB) for _ in range(length)] for length in (1, 5, 16, 17, 33, 60, 90)]

        def ask(llm: LLM, prompt_logprobs: int | None) -> list[RequestOutput]:
            params = [
                SamplingParams(
                    temperature=float(place % 2), seed=place, max_tokens=_ANSWER, ignore_eos=True,
                    prompt_logprobs=prompt_logprobs, logprobs=2,
                )
                for place in range(len(prompts))
            ]  # fmt: skip
            return llm.generate(prompt_token_ids=prompts, sampling_params=params, use_tqdm=False)

        with self._engine(folder, platform) as llm:
            try:
                return ask(llm, 0)
            except RequestError as error:
                if error.param != "prompt_logprobs":
                    raise
                return ask(llm, None)  # the platform's own runner does not give them

    def _compare(self, what: str, output: RequestOutput, expected: RequestOutput) -> None:
        """Compares the prompt's log probabilities, unless the platform's own runner gives none; then the answer, up to
        the first token that rounding may decide. Raises ConformanceError."""
        mine, theirs = (_logprobs(given) for given in (output, expected))
        if len(mine) == len(theirs):
            self._compare_prompt(what, mine, theirs)
        elif mine or not self.target.brings_a_runner:
            raise ConformanceError(f"{what}: {len(mine)} of {len(theirs)} tokens have a log probability")
        answer, right = (list(given.outputs[0].token_ids) for given in (output, expected))
        exact = self.dtype == "float32" and self.quantization is None
        sure = len(right) if exact else self._sure(expected)
        if answer[:sure] != right[:sure]:
            raise ConformanceError(f"{what}: the answer is {answer}, not {right}")
        if len(answer) != len(right):
            raise ConformanceError(f"{what}: the answer has {len(answer)} tokens, not {len(right)}")
        self._compare_answer(what, output.outputs[0], expected.outputs[0], sure)

    def _compare_answer(self, what: str, completion: CompletionOutput, expected: CompletionOutput, sure: int) -> None:
        """Compares the log probabilities of the answer's tokens as far as both were given the same."""
        entries = zip(expected.token_ids[:sure], completion.logprobs or (), expected.logprobs or (), strict=False)
        for place, (token, mine, theirs) in enumerate(entries):
            one, other = mine[token].logprob, theirs[token].logprob
            if not math.isclose(one, other, rel_tol=self._slack, abs_tol=self._slack):
                how = "" if self.quantization is None else f", {self.quantization}"
                raise ConformanceError(
                    f"{what}{how}: token {place + 1} of the answer has log probability {one:.6g}, not {other:.6g}"
                )

    def _compare_prompt(self, what: str, mine: Sequence[float], theirs: Sequence[float]) -> None:
        slack = self._slack
        for place, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            if not math.isclose(one, other, rel_tol=slack, abs_tol=slack):
                raise ConformanceError(f"{what}: token {place + 1} has log probability {one:.6g}, not {other:.6g}")

    @property
    def _slack(self) -> float:
        return _SLACK * TOLERANCES[self.dtype] if self.quantization is None else _ROUNDED

    def _sure(self, expected: RequestOutput) -> int:
        """How many tokens of the answer come before the first that is not the most likely, or whose runner-up is nearly
        as likely."""
        answer = expected.outputs[0]
        for place, entry in enumerate(answer.logprobs or ()):
            ranked = sorted((one.logprob for one in entry.values()), reverse=True)
            if entry[answer.token_ids[place]].rank != 1 or ranked[0] - ranked[1] < 2 * self._slack:
                return place
        return len(answer.token_ids)


def _logprobs(output: RequestOutput) -> list[float]:
    """The log probabilities of the prompt's tokens, except the first; empty if the runner gives none."""
    entries = output.prompt_logprobs
    if entries is None:
        return []
    tokens = output.prompt_token_ids or ()
    return [entry[token].logprob for token, entry in zip(tokens, entries, strict=True) if entry is not None]


# ---- blocks that are freed and computed again, filled by another request, or shared until they are written


_SIBLINGS = 3
_RIVALS = 6


def scheduling_cases(target: Target) -> Iterator[Case]:
    """One for each mechanism, in the dtype that shows mistakes best."""
    for name, subject, check in (
        ("preemption", "preemption", _preemption), ("prefix", "prefix", _prefix), ("forks", "block copy", _forks),
    ):  # fmt: skip
        yield Case(f"{name}/answers", "silver", subject, partial(check, target))


def _preemption(target: Target) -> Verdict:
    """A long request holds half of the blocks, and six short ones grow until each needs three, so the last two are
    preempted. When the long one ends, one of them starts again in its row and the other in the sixth row, with other
    blocks than that row had before. A small batch would not show a stale table there."""
    dtype = target.exact_dtype
    with TinyRun(target, dtype, positions=64) as run:
        groups = run.started.plan.groups
    size = max(group.block_size for group in groups)
    long, short = (12 * size + 4, 4 * size // 3), (max(size, _RIVALS), 7 * size // 4)  # tokens of prompt and answer
    prompts = prompts_of([long[0], *(short[0] - number for number in range(_RIVALS))])
    asked = list(zip(prompts, [long[1], *[short[1]] * _RIVALS], strict=True))
    with TinyRun(
        target, dtype, positions=14 * size, logprobs=0, enable_prefix_caching=False,
        kv_cache_memory_bytes=27 * sum(group.block_bytes for group in groups),
    ) as run:  # fmt: skip
        for prompt, tokens in asked:
            run.ask([prompt], tokens)
        for prompt, tokens in asked:
            run.add(prompt, tokens, seed=0)
        run.finish()
    if not run.scheduler.counters.preemptions:
        return absent("the platform's resources keep requests from competing for blocks")
    alone, rivals = TinyAnswers.from_run(run, last=len(asked)), TinyAnswers.from_run(run, len(asked))
    compare_answers("after preemption", rivals, alone, dtype)
    return PASSED


def _prefix(target: Target) -> Verdict:
    """In a model some of whose layers have a window, if the platform runs one."""
    try:
        return _prefix_of(target, "gemma2")
    except RefusedError:
        return _prefix_of(target, "llama")


def _prefix_of(target: Target, family: str) -> Verdict:
    """The second and third request begin as the first; then each comes again on its own."""
    dtype = target.exact_dtype
    with TinyRun(target, dtype, family=family, logprobs=0) as run:
        if not run.started.loaded.facts.prefix_cacheable:
            return absent("the model's caches cannot be shared by prefix")
        size = max(group.block_size for group in run.started.plan.groups)
        shared = prompts_of([2 * size + size // 2])[0]
        asked = [[*shared, *rest] for rest in prompts_of([size + 3, 3, size // 2 + 1], seed=1)]
        for prompt in asked:
            run.ask([prompt], 8)
        for number, prompt in enumerate(asked):
            run.ask([prompt], 8, salt=str(number))
    hits = [run.cached[key] for key in range(2 * len(asked))]
    if hits[0] or min(hits[1 : len(asked)]) < 2 * size or any(hits[len(asked) :]):
        raise ConformanceError(
            f"prefix of {len(shared)} tokens in blocks of {size}: {hits} tokens were found in the cache, expected 0, "
            f"then twice at least {2 * size}, then 0"
        )
    found, alone = TinyAnswers.from_run(run, last=len(asked)), TinyAnswers.from_run(run, len(asked))
    compare_answers("after a prefix hit", found, alone, dtype)
    return PASSED


def _forks(target: Target) -> Verdict:
    """Siblings share the blocks of their prompt, whose last one each copies before it writes into it; then each comes
    again on its own."""
    dtype = target.exact_dtype
    temperature = 1.0 if dtype == "float32" else 0.0
    with TinyRun(target, dtype, logprobs=0) as run:
        copies = _CopyCounter()
        run.executor.observers.append(copies)
        size = max(group.block_size for group in run.started.plan.groups)
        (prompt,) = prompts_of([size + size // 2])
        leader = -1
        for seed in range(_SIBLINGS):
            key = run.add(prompt, size, seed, leader, temperature=temperature)
            leader = key if leader < 0 else leader
        run.finish()
        copied = copies.blocks
        if not copied:
            return absent("no shared block is written")
        for seed in range(_SIBLINGS):
            run.add(prompt, size, seed, salt=str(seed), temperature=temperature)
            run.finish()
    together, alone = TinyAnswers.from_run(run, last=_SIBLINGS), TinyAnswers.from_run(run, _SIBLINGS)
    compare_answers(f"block copy, of {copied} blocks that siblings share", together, alone, dtype)
    return PASSED


class _CopyCounter:
    """An observer of steps. blocks: how many they copied."""

    def __init__(self) -> None:
        self.blocks = 0

    def around(self, runner: ModelRunner, step: SchedulerOutput | None) -> AbstractContextManager[None]:
        if step is not None:
            self.blocks += sum(len(copy.sources) for copy in step.copies)
        return nullcontext()
