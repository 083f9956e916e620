"""Beam search over an engine's log probabilities: the same beams, token for token, as transformers' generate(num_beams,
do_sample=False, early_stopping=False).

Each round requests one token for every beam, with its most likely alternatives; thanks to prefix caching, that computes
one token per beam. The search itself does no input or output: its caller runs the requests and passes the results in.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from heapq import nlargest
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tessera.config.modalities import sees_prompt
from tessera.errors import RequestError
from tessera.request import Logprob, RequestOutput
from tessera.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from tessera.config import ModelConfig
    from tessera.engine.async_engine import AsyncEngine
    from tessera.media.placed import PlacedMedia
    from tessera.text import Vocabulary

MAX_WIDTH = 63
MAX_TOKENS = 2**31 - 1
MAX_PENALTY = 10
Alternatives = Mapping[int, Logprob]


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to search, as a request asks for it. Raises RequestError."""

    # Number of beams kept, 1 to 63; with the model's number of end-of-text tokens added, at most max_logprobs.
    beam_width: int
    # Per beam.
    max_tokens: int
    # Every beam gets max_tokens tokens.
    ignore_eos: bool = False
    # Accepted for compatibility with vLLM and ignored; beams are ranked by the model's unscaled log probabilities.
    temperature: float = 0.0
    # Scores are divided by the number of tokens to this power, so a value above 0 favors long beams.
    length_penalty: float = 1.0
    # Keep the end-of-text token at the end of the tokens.
    include_stop_str_in_output: bool = False
    # As in SamplingParams.
    target_language: str | None = None

    def __post_init__(self) -> None:
        _check("beam_width", self.beam_width, 1, MAX_WIDTH)
        _check("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        if not -MAX_PENALTY <= self.length_penalty <= MAX_PENALTY:
            raise RequestError(f"length_penalty must be from -{MAX_PENALTY} to {MAX_PENALTY}.", param="length_penalty")


def _check(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(f"{name} must be a whole number from {low} to {high}.", param=name)


@dataclass
class BeamSearchSequence:
    """One beam of the result."""

    # Those of the prompt and of the beam.
    tokens: list[int]
    # One entry per token of the beam, with its alternatives.
    logprobs: list[Alternatives]
    # The sum of its tokens' log probabilities.
    cum_logprob: float = 0.0
    # cum_logprob with the length penalty; beams are sorted by it.
    score: float = 0.0
    # Of all tokens; None without a vocabulary.
    text: str | None = None
    # "stop" or "length".
    finish_reason: str | None = None
    # The end-of-text token, if the beam ended with one.
    stop_reason: int | None = None


@dataclass
class BeamSearchOutput:
    """The beams of one prompt, best first."""

    sequences: list[BeamSearchSequence]


@dataclass(frozen=True)
class _Beam:
    """A beam during the search."""

    # Without the prompt.
    tokens: tuple[int, ...] = ()
    # One entry per token.
    logprobs: tuple[Alternatives, ...] = ()
    # The sum over all tokens.
    cum_logprob: float = 0.0


class _Candidate(NamedTuple):
    """A beam and one possible next token. Only the best candidates become beams."""

    # With the token.
    cum_logprob: float
    token: int
    # Of the token's place, the token itself among them.
    alternatives: Alternatives
    # The beam that the token would extend.
    prefix: _Beam

    def beam(self) -> _Beam:
        prefix = self.prefix
        return _Beam((*prefix.tokens, self.token), (*prefix.logprobs, self.alternatives), self.cum_logprob)


@dataclass
class BeamSearch:
    """The search for one prompt. As long as pending_prompts() is not empty, generate one token for each of them and
    pass the alternatives to advance()."""

    prompt: Sequence[int]
    params: BeamSearchParams
    eos_token_ids: Sequence[int]
    # Per beam, limited by the context length.
    max_tokens: int
    # The least number of alternatives to return for each token of a beam.
    num_logprobs: int = 0
    # The prompt's, in order of their places.
    media: Sequence[PlacedMedia] = ()
    _running: list[_Beam] = field(default_factory=lambda: [_Beam()])
    _finished: list[tuple[float, _Beam]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._eos = frozenset(() if self.params.ignore_eos else self.eos_token_ids)
        self._alternatives = max(self.params.beam_width + len(self._eos), self.num_logprobs)

    @property
    def sampling(self) -> SamplingParams:
        """The parameters of each request of a round: the next token, with as many alternatives as can matter. At most
        beam_width alternatives of one beam can continue, and an end-of-text token counts only if it is among the best
        beam_width candidates."""
        return SamplingParams(
            temperature=0.0,
            max_tokens=1,
            logprobs=self._alternatives,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all finished beams."""
        return sum(len(beam.tokens) for _, beam in self._finished)

    def pending_prompts(self) -> list[list[int]]:
        """The token ids of each unfinished beam, including the prompt; empty once the search is done."""
        return [[*self.prompt, *beam.tokens] for beam in self._running]

    def advance(self, alternatives: Sequence[Alternatives]) -> None:
        """Extends the beams by one token. alternatives: for the next token of each of pending_prompts()."""
        width, length = self.params.beam_width, len(self._running[0].tokens) + 1
        most = nlargest((1 + max(len(self._eos), 1)) * width, self._candidates(alternatives), key=_by_cum_logprob)
        best = [candidate.beam() for candidate in most]
        ended = [length == self.max_tokens or beam.tokens[-1] in self._eos for beam in best]
        penalty = float(length) ** self.params.length_penalty
        for beam, ends in zip(best[:width], ended, strict=False):
            if ends:
                self._finished.append((beam.cum_logprob / penalty, beam))
        self._finished = nlargest(width, self._finished, key=_by_score)
        self._running = [beam for beam, ends in zip(best, ended, strict=True) if not ends][:width]
        if self._running and len(self._finished) == width and not self._improvable(penalty):
            self._running = []

    def _candidates(self, alternatives: Sequence[Alternatives]) -> Iterator[_Candidate]:
        for beam, of_beam in zip(self._running, alternatives, strict=True):
            for token, logprob in of_beam.items():
                yield _Candidate(beam.cum_logprob + logprob.logprob, token, of_beam, beam)

    def _improvable(self, penalty: float) -> bool:
        """Whether the best unfinished beam, if it ended now, would beat the worst finished one. transformers stops by
        the same rule with early_stopping=False."""
        return self._running[0].cum_logprob / penalty > self._finished[-1][0]

    def output(self, vocabulary: Vocabulary | None) -> BeamSearchOutput:
        """The finished beams. Call it once pending_prompts() is empty."""
        return BeamSearchOutput([self._sequence(score, beam, vocabulary) for score, beam in self._finished])

    def _sequence(self, score: float, beam: _Beam, vocabulary: Vocabulary | None) -> BeamSearchSequence:
        stopped = beam.tokens[-1] in self._eos
        hidden = stopped and not self.params.include_stop_str_in_output
        tokens = [*self.prompt, *(beam.tokens[:-1] if hidden else beam.tokens)]
        return BeamSearchSequence(
            tokens=tokens,
            logprobs=list(beam.logprobs),
            cum_logprob=beam.cum_logprob,
            score=score,
            text=None if vocabulary is None else vocabulary.decode(tokens),
            finish_reason="stop" if stopped else "length",
            stop_reason=beam.tokens[-1] if stopped else None,
        )


def _by_cum_logprob(candidate: _Candidate) -> float:
    return candidate.cum_logprob


def _by_score(finished: tuple[float, _Beam]) -> float:
    return finished[0]


async def beam_search(engine: AsyncEngine, search: BeamSearch, request_id: str, **options: Any) -> int:
    """Runs the search to its end on an engine. The beams of a round run concurrently, with request ids derived from
    request_id. options: other arguments of AsyncEngine.generate. Returns how many tokens of the prompt were in the
    prefix cache. Cancelling it aborts the running requests. Raises RequestError, OverloadedError, EngineStepError,
    EngineDeadError."""
    numbers = itertools.count()

    async def answer(ids: list[int]) -> RequestOutput:
        prompt = await engine.prepare_prompt(ids, search.sampling, media=search.media)
        stream = engine.generate(prompt, search.sampling, f"{request_id}/{next(numbers)}", **options)
        async with aclosing(stream) as outputs:
            return [output async for output in outputs][-1]

    cached: int | None = None
    while prompts := search.pending_prompts():
        outputs = await asyncio.gather(*map(answer, prompts))
        search.advance([first_alternatives(output.outputs[0].logprobs) for output in outputs])
        cached = outputs[0].num_cached_tokens if cached is None else cached
    return cached or 0


def check_beams(model: ModelConfig) -> None:
    """Raises RequestError for a model that reads a beam, which is requested as a prompt, otherwise than its answer."""
    if sees_prompt(model.checkpoint):
        raise RequestError(
            "This model's prompts are read otherwise than its answers, so beams cannot be continued; use n instead.",
            param="use_beam_search",
        )


def max_beam_width(model: ModelConfig, *, ignore_eos: bool) -> int:
    """The largest beam_width for which --max-logprobs allows enough alternatives."""
    max_logprobs = model.vocab_size if model.max_logprobs == -1 else model.max_logprobs
    return min(MAX_WIDTH, max_logprobs - (0 if ignore_eos else len(set(model.eos_token_ids))))


def first_alternatives(logprobs: Sequence[Alternatives] | None) -> Alternatives:
    """The alternatives for a completion's first token."""
    assert logprobs, "a beam's request asks for log probabilities"
    return logprobs[0]
