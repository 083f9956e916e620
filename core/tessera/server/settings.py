"""What the server is told at its start, and the limit of everything a client can send, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Limits:
    """The most a request may hold.

    What SamplingParams checks itself (n, stop, bad_words, logit_bias and so on) has its limit there.

    body_bytes: of a request's body. other_bytes: of all fields but messages, tools, prompt and allowed_token_ids.
    prompts: in one completions request. choices: prompts x n. prompt_chars: of one prompt, rendered. messages,
    content_parts, tool_calls: in one chat request. tools_bytes: of its tools. template_kwargs_bytes: of
    chat_template_kwargs. body_seconds: until a body has arrived. header_bytes: of the request line and all headers.
    """

    body_bytes: int = 32 * 2**20
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


@dataclass(frozen=True)
class ServerSettings:
    """How the server serves.

    served_model_names: what requests may call the model; () takes the engine's name. api_keys: any of them opens the
    guarded routes; () guards nothing. default_sampling: sampling fields of a request that says nothing of its own
    (from generation_config.json). max_requests: HTTP requests in work at once. drain_seconds: for the requests in
    work after SIGTERM. template_threads: workers that render templates and tokenize long texts. keep_alive_seconds:
    for which an idle connection stays open.
    """

    served_model_names: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    max_requests: int = 8192
    drain_seconds: float = 30.0
    template_threads: int = 2
    keep_alive_seconds: int = 75
    limits: Limits = field(default_factory=Limits)
