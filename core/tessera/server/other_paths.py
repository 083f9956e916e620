"""OpenAI's routes at the paths where other servers' clients look for them: llama.cpp's, which have no /v1 (but for its
/completions, an API of its own), and SageMaker's /invocations
(https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html)."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.routing import Route

from tessera.server.body_dispatch import by_member
from tessera.server.openapi import JsonRoute

_CHAT, _COMPLETIONS, _MODELS, _EMBEDDINGS = (
    "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/embeddings",
)  # fmt: skip


def routes(server_routes: Iterable[Route]) -> list[JsonRoute]:
    """server_routes: the routes of the server, those of chat, completions and embeddings among them."""
    found = {route.path: route for route in server_routes if isinstance(route, JsonRoute)}
    return [
        *(found[path].at(path.removeprefix("/v1")) for path in (_CHAT, _MODELS, _EMBEDDINGS) if path in found),
        by_member(
            "/invocations",
            {"messages": found[_CHAT], "prompt": found[_COMPLETIONS], "input": found[_EMBEDDINGS]},
            "Answers a chat, completes a prompt, or embeds an input, whichever the body has.",
        ),
    ]
