"""A server that answers /v1/completions with tokens of a byte tokenizer: 300, 301 and so on. Run with a port and what
it does: "falls short" leaves out a token."""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FIRST = 300
TOKEN_SECONDS = 0.002


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    does = ""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        count = asked["max_tokens"] - (self.does == "falls short")
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for index in range(count):
            time.sleep(TOKEN_SECONDS)
            self._event({"choices": [{"text": f"<{FIRST + index}>"}]})
        self._event({"choices": [{"text": "", "finish_reason": "length"}]})
        self._event({"choices": [], "usage": {"completion_tokens": count}})
        self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, content: dict[str, Any]) -> None:
        """In two chunks, since where one ends says nothing of the lines in it."""
        line = f"data: {json.dumps(content)}\n\n".encode()
        self._chunk(line[:9])
        self._chunk(line[9:])

    def _chunk(self, content: bytes) -> None:
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")

    def log_message(self, *said: Any) -> None:
        """Nothing: what it writes would be taken for an error."""


def serve(port: int, does: str) -> ThreadingHTTPServer:
    handler = type("Handler", (Handler,), {"does": does})
    return ThreadingHTTPServer(("127.0.0.1", port), handler)


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2]).serve_forever()
