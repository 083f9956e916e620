"""Bronze: tiny random models, written to a folder, from prompts to tokens on the platform and on the reference."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from tessera.errors import RefusedError
from tessera.llm import LLM
from tessera.request import RequestOutput
from tessera.sampling_params import SamplingParams
from tessera.testing.compare import TOLERANCES
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent
from tessera.testing.conformance.target import OWN, Target
from tessera.testing.conformance.tiny import FAMILIES, VOCAB, save_tiny

_ANSWER = 12  # tokens
_SLACK = 10  # of a log probability, over the tolerance of one op: layers add up


def model_cases(target: Target) -> Iterator[Case]:
    """One a family and dtype, and one for their sum: a platform may refuse families, but not all."""
    trials = {
        f"{family}-{dtype}": _Trial(target, family, dtype)
        for family in FAMILIES
        for dtype in target.platform.capabilities.dtypes
    }
    for name, trial in trials.items():
        yield Case(f"model/{name}", "bronze", "model", trial.run)
    yield Case("model/any", "bronze", "model", partial(_one_runs, list(trials.values())))


def _one_runs(trials: Sequence[_Trial]) -> Verdict:
    if all(trial.refusal is not None for trial in trials):
        raise ConformanceError(f"it refuses every model that is tried: {trials[0].refusal}")
    return PASSED


@dataclass
class _Trial:
    """A family in a dtype. The reference runs first: what it cannot do is no fault of the platform's."""

    target: Target
    family: str
    dtype: str

    def run(self) -> Verdict:
        with self._folder() as folder:
            expected = self._answers(folder, OWN["reference"])
            try:
                found = self._answers(folder, self.target.path)
            except RefusedError as refused:
                return absent(refused.message)
        for place, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
            what = f"{self.family} in {self.dtype}, prompt {place} of {len(theirs.prompt_token_ids or ())} tokens"
            self._compare(what, mine, theirs)
        return PASSED

    @cached_property
    def refusal(self) -> str | None:
        """Why the platform does not run it; None where it starts."""
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
            max_num_batched_tokens=64, kv_cache_memory_bytes=1 << 21,
        )  # fmt: skip

    def _answers(self, folder: str, platform: str) -> list[RequestOutput]:
        """To prompts of many lengths, in chunks, half of them greedily and half drawn by seed."""
        chance = random.Random(0)  # noqa: S311  # no secret: the same prompts each time
        prompts = [[chance.randrange(3, VOCAB) for _ in range(length)] for length in (1, 5, 16, 17, 33, 60, 90)]
        params = [
            SamplingParams(
                temperature=float(place % 2), seed=place, max_tokens=_ANSWER, ignore_eos=True, prompt_logprobs=0,
                logprobs=2,
            )
            for place in range(len(prompts))
        ]  # fmt: skip
        with self._engine(folder, platform) as llm:
            return llm.generate(prompt_token_ids=prompts, sampling_params=params, use_tqdm=False)

    def _compare(self, what: str, found: RequestOutput, expected: RequestOutput) -> None:
        """The prompt's log probabilities, where a runner of the platform's own gives them; then the answer as far as
        rounding chooses none of its tokens. Raises ConformanceError."""
        mine, theirs = (_logprobs(output) for output in (found, expected))
        if len(mine) == len(theirs):
            self._compare_prompt(what, mine, theirs)
        elif mine or not self.target.brings_a_runner:
            raise ConformanceError(f"{what}: {len(mine)} of {len(theirs)} tokens have a log probability")
        answer, right = (list(output.outputs[0].token_ids) for output in (found, expected))
        sure = len(right) if self.dtype == "float32" else self._sure(expected)
        if answer[:sure] != right[:sure]:
            raise ConformanceError(f"{what}: the answer is {answer}, not {right}")
        if len(answer) != len(right):
            raise ConformanceError(f"{what}: the answer has {len(answer)} tokens, not {len(right)}")

    def _compare_prompt(self, what: str, mine: Sequence[float], theirs: Sequence[float]) -> None:
        slack = self._slack
        for place, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            if not math.isclose(one, other, rel_tol=slack, abs_tol=slack):
                raise ConformanceError(f"{what}: token {place + 1} has log probability {one:.6g}, not {other:.6g}")

    @property
    def _slack(self) -> float:
        return _SLACK * TOLERANCES[self.dtype]

    def _sure(self, expected: RequestOutput) -> int:
        """Tokens of the answer up to the first where the second most likely is nearly as likely, or any was drawn by
        chance."""
        answer = expected.outputs[0]
        for place, entry in enumerate(answer.logprobs or ()):
            ranked = sorted((one.logprob for one in entry.values()), reverse=True)
            if entry[answer.token_ids[place]].rank != 1 or ranked[0] - ranked[1] < 2 * self._slack:
                return place
        return len(answer.token_ids)


def _logprobs(output: RequestOutput) -> list[float]:
    """Of the prompt's tokens but the first; none where the runner gives none."""
    tokens, entries = output.prompt_token_ids or (), output.prompt_logprobs or ()
    return [entry[token].logprob for token, entry in zip(tokens, entries, strict=True) if entry is not None]
