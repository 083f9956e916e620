"""What the server asks of an engine; tessera.engine.AsyncEngine is one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Protocol

from tessera.config import EngineConfig
from tessera.request import RequestOutput, SamplingParams
from tessera.text import Tokenizer


class HistogramValue(Protocol):
    """counts[i]: values of at most bounds[i] and more than the bound before; the last: values above every bound."""

    @property
    def bounds(self) -> Sequence[float]: ...
    @property
    def counts(self) -> Sequence[int]: ...
    @property
    def sum(self) -> float: ...


class Metric(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def documentation(self) -> str: ...
    @property
    def value(self) -> float | HistogramValue: ...
    @property
    def label(self) -> tuple[str, str] | None: ...


class Metrics(Protocol):
    def read(self) -> Iterable[Metric]: ...


class Health(Protocol):
    @property
    def alive(self) -> bool: ...
    @property
    def stalled(self) -> bool: ...


class EngineInfo(Protocol):
    @property
    def max_model_len(self) -> int: ...


class EngineClient(Protocol):
    @property
    def config(self) -> EngineConfig: ...
    @property
    def info(self) -> EngineInfo: ...
    @property
    def health(self) -> Health: ...
    @property
    def metrics(self) -> Metrics: ...
    @property
    def tokenizer(self) -> Tokenizer | None: ...

    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
        add_special_tokens: bool = True,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Closing it aborts the request.

        Raises RequestError before the first output, OverloadedError, EngineDeadError, EngineStepError.
        """
        ...

    async def wait_dead(self) -> None: ...
    async def shutdown(self) -> None: ...
