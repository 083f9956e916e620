"""One prompt and its answers, between the engine's steps and whoever reads."""

from __future__ import annotations

from tessera.engine.completion import Completion
from tessera.engine.logprobs import PromptLogprobsBuffer
from tessera.errors import TesseraError
from tessera.request import Request, RequestMetrics, RequestOutput
from tessera.sampling_params import RequestOutputKind, SamplingParams


class RequestState:
    """A prompt and its answers as they grow. Whoever reads takes what is new when it can: a slow reader finds more at
    once and holds nobody up."""

    def __init__(
        self,
        request_id: str,
        params: SamplingParams,
        prompt: str | None,
        prompt_ids: list[int],
        requests: list[Request],
        completions: list[Completion],
        prompt_logprobs: PromptLogprobsBuffer | None,
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_ids
        self.requests = requests
        self.completions = completions
        self.prompt_logprobs = prompt_logprobs
        self.num_cached_tokens = 0
        self.error: TesseraError | None = None
        self.given = False
        """A reader has had some of it: another engine's answer is no answer any more."""
        self.params = params
        self.num_unfinished = len(completions)

    @property
    def finished(self) -> bool:
        return self.num_unfinished == 0

    def take(self) -> RequestOutput | None:
        """What its output_kind has to say since it was last taken; None where there is nothing. Raises what ended the
        request."""
        if self.error is not None:
            raise self.error
        kind = self.params.output_kind
        changed = [completion for completion in self.completions if completion.due]
        if not changed or (kind is RequestOutputKind.FINAL_ONLY and not self.finished):
            return None
        self.given = True
        given = changed if kind is RequestOutputKind.DELTA else self.completions
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[completion.take() for completion in given],
            finished=self.finished,
            num_cached_tokens=self.num_cached_tokens,
            metrics=_merged([completion.times for completion in self.completions]),
            prompt_logprobs=None if self.prompt_logprobs is None else self.prompt_logprobs.take(kind),
        )


def _merged(times: list[RequestMetrics]) -> RequestMetrics:
    """Of all answers: when the first of them began, and the last had its last token."""
    first = times[0]
    if len(times) == 1:
        return RequestMetrics(first.arrival, first.first_scheduled, first.first_token, first.last_token)
    return RequestMetrics(
        arrival=first.arrival,
        first_scheduled=min((t.first_scheduled for t in times if t.first_scheduled), default=0.0),
        first_token=min((t.first_token for t in times if t.first_token), default=0.0),
        last_token=max(t.last_token for t in times),
    )
