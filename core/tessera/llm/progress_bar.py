"""A progress bar over prompts."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm  # type: ignore[import-untyped]  # it has neither annotations nor stubs

from tessera.engine.beam_search import BeamSearch
from tessera.request import RequestOutput

MakeBar = Callable[..., Any]


class ProgressBar:
    """Counts finished prompts, and shows input and output tokens per second."""

    def __init__(self, total: int, use_tqdm: bool | MakeBar) -> None:
        make = tqdm if use_tqdm is True else use_tqdm
        self._bar = (
            make(total=total, desc="Processed prompts", dynamic_ncols=True, postfix=_speed(0, 0, 1))
            if make and total
            else None
        )
        self._begin = time.monotonic()
        self._tokens_in = 0
        self._tokens_out = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, output: RequestOutput) -> None:
        """Counts a finished prompt."""
        if self._bar is None:
            return
        self._tokens_in += len(output.prompt_token_ids)
        self._tokens_out += sum(len(completion.token_ids) for completion in output.outputs)
        self._bar.postfix = _speed(self._tokens_in, self._tokens_out, time.monotonic() - self._begin)
        self._bar.update(1)

    def ended(self, search: BeamSearch) -> None:
        """Counts a finished beam search."""
        if self._bar is None:
            return
        self._tokens_in += len(search.prompt)
        self._tokens_out += search.num_tokens
        self._bar.postfix = _speed(self._tokens_in, self._tokens_out, time.monotonic() - self._begin)
        self._bar.update(1)


def _speed(tokens_in: int, tokens_out: int, seconds: float) -> str:
    return f"est. speed input: {tokens_in / seconds:.2f} toks/s, output: {tokens_out / seconds:.2f} toks/s"
