"""The web page at `GET /`: a chat with the model, or its numbers of texts, and what the engine is doing.

Its files are joined into one document, so that nothing else is requested and the document can be the body of an error.
The Content-Security-Policy names the style and the script by their hashes: no other style or script runs, whatever a
model writes.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from tessera.server.http import header

_FOLDER = Path(__file__).parent
MODULES = (
    "dom",
    "storage",
    "api",
    "curl",
    "inline",
    "code",
    "markdown",
    "conversation",
    "announcer",
    "pictures",
    "fields",
    "messages",
    "chat",
    "metrics",
    "charts",
    "engine",
    "kinds",
    "similarity",
    "scores",
    "texts",
    "main",
)
"""The JavaScript modules, each after those that it imports."""
IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./(\w+)\.js";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|class|const) (\w+))", re.MULTILINE)
_STYLE, _SCRIPT = "/* page.css */", "/* *.js */"
_HEADERS: Mapping[str, str] = {
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_OF_REFUSALS = ("WWW-Authenticate", "Retry-After")


@dataclass(frozen=True)
class Page:
    """document: the whole page. policy: its Content-Security-Policy."""

    document: bytes
    policy: str

    @classmethod
    def read(cls) -> Self:
        """Joins the files of this folder."""
        style, script = _text("page.css"), _joined()
        document = _text("page.html").replace(_STYLE, style).replace(_SCRIPT, script)
        return cls(document.encode(), _policy(style, script))

    def route(self) -> Route:
        """`GET /`. A browser that has the page asks whether it is still the newest, and gets a 304."""
        tag = f'"{hashlib.sha256(self.document).hexdigest()[:32]}"'
        headers = {**_HEADERS, "Content-Security-Policy": self.policy, "Cache-Control": "no-cache", "ETag": tag}

        async def page(request: Request) -> Response:
            if tag in request.headers.get("If-None-Match", ""):
                return Response(status_code=304, headers=headers)
            return Response(self.document, headers=headers, media_type="text/html")

        return Route("/", page)

    def instead_of(self, refusal: Response) -> Response:
        """The page with the status of a refusal, and its headers for clients. The page asks for the API key, or waits
        until the model is loaded: what a browser cannot do when it opens an address."""
        headers = {**_HEADERS, "Content-Security-Policy": self.policy, "Cache-Control": "no-store"}
        headers |= {"Vary": "Accept, Authorization"}
        headers |= {name: refusal.headers[name] for name in _OF_REFUSALS if name in refusal.headers}
        return Response(self.document, refusal.status_code, headers, media_type="text/html")


def opened_by_browser(scope: Scope) -> bool:
    """Whether a request is a browser's that opens the page: other clients do not ask for HTML."""
    kinds = (header(scope, b"accept") or b"").lower().split(b",")
    accepts_html = any(kind.partition(b";")[0].strip() == b"text/html" for kind in kinds)
    return scope["method"] in ("GET", "HEAD") and scope["path"] == "/" and accepts_html


def _joined() -> str:
    """The modules as one script. Each is a function that returns what it exports, because a document without further
    requests cannot have modules that import each other."""
    return "\n".join(_as_function(name) for name in MODULES)


def _as_function(name: str) -> str:
    text = _text(f"{name}.js")
    exported = ", ".join(EXPORT.findall(text))
    body = EXPORT.sub("", IMPORT.sub(r"const { \1 } = \2_js;", text))
    return f"const {name}_js = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();"


def _policy(style: str, script: str) -> str:
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(style)}'",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            # Browsers that know these refuse text wherever a document parses HTML or runs a script.
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def _hash(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
