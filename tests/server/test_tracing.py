"""Traces of requests, as a collector receives them."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tessera.config.pooler import PoolerConfig
from tessera.errors import ConfigError, EngineStepError
from tessera.request import RequestMetrics
from tessera.server.settings import ServerSettings
from tessera.server.tracing import SPAN, Tracer
from tests.server import test_audio as recordings
from tests.server import test_batches as batches
from tests.server import test_decisions as decisions
from tests.server.conftest import in_process, on_socket
from tests.server.fake_engine import MODEL, FakeEngine, Script
from tests.server.test_lifecycle import client, until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}


class Collector:
    """Takes OTLP over HTTP. spans: all that came. resources: the attributes of what sent them."""

    def __init__(self):
        self.spans, self.resources = [], []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
                    collector.resources.append(attributes(sent.resource))
                    collector.spans += [span for scope in sent.scope_spans for span in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_arguments):
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


def attributes(thing):
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in thing.attributes}


@pytest.fixture
def collector():
    collector = Collector()
    yield collector
    collector.close()


def traced(collector):
    return ServerSettings(tracer=Tracer(collector.url), drain_seconds=0.1)


def fake_engine(**script):
    """Whose requests arrived a second ago, waited for 0.25 s, and had their first token 0.5 s later."""
    now = time.monotonic()
    times = RequestMetrics(now - 1.0, now - 0.75, now - 0.25, now - 0.05)
    return FakeEngine(script=Script(**script), times=times)


async def test_a_request_is_vllm_s_span_in_the_trace_of_its_headers(collector):
    async with in_process(fake_engine(pieces=["a", "b", "c"]), traced(collector)) as api:
        api.client.headers.update(HEADERS)
        answer = (await api.complete(prompt=[1] * 7, temperature=0.5, top_p=0.75, max_tokens=9)).json()
    (span,) = collector.spans
    assert (span.name, span.kind, span.status.code) == (SPAN, span.SPAN_KIND_SERVER, span.status.STATUS_CODE_UNSET)
    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.trace_state) == (TRACE, PARENT, "vendor=1")
    found = attributes(span)
    seconds = {name.removeprefix("gen_ai.latency."): found.pop(name) for name in [*found] if "latency" in name}
    assert found.pop("gen_ai.request.id").startswith(answer["id"])
    assert found == {
        "gen_ai.response.model": MODEL,
        "gen_ai.usage.prompt_tokens": 7,
        "gen_ai.usage.completion_tokens": 3,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.75,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.n": 1,
    }
    e2e = seconds.pop("e2e")
    assert 1.0 <= e2e < 60.0
    assert seconds == pytest.approx(
        {
            "time_in_queue": 0.25,
            "time_to_first_token": 0.75,
            "time_in_model_prefill": 0.5,
            "time_in_model_decode": 0.2,
            "time_in_model_inference": 0.7,
        }
    )
    assert (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 == pytest.approx(e2e, abs=1e-3)
    assert abs(span.end_time_unix_nano / 1e9 - time.time()) < 60.0
    assert collector.resources[0]["service.name"] == "tessera"


async def test_each_prompt_has_a_span_and_a_request_without_headers_a_trace_of_its_own(collector):
    async with in_process(fake_engine(), traced(collector)) as api:
        await api.complete(prompt=[[1] * 3, [2] * 5], n=2, stream=True)
        await api.chat()
        await api.client.get("/v1/models")
    assert len(collector.spans) == 3
    assert len({span.trace_id for span in collector.spans}) == 3
    assert not any(span.parent_span_id for span in collector.spans)
    counts = [attributes(span)["gen_ai.usage.prompt_tokens"] for span in collector.spans[:2]]
    assert counts == [3, 5]
    assert [attributes(span)["gen_ai.request.n"] for span in collector.spans] == [2, 2, 1]


async def test_what_pools_has_a_span_too(collector):
    engine = fake_engine()
    engine = FakeEngine(pooler=PoolerConfig(pooling="mean", tasks=("embed",), dimensions=4), generates=False)
    async with in_process(engine, traced(collector)) as api:
        response = await api.post("/v1/embeddings", {"model": MODEL, "input": [[1, 2, 3], [4]]})
        assert response.status_code == 200, response.text
    found = [attributes(span) for span in collector.spans]
    assert sorted(one["gen_ai.usage.prompt_tokens"] for one in found) == [1, 3]
    assert "gen_ai.request.temperature" not in found[0]


async def test_each_question_of_a_decision_has_a_span(collector):
    async with in_process(decisions.engine(), traced(collector)) as api:
        api.client.headers.update(HEADERS)
        questions = [decisions.CHOICE, decisions.SCORE, decisions.PREDICATE]
        answer = await api.post("/v1/decisions", {"model": MODEL, "input": "Twice.", "questions": questions})
        assert answer.status_code == 200, answer.text
        lengths = sorted(len(call.prompt) for call in api.engine.calls)
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    found = [attributes(span) for span in collector.spans]
    assert sorted(one["gen_ai.usage.prompt_tokens"] for one in found) == lengths
    assert {(one["gen_ai.response.model"], one["gen_ai.usage.completion_tokens"]) for one in found} == {(MODEL, 1)}


async def test_what_is_written_and_timed_of_a_recording_has_spans(collector):
    async with in_process(recordings.engine(), traced(collector)) as api:
        api.client.headers.update(HEADERS)
        fields = {"language": "en", "response_format": "verbose_json", "timestamp_granularities[]": "word"}
        answer = await recordings.send(api, b"31", **fields)
        assert answer.status_code == 200, answer.text
        expected = [(len(call.prompt), min(3, call.params.max_tokens)) for call in api.engine.calls]
        expected += [(len(call.prompt.ids), 0) for call in api.engine.pooled]
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    found = [attributes(span) for span in collector.spans]
    counts = [(one["gen_ai.usage.prompt_tokens"], one["gen_ai.usage.completion_tokens"]) for one in found]
    assert sorted(counts) == sorted(expected)
    assert len(counts) == 6


@pytest.mark.parametrize("headers", [HEADERS, {}])
async def test_the_lines_of_a_batch_belong_to_the_trace_that_made_it_even_in_the_next_server(
    collector, tmp_path, headers
):
    engine, store = fake_engine(pieces=["a"] * 3, hang_at=1), str(tmp_path)
    settings = dataclasses.replace(traced(collector), batch_store=store)
    async with on_socket(engine, settings) as server, server.openai() as api:
        file = await api.files.create(file=("in.jsonl", batches.many(3)), purpose="batch")
        made = {"input_file_id": file.id, "endpoint": batches.CHAT, "completion_window": "24h"}
        batch = await api.batches.create(**made, extra_headers=headers)
        await until(lambda: engine.running)
    collector.spans.clear()
    settings = dataclasses.replace(traced(collector), batch_store=store)
    async with on_socket(fake_engine(), settings) as server, server.openai() as api:
        assert (await batches.ended(api, batch)).request_counts.completed == 3
    traces = [span.trace_id.hex() for span in collector.spans]
    assert len(traces) == 3
    assert set(traces) == {TRACE} if headers else len(set(traces)) == 3


async def test_an_error_is_one_without_what_only_the_log_may_say(collector):
    engine = fake_engine(error=EngineStepError("a secret"), error_at=0)
    async with in_process(engine, traced(collector)) as api:
        assert (await api.chat()).status_code == 500
    (span,) = collector.spans
    assert (span.status.code, span.status.message) == (
        span.status.STATUS_CODE_ERROR,
        "The engine could not compute this request.",
    )


async def test_a_client_that_leaves_ends_its_span(collector):
    engine = fake_engine(pieces=["x"] * 3, hang_at=1)
    settings = traced(collector)
    async with on_socket(engine, settings) as server, client(server) as http:
        asking = asyncio.create_task(http.post("/v1/completions", json={"prompt": "Hi", "stream": True}))
        await until(lambda: engine.steps)
        asking.cancel()
        await asyncio.wait([asking])
        await until(lambda: not engine.running)
    await until(lambda: collector.spans)
    assert collector.spans[0].status.message == "The client went away."


async def test_a_collector_that_is_not_there_holds_nobody_up(caplog):
    settings = ServerSettings(tracer=Tracer("http://127.0.0.1:9/v1/traces"))
    async with in_process(fake_engine(), settings) as api:
        began = time.monotonic()
        assert (await api.chat()).status_code == 200
        assert time.monotonic() - began < 10.0


def test_without_the_flag_nothing_of_it_is_imported():
    import subprocess

    text = "import sys, tessera.server.app; print([name for name in sys.modules if 'opentelemetry.sdk' in name])"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_wrong_is_one_line(monkeypatch):
    with pytest.raises(ConfigError, match="must be a URL of OTLP over HTTP"):
        Tracer("localhost:4317")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"pip install 'tessera-llm\[otel\]'"):
        Tracer("http://127.0.0.1:4318/v1/traces")
