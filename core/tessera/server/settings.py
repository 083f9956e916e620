"""The server's settings, and the limits of everything a client can send, in one place."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Limits:
    """The most a request may hold.

    What SamplingParams checks itself (n, stop, bad_words, logit_bias and so on) has its limit there.

    body_bytes: of a request's body. bodies_bytes: of the bodies of all requests in progress. other_bytes: of all fields
    but messages, tools, prompt and allowed_token_ids. prompts: in one completions request. choices: prompts x n.
    prompt_chars: of one prompt, rendered. messages, content_parts, tool_calls: in one chat request. tools_bytes: of its
    tools. template_kwargs_bytes: of chat_template_kwargs. body_seconds: until a body has arrived. header_bytes: of the
    request line and all headers. detokenize_tokens: of one /detokenize.
    """

    body_bytes: int = 32 * 2**20
    bodies_bytes: int = 512 * 2**20
    other_bytes: int = 2**20
    prompts: int = 64
    choices: int = 512
    prompt_chars: int = 8 * 2**20
    messages: int = 2048
    content_parts: int = 8192
    tool_calls: int = 8192
    tools_bytes: int = 2**20
    template_kwargs_bytes: int = 2**16
    salt_chars: int = 256
    request_id_chars: int = 128
    header_bytes: int = 2**16
    body_seconds: float = 60.0
    detokenize_tokens: int = 2**20


@dataclass(frozen=True)
class AnswerLimits:
    """Tokens of an answer. default: of chats that do not say; None fills the context. most: whatever a request says."""

    default: int | None = None
    most: int | None = None

    def capped(self, asked: int | None) -> int | None:
        """For a request's own max_tokens."""
        return asked if asked is None or self.most is None else min(asked, self.most)

    def unasked(self, room: int) -> int | None:
        """For a request without; None fills the room, which is what the context has beside the prompt."""
        limits = [limit for limit in (self.default, self.most) if limit is not None]
        return min(*limits, max(room, 1)) if limits else None


@dataclass(frozen=True)
class CorsRules:
    """The web pages that may read answers, and what they may send. "*" is any; credentials: cookies and the like."""

    origins: tuple[str, ...]
    methods: tuple[str, ...] = ("*",)
    headers: tuple[str, ...] = ("*",)
    credentials: bool = False


@dataclass(frozen=True)
class ServerSettings:
    """How the server serves.

    served_model_names: what requests may call the model; () takes the engine's name. api_keys: any of them opens the
    guarded routes; () guards nothing. default_sampling: sampling fields of a request that leaves them out (from
    generation_config.json). max_requests: HTTP requests in progress at once; max_requests_per_key: those with one key;
    None is any number. drain_seconds: for the requests in progress after SIGTERM. keep_alive_seconds: how long an idle
    connection stays open. answers: how long answers may be. chat_template_kwargs: variables of the chat template; a
    request's own win. force_include_usage: as if every stream had asked for its usage. sse_keep_alive_seconds: of
    silence in a stream before it gets a comment; None is never. vllm_metrics: the engine's metrics under their `vllm:`
    names too. docs: serve /openapi.json and /docs. root_path: a proxy's prefix of all paths. allowed_hosts: names the
    server goes by; () is any. cors: None lets no page of another origin read answers. tls: for HTTPS.
    """

    served_model_names: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    max_requests: int = 8192
    drain_seconds: float = 30.0
    keep_alive_seconds: int = 75
    limits: Limits = field(default_factory=Limits)
    answers: AnswerLimits = field(default_factory=AnswerLimits)
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    force_include_usage: bool = False
    sse_keep_alive_seconds: float | None = None
    max_requests_per_key: int | None = None
    vllm_metrics: bool = False
    docs: bool = True
    root_path: str = ""
    allowed_hosts: tuple[str, ...] = ()
    cors: CorsRules | None = None
    tls: ssl.SSLContext | None = None
