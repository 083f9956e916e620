"""Traces of requests by OpenTelemetry (https://opentelemetry.io/docs/specs/otlp/), with vLLM's span and attributes, so
that what reads vLLM's reads these."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tessera._version import __version__
from tessera.errors import ConfigError
from tessera.server.http import detail_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tessera.request import RequestMetrics
    from tessera.sampling_params import SamplingParams

SPAN = "llm_request"
_SEND_SECONDS = 3.0
TRACE = "tessera.trace"
"""The key under which the ASGI scope of a request holds its RequestTrace."""


@dataclass(frozen=True)
class EndedRequest:
    """What an engine did for one prompt."""

    id: str
    # the name that the client gave
    model: str
    # None for one that pools
    params: SamplingParams | None
    num_prompt_tokens: int
    num_output_tokens: int
    times: RequestMetrics


Ended = Callable[[], Iterable[EndedRequest]]


class RequestTrace(Protocol):
    """Where a request's spans go."""

    def follow(self, ended: Ended) -> AbstractContextManager[None]:
        """Sends a span for each prompt at the end. ended: called then."""
        ...


class _Untraced:
    def follow(self, ended: Ended) -> AbstractContextManager[None]:
        return nullcontext()


UNTRACED: RequestTrace = _Untraced()


def trace_of(scope: Scope) -> RequestTrace:
    """That of a request; to a server without traces, it leads nowhere."""
    trace: RequestTrace = scope.get(TRACE, UNTRACED)
    return trace


class Tracer:
    """Sends spans to a collector, some seconds' worth at a time, from a thread of its own. What the collector does not
    take is dropped, with a line in the log."""

    def __init__(self, endpoint: str) -> None:
        """endpoint: where OTLP over HTTP is taken, such as http://127.0.0.1:4318/v1/traces. Raises ConfigError."""
        if not endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                f"--otlp-traces-endpoint must be a URL of OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces, got "
                f"'{endpoint[:200]}'."
            )
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise ConfigError("--otlp-traces-endpoint needs OpenTelemetry: pip install 'tessera-llm[otel]'.") from error
        # OpenTelemetry's own variables (OTEL_SERVICE_NAME and others) come first.
        resource = Resource.create()
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "tessera", "service.version": __version__}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=_SEND_SECONDS)))
        self._tracer = self._provider.get_tracer("tessera", __version__)

    def trace(self, scope: Scope) -> RequestTrace:
        """The trace that a request's headers say that it belongs to (https://www.w3.org/TR/trace-context/), or a new
        one."""
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        names = TraceContextTextMapPropagator().fields
        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name.decode("latin-1") in names
        }
        return _Traced(self._tracer, TraceContextTextMapPropagator().extract(carrier))

    async def close(self) -> None:
        """Sends what has not been sent. Takes as long as the collector lets it, up to some seconds."""
        await asyncio.to_thread(self._provider.shutdown)


class _Traced:
    """tracer, context: OpenTelemetry's; the spans become children of the context's."""

    def __init__(self, tracer: Any, context: Any) -> None:
        self._tracer = tracer
        self._context = context

    @contextmanager
    def follow(self, ended: Ended) -> Iterator[None]:
        error = ""
        try:
            yield
        except Exception as cause:
            error = detail_of(cause).message
            raise
        except BaseException:
            error = "The client went away."
            raise
        finally:
            for request in ended():
                self._send(request, error)

    def _send(self, request: EndedRequest, error: str) -> None:
        """error: what ended it before its end; "": nothing did."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        # Times are on time.monotonic(), and spans on the clock of the day.
        now, monotonic = time.time(), time.monotonic()
        arrival = request.times.arrival or monotonic
        span = self._tracer.start_span(
            SPAN,
            context=self._context,
            kind=SpanKind.SERVER,
            attributes=dict(_attributes(request, monotonic)),
            start_time=round((now - (monotonic - arrival)) * 1e9),
        )
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(round(now * 1e9))


def _attributes(request: EndedRequest, now: float) -> Iterator[tuple[str, str | int | float]]:
    """vLLM's (vllm/tracing/utils.py: SpanAttributes). Times that were not reached are left out. now: on
    time.monotonic()."""
    yield "gen_ai.request.id", request.id
    yield "gen_ai.response.model", request.model
    yield "gen_ai.usage.prompt_tokens", request.num_prompt_tokens
    yield "gen_ai.usage.completion_tokens", request.num_output_tokens
    if (params := request.params) is not None:
        yield "gen_ai.request.temperature", params.temperature
        yield "gen_ai.request.top_p", params.top_p
        yield "gen_ai.request.n", params.n
        if params.max_tokens is not None:
            yield "gen_ai.request.max_tokens", params.max_tokens
    times = request.times
    if times.arrival:
        yield "gen_ai.latency.e2e", now - times.arrival
    if times.first_scheduled:
        yield "gen_ai.latency.time_in_queue", times.first_scheduled - times.arrival
    if times.first_token:
        yield "gen_ai.latency.time_to_first_token", times.first_token - times.arrival
        yield "gen_ai.latency.time_in_model_prefill", times.first_token - times.first_scheduled
        yield "gen_ai.latency.time_in_model_decode", times.last_token - times.first_token
        yield "gen_ai.latency.time_in_model_inference", times.last_token - times.first_scheduled


class Traces:
    """ASGI middleware: finds the trace that each request belongs to."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope[TRACE] = self._tracer.trace(scope)
        await self._app(scope, receive, send)
