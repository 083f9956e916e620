"""Has prompts computed by servers of their own: asks one of them first, and passes on where the prompt's cache is."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import httpx
import msgspec
from msgspec import Raw
from starlette.types import Scope

from tessera.router.servers import ServerPool

log = logging.getLogger(__name__)

PATHS = frozenset({"/v1/completions", "/v1/chat/completions"})
_NAME = "kv_transfer_params"
_ONE_TOKEN: Mapping[str, Raw] = {
    "max_tokens": Raw(b"1"),
    "stream": Raw(b"false"),
    _NAME: Raw(b'{"do_remote_decode":true}'),
}
"""What a prompt is computed for: an answer of one token, in one piece, which nobody reads."""
_LIMIT = "max_completion_tokens"
_OF_MORE_TOKENS = ("stream_options", "min_tokens")
"""Fields that do not go with these."""


class _PrefillAnswer(msgspec.Struct):
    kv_transfer_params: Raw = Raw(b"null")


class Prefill:
    """pool: the servers that compute prompts."""

    def __init__(self, pool: ServerPool, client: httpx.AsyncClient) -> None:
        self.pool = pool
        self._client = client

    async def prepare(
        self, scope: Scope, headers: Sequence[tuple[bytes, bytes]], body: bytes, blocks: Sequence[bytes]
    ) -> bytes:
        """The body for the server that answers. It is the client's own if no server has computed the prompt: the server
        that answers does so then, or says what is wrong with the request."""
        if scope["path"] not in PATHS:
            return body
        try:
            fields = msgspec.json.decode(body, type=dict[str, Raw])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return body
        server = self.pool.choose(blocks, ())
        if server is None or _NAME in fields:
            return body
        sent = {name: value for name, value in fields.items() if name not in _OF_MORE_TOKENS} | dict(_ONE_TOKEN)
        if _LIMIT in sent:
            sent[_LIMIT] = Raw(b"1")
        url = f"{server.url}{scope['path']}"
        try:
            with self.pool.running(server, blocks):
                answer = await self._client.post(url, headers=headers, content=msgspec.json.encode(sent))
            params = msgspec.json.decode(answer.content, type=_PrefillAnswer).kv_transfer_params
        except httpx.HTTPError as error:
            log.warning("%s has not computed a prompt: %s", server.url, type(error).__name__)
            self.pool.failed(server, is_down=True)
            return body
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            params = Raw(b"null")
        if answer.status_code != httpx.codes.OK or bytes(params) == b"null":
            log.info("%s has not computed a prompt: status %d", server.url, answer.status_code)
            return body
        return msgspec.json.encode({**fields, _NAME: params})
