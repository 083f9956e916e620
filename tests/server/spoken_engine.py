"""An engine that says given texts, byte by byte, through the completions of the real one, whose own detokenizing, stop
strings, cuts and log probabilities these are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import numpy as np

from tessera.arrays import int32
from tessera.engine.completion import CompletionState
from tessera.engine.input_processor import Prompt
from tessera.request import RequestOutput
from tessera.sampling_params import RequestOutputKind, SamplingParams
from tessera.step import RowLogprobs
from tessera.text import StopStrings
from tests.server.fake_engine import FakeEngine, byte_tokenizer


class SpokenEngine(FakeEngine):
    """said: what each choice says. strides: how many tokens come at once, in turns."""

    def __init__(self, *said: str) -> None:
        super().__init__(tokenizer=byte_tokenizer())
        self.said: Sequence[str] = said
        self.strides: Sequence[int] = (1,)

    async def generate(  # type: ignore[override]  # the fields that matter here
        self, prepared: Prompt, params: SamplingParams, request_id: str, **_owner: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        assert self.tokenizer is not None
        prompt = prepared.ids.tolist()
        stops = StopStrings(tuple(params.stop)) if params.stop else None
        end = self.tokenizer.encode("<bos>", add_special_tokens=False)[0]
        ids = [[*self.tokenizer.encode(text, add_special_tokens=False), end] for text in self.said[: params.n]]
        choices = [CompletionState(n, params, self.tokenizer, prompt, 0.0, stops) for n in range(params.n)]
        number = 0
        while not all(choice.finish_reason for choice in choices):
            await asyncio.sleep(0)
            stride = self.strides[number % len(self.strides)]
            number += 1
            for choice, own in zip(choices, ids, strict=True):
                if choice.finish_reason is None:
                    _advance(choice, own, stride, params)
            finished = all(choice.finish_reason for choice in choices)
            delta = params.output_kind is RequestOutputKind.DELTA
            due = [choice for choice in choices if choice.due] if delta else choices
            if due and (delta or finished):
                outputs = [choice.take() for choice in due]
                yield RequestOutput(request_id, None, prompt, outputs, finished, num_cached_tokens=3)


def _advance(choice: CompletionState, ids: Sequence[int], stride: int, params: SamplingParams) -> None:
    start = len(choice.token_ids)
    limit = len(ids) if params.max_tokens is None else min(params.max_tokens, len(ids))
    tokens = list(ids[start : min(start + stride, limit)])
    stopped = start + len(tokens) == len(ids)
    choice.extend(tokens, _logprobs(tokens, start, params.logprobs), hide_last=stopped)
    if stopped or start + len(tokens) == limit:
        choice.finish("stop" if stopped else "length", None)


def _logprobs(tokens: Sequence[int], start: int, count: int | None) -> RowLogprobs | None:
    if count is None:
        return None
    others = np.arange(count, dtype=np.int32) + 40
    table = np.concatenate([int32(tokens)[:, None], np.tile(others, (len(tokens), 1))], axis=1)
    values = -(np.arange(len(tokens), dtype=np.float32)[:, None] + start + np.arange(count + 1) / 8 + 1)
    return RowLogprobs(0, table, values.astype(np.float32), int32([1] * len(tokens)))
