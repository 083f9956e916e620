"""A server that shows the page and answers chats by a script, in the words of vLLM's wire. It holds a stream where a
test wants to look at it."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tessera.server.page import Page

MODEL = "scripted"
PAGE = Page.read()
METRICS = """\
# HELP tessera:generation_tokens_total Tokens generated.
# TYPE tessera:generation_tokens_total counter
tessera:generation_tokens_total{{model_name="a \\"b\\" \\\\ c"}} {tokens}
tessera:prompt_tokens_total{{model_name="m"}} {tokens}
tessera:num_requests_running{{model_name="m"}} 3
tessera:num_requests_waiting{{model_name="m"}} 12
tessera:kv_cache_usage_perc{{model_name="m"}} 0.25
tessera:cache_config_info{{block_size="16",num_gpu_blocks="100",model_name="m"}} 1
tessera:spec_decode_num_draft_tokens_total{{model_name="m"}} 200
tessera:spec_decode_num_accepted_tokens_total{{model_name="m"}} 150
tessera:num_preemptions_total{{model_name="m"}} 4
tessera:engine_restarts_total{{model_name="m"}} 0
tessera:reference_fallbacks_total{{model_name="m",op="moe"}} 9
tessera:request_success_total{{model_name="m",finished_reason="stop"}} 7
tessera:request_success_total{{model_name="m",finished_reason="abort"}} 2
tessera:time_to_first_token_seconds_bucket{{model_name="m",le="0.1"}} 0
tessera:time_to_first_token_seconds_bucket{{model_name="m",le="0.2"}} 10
tessera:time_to_first_token_seconds_bucket{{model_name="m",le="0.4"}} 20
tessera:time_to_first_token_seconds_bucket{{model_name="m",le="+Inf"}} 20
tessera:time_to_first_token_seconds_sum{{model_name="m"}} 4
"""

HOLD = object()
"""In a script: the stream waits here until release()."""


def text(*pieces: str) -> list[dict[str, Any]]:
    return [{"content": piece} for piece in pieces]


class Server(ThreadingHTTPServer):
    request_queue_size = 128  # a browser opens many connections at once, and a busy machine is late to accept them


class StandIn:
    """`with StandIn() as server:`. script: the deltas of the next answers, HOLD, or {"error": ...} as an event.
    numbers: by path, the answers of other routes. does: tasks and labels of its models. requests: the bodies so far.
    paths: of all requests. cut: how many streams the client has left. loading: whether all but the page is a 503."""

    def __init__(self) -> None:
        self.script: Sequence[Any] = text("Hello.")
        self.numbers: dict[str, Any] = {}
        self.does: dict[str, Any] = {"tasks": ["generate"]}
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.cut = 0
        self.loading = False
        self.tokens = 0
        self.finish = "stop"
        self._go = threading.Event()
        self._server = Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self.stop()

    def stop(self) -> None:
        """Accepts no more connections."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def release(self) -> None:
        self._go.set()

    def answer(self, *deltas: Any, finish: str = "stop") -> None:
        """What the next chats are answered."""
        self.script, self.finish = deltas, finish
        self._go.clear()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                """Writes no log."""

            def do_GET(self) -> None:
                stand_in.paths.append(self.path)
                if stand_in.loading and self.path != "/":
                    self._send(503, "application/json", b'{"error": {"message": "The model is still loading."}}')
                else:
                    self._send(200, *stand_in._resource(self.path))

            def do_POST(self) -> None:
                stand_in.paths.append(self.path)
                stand_in.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                if self.path in stand_in.numbers:
                    return self._send(200, "application/json", json.dumps(stand_in.numbers[self.path]).encode())
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                try:
                    for event in stand_in._events():
                        self.wfile.write(b": keep-alive\n\ndata: " + event.encode() + b"\n\n")
                        self.wfile.flush()
                except OSError:
                    stand_in.cut += 1

            def _send(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Security-Policy", PAGE.policy)
                self.end_headers()
                self.wfile.write(body)

        return Handler

    def _resource(self, path: str) -> tuple[str, bytes]:
        if path == "/":
            return "text/html; charset=utf-8", PAGE.document
        if path == "/metrics":
            self.tokens += 100
            return "text/plain", METRICS.format(tokens=self.tokens).encode()
        answers: dict[str, Any] = {
            "/v1/models": {"data": [{"id": name, "max_model_len": 4096, **self.does} for name in (MODEL, "other")]},
            "/version": {"version": "1.2.3"},
            "/readyz": {"status": "ok"},
        }
        return "application/json", json.dumps(answers[path]).encode()

    def _events(self) -> Any:
        yield _chunk({"role": "assistant", "content": ""})
        for delta in self.script:
            if delta is HOLD:
                # Writing shows whether the client is still there.
                while not self._go.wait(0.02):
                    yield _chunk({"content": ""})
            else:
                yield json.dumps(delta) if "error" in delta else _chunk(delta)
        yield _chunk({}, self.finish)
        yield json.dumps({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 42, "total_tokens": 47}})
        yield "[DONE]"


def _chunk(delta: dict[str, Any], finish: str | None = None) -> str:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return json.dumps(
        {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": choices}
    )
