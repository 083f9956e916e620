"""The completions of a prompt while they are generated: tokens in, text and log probabilities out, stop strings, and
what the reader has not taken yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tessera.arrays import Array
from tessera.engine.logprobs import PromptLogprobsBuffer, TokenLogprobs
from tessera.errors import TesseraError
from tessera.kv_transfer_params import KVTransferParams
from tessera.pooling_params import PoolingParams
from tessera.request import CompletionOutput, Request, RequestMetrics, RequestOutput
from tessera.sampling_params import RequestOutputKind, SamplingParams
from tessera.text import IncrementalDetokenizer, StopChecker

if TYPE_CHECKING:
    from tessera.step import RowLogprobs
    from tessera.text import StopStrings, Vocabulary

_NUMBERS = 16
"""Numbers of a vector that take as much memory as one of the values that num_unread counts."""


class TextOutput:
    """Detokenizes one completion and looks for its stop strings, `stops`, if it has any."""

    def __init__(
        self, vocabulary: Vocabulary, prompt: Sequence[int], params: SamplingParams, stops: StopStrings | None
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(
            vocabulary,
            prompt,
            params.skip_special_tokens,
            params.spaces_between_special_tokens,
            params.kept_special_tokens,
        )
        self._checker = None if stops is None else StopChecker(stops, params.include_stop_str_in_output)
        self._unarmed = params.min_tokens

    def append(self, tokens: Sequence[int]) -> tuple[str, int, str | None]:
        """Returns the text that may be shown, how many of the tokens belong to the completion, and the stop string that
        ended it, if any."""
        if self._checker is None:
            return self._detokenizer.append(tokens), len(tokens), None
        shown = []
        for count, token in enumerate(tokens, start=1):
            armed = self._unarmed <= 0
            self._unarmed -= 1
            text, stopped = self._checker.feed(self._detokenizer.append((token,)), armed)
            shown.append(text)
            if stopped is not None:
                return "".join(shown), count, stopped
        return "".join(shown), len(tokens), None

    def finish(self, *, cut: bool) -> tuple[str, str | None]:
        """Returns the text that was held back, and the stop string found in it, if any. cut: the model did not end the
        text; part of a character at its end is left out."""
        rest = self._detokenizer.finish(cut=cut)
        if self._checker is None:
            return rest, None
        text, stopped = self._checker.feed(rest, self._unarmed <= 0)
        if stopped is not None:
            return text, stopped
        held, stopped = self._checker.flush()
        return text + held, stopped


class CompletionState:
    """The state of one completion. changed: there is something that was not taken yet. num_cached_tokens: prompt tokens
    that were already computed when it started. num_preemptions: how often it lost its row."""

    def __init__(
        self,
        index: int,
        params: SamplingParams,
        vocabulary: Vocabulary | None,
        prompt: Sequence[int],
        arrival: float,
        stops: StopStrings | None,
    ) -> None:
        self.index = index
        self.times = RequestMetrics(arrival=arrival)
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.changed = False
        self._params = params
        self._vocabulary = vocabulary
        self._text: TextOutput | None = None
        if vocabulary is not None and params.detokenize:
            self._text = TextOutput(vocabulary, prompt, params, stops)
        self._pieces: list[str] = []
        self._logprobs = None if params.logprobs is None else TokenLogprobs(vocabulary)
        self._cumulative_logprob = 0.0
        self._taken = 0
        self._interval = params.stream_interval or 1

    @property
    def due(self) -> bool:
        """Whether to output now: stream_interval new tokens, the first token, or the end."""
        waited = len(self.token_ids) - self._taken >= self._interval
        return self.changed and (waited or not self._taken or self.finish_reason is not None)

    def extend(self, tokens: Sequence[int], logprobs: RowLogprobs | None, *, hide_last: bool) -> None:
        """Adds tokens, and ends the completion at a stop string. hide_last: the last token ended the completion and is
        not part of its text."""
        count = len(tokens)
        if self._text is not None:
            text, seen, stopped = self._text.append(tokens[:-1] if hide_last else tokens)
            self._pieces.append(text)
            if stopped is not None:
                count, self.finish_reason, self.stop_reason = seen, "stop", stopped
        self.token_ids.extend(tokens[:count])
        if self._logprobs is not None and logprobs is not None:
            self._logprobs.add(logprobs, count)
            self._cumulative_logprob += sum(logprobs.logprobs[:count, 0].tolist())
        self.changed = True

    def finish(self, reason: str, stop_reason: int | str | None) -> None:
        """Ends the completion, unless a stop string already did."""
        self.changed = True
        if self.finish_reason is not None:
            return
        self.finish_reason, self.stop_reason = reason, stop_reason
        if self._text is not None:
            text, stopped = self._text.finish(cut=reason != "stop")
            self._pieces.append(text)
            if stopped is not None:
                self.finish_reason, self.stop_reason = "stop", stopped

    def take(self) -> CompletionOutput:
        """The output so far; with DELTA, only what is new since the last call."""
        delta = self._params.output_kind is RequestOutputKind.DELTA
        start = self._taken if delta else 0
        text = "".join(self._pieces)
        self._pieces = [] if delta else [text]
        self._taken = len(self.token_ids)
        self.changed = False
        logprobs = self._logprobs
        if logprobs is not None:
            # With DELTA nobody asks for them again.
            self._logprobs = TokenLogprobs(self._vocabulary) if delta else logprobs.copy()
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=self.token_ids[start:],
            cumulative_logprob=None if logprobs is None else self._cumulative_logprob,
            logprobs=logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )

    def forget(self) -> None:
        """Frees what nobody has taken."""
        self.token_ids, self._pieces, self._logprobs, self._taken = [], [], None, 0

    @property
    def num_unread(self) -> int:
        """Values of the output that nobody has taken: tokens and log probabilities."""
        unread = len(self.token_ids) - self._taken
        return unread if not self._logprobs else unread * self._logprobs.width


class RequestState:
    """A prompt and its completions while they are generated. The reader calls take() at its own pace: a slow reader
    gets more at once and delays nobody else."""

    def __init__(
        self,
        request_id: str,
        params: SamplingParams,
        prompt: str | None,
        prompt_ids: list[int],
        requests: list[Request],
        completions: list[CompletionState],
        prompt_logprobs: PromptLogprobsBuffer | None,
        stops: StopStrings | None,
        pooling: PoolingParams | None = None,
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_ids
        self.requests = requests
        self.completions = completions
        self.prompt_logprobs = prompt_logprobs
        self.stops = stops
        self.num_cached_tokens = 0
        self.error: TesseraError | None = None
        self.was_read = False
        """Whether the reader got some output. If so, the request cannot be rerun on another engine, because its tokens
        may differ."""
        self.params = params
        # What a request that pools wants, and what it got when it ended.
        self.pooling = pooling
        self.pooled: Array | None = None
        self.kv_transfer_params: KVTransferParams | None = None
        self.num_unfinished = len(completions)

    @property
    def finished(self) -> bool:
        return self.num_unfinished == 0

    @property
    def started(self) -> bool:
        """Whether the engine has said that it began with one of the completions."""
        return any(completion.times.first_scheduled for completion in self.completions)

    @property
    def num_unread(self) -> int:
        """Values of the output that the reader has not taken: about a hundred bytes for a token, eight for a log
        probability."""
        numbers = 0 if self.pooled is None else self.pooled.size // _NUMBERS
        return sum(completion.num_unread for completion in self.completions) + numbers

    @property
    def num_generated_tokens(self) -> int:
        """Tokens of all completions so far."""
        return sum(len(completion.token_ids) for completion in self.completions)

    def forget(self) -> None:
        """Frees what nobody has taken, after an error."""
        self.pooled = None
        for completion in self.completions:
            completion.forget()

    def take(self) -> RequestOutput | None:
        """The next output, as output_kind says, or None if there is none yet. Raises the error that ended the
        request."""
        if self.error is not None:
            raise self.error
        kind = self.params.output_kind
        changed = [completion for completion in self.completions if completion.due]
        if not changed or (kind is RequestOutputKind.FINAL_ONLY and not self.finished):
            return None
        self.was_read = True
        completions = changed if kind is RequestOutputKind.DELTA else self.completions
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[completion.take() for completion in completions],
            finished=self.finished,
            num_cached_tokens=self.num_cached_tokens,
            metrics=_merged([completion.times for completion in self.completions]),
            prompt_logprobs=None if self.prompt_logprobs is None else self.prompt_logprobs.take(kind),
            pooled=self.pooled,
            kv_transfer_params=self.kv_transfer_params,
        )


def _merged(times: list[RequestMetrics]) -> RequestMetrics:
    """The times of all completions together: the earliest start and first token, and the latest last token."""
    first = times[0]
    if len(times) == 1:
        return RequestMetrics(first.arrival, first.first_scheduled, first.first_token, first.last_token)
    return RequestMetrics(
        arrival=first.arrival,
        first_scheduled=min((t.first_scheduled for t in times if t.first_scheduled), default=0.0),
        first_token=min((t.first_token for t in times if t.first_token), default=0.0),
        last_token=max(t.last_token for t in times),
    )
