"""A request that is ready to run: whose it is, checked against every limit, tokenized and compiled, each once."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.types import Scope

from tessera.engine.input_processor import Prompt
from tessera.errors import RequestError
from tessera.request import RequestOutput
from tessera.sampling_params import SamplingParams, with_max_tokens
from tessera.server.access import name_by_body, request_id_of
from tessera.server.context import ServerContext
from tessera.server.generation.prompt import TokenizedPrompt
from tessera.server.http import header
from tessera.server.quotas import UNLIMITED, TokenAllowance, token_budget
from tessera.server.security import client_of, tenant_of
from tessera.server.served_model import ServedModel
from tessera.server.settings import Limits, ServerSettings
from tessera.server.tracing import UNTRACED, RequestTrace, trace_of

_IDENTIFIER = re.compile(r"[A-Za-z0-9._:\-]+")
_RANK_DIGITS = 9
RANK = b"x-data-parallel-rank"
"""The header that chooses among engines."""
_PRIORITIES = range(-(2**31), 2**31)
PRIORITY = "tessera.priority"
"""The key under which the ASGI scope of a request holds a priority that goes before the body's."""


class OwnerFields(Protocol):
    """The fields of every request that the engine runs, GenerationFields among them."""

    user: str | None
    cache_salt: str | None
    prompt_cache_key: str | None
    priority: int | None
    request_id: str | None


_OF_THE_SERVER = frozenset({"budget", "trace"})
"""Fields of RequestOwner that the engine does not know."""


@dataclass(frozen=True)
class RequestOwner:
    """Whose request it is, how urgent, and what its model means to features."""

    # 32 bits, signed; a lower one is more urgent
    priority: int
    # requests with different ones share no cached prefix
    cache_salt: str
    # of the scheduling policy `fair`; "": the cache salt stands for it
    tenant: str
    # Request.feature_args
    feature_args: Mapping[str, str]
    # who takes turns with others at the text workers
    client: str
    # of the engine that runs it; None: whichever suits it
    data_parallel_rank: int | None = None
    # what its API key's quota leaves
    budget: TokenAllowance = UNLIMITED
    # where its spans go
    trace: RequestTrace = UNTRACED

    @classmethod
    def from_request(
        cls, context: ServerContext, model: ServedModel, request: OwnerFields, scope: Scope
    ) -> RequestOwner:
        """Raises RequestError."""
        limits = context.settings.limits
        salt = _cache_salt(request, limits)
        if not context.settings.shared_prefix_cache and (key := tenant_of(scope)):
            salt = f"{key}\n{salt}"  # no tenant has a line break, so no two of these pairs are the same text
        tenant = _tenant(request, limits, scope)
        return cls(
            priority=_priority(request, scope),
            cache_salt=salt,
            tenant=tenant,
            feature_args=model.feature_args,
            client=client_of(scope),
            data_parallel_rank=rank_of(scope),
            budget=token_budget(scope),
            trace=trace_of(scope),
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """Those of AsyncEngine.generate."""
        return {name: value for name, value in vars(self).items() if name not in _OF_THE_SERVER}


def _priority(request: OwnerFields, scope: Scope) -> int:
    priority = request.priority or 0
    if priority not in _PRIORITIES:
        raise RequestError("priority must be a 32-bit integer.", param="priority")
    return int(scope.get(PRIORITY, priority))


def rank_of(scope: Scope) -> int | None:
    """The engine that a header of vLLM's asks for. Raises RequestError."""
    value = header(scope, RANK)
    if value is None:
        return None
    if not value.isdigit() or len(value) > _RANK_DIGITS:
        raise RequestError("X-data-parallel-rank must be the number of an engine, from 0.", param="data_parallel_rank")
    return int(value)


def _tenant(request: OwnerFields, limits: Limits, scope: Scope) -> str:
    """The tenant for --scheduling-policy fair: that of the API key if it has one, else the request's `user`. If empty,
    the engine uses the cache salt."""
    if request.user is not None and len(request.user) > limits.salt_chars:
        raise RequestError(f"user must be at most {limits.salt_chars} characters long.", param="user")
    return tenant_of(scope) or request.user or ""


def _cache_salt(request: OwnerFields, limits: Limits) -> str:
    """Requests of a tenant share cached prefixes only if they have the same salt. prompt_cache_key is another name for
    it."""
    name = "cache_salt" if request.cache_salt is not None else "prompt_cache_key"
    salt = getattr(request, name) or ""
    if len(salt) > limits.salt_chars:
        raise RequestError(f"{name} must be at most {limits.salt_chars} characters long.", param=name)
    return str(salt)


@dataclass(frozen=True)
class Identity:
    """The fields that every chunk of an answer repeats."""

    id: str
    model: str
    # seconds since the epoch
    created: int

    @classmethod
    def from_request(
        cls, model: ServedModel, prefix: str, request: OwnerFields, limits: Limits, scope: Scope
    ) -> Identity:
        """prefix: of the id. Raises RequestError."""
        if request.request_id is not None:
            _check_identifier(request.request_id, limits)
            name_by_body(scope, request.request_id)
        return cls(f"{prefix}-{request_id_of(scope)}", model.name, int(time.time()))


def _check_identifier(request_id: str, limits: Limits) -> None:
    most = limits.request_id_chars
    if len(request_id) > most or not _IDENTIFIER.fullmatch(request_id):
        raise RequestError(f"request_id must be 1 to {most} characters of A-Z a-z 0-9 . _ : -.", param="request_id")


@dataclass(frozen=True)
class GenerationMethod:
    """How prompts are answered: by sampling, or by beam search."""

    # of each prompt, in the engine
    num_sequences: int
    # yields the outputs of one prompt; takes the arguments of AsyncEngine.generate
    generate: Callable[..., AsyncGenerator[RequestOutput, None]]


@dataclass(frozen=True)
class PreparedRequest:
    """What Generation runs."""

    model: ServedModel
    identity: Identity
    owner: RequestOwner
    method: GenerationMethod
    # as the request has them; max_tokens is None if it sets none
    params: SamplingParams
    # at least one, as the engine takes them
    prompts: Sequence[Prompt]
    # of each prompt: params with the tokens that its answer may have
    prompt_params: Sequence[SamplingParams]
    # the answers are left blank: the request wants nothing but its prompts
    prompt_only: bool = False

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.params.n

    @property
    def num_values(self) -> int:
        """Tokens that the answers may have, each counted once more for every log probability."""
        logprobs = self.params.logprobs or 0
        values = 1 + (self.model.engine.config.model.vocab_size if logprobs < 0 else logprobs)
        return self.method.num_sequences * values * sum(prompt.max_tokens for prompt in self.prompts)


async def prepare(
    context: ServerContext,
    model: ServedModel,
    identity: Identity,
    owner: RequestOwner,
    method: GenerationMethod,
    params: SamplingParams,
    prompts: Sequence[TokenizedPrompt],
    *,
    prompt_only: bool = False,
) -> PreparedRequest:
    """params: of prepare_params(). Raises RequestError."""
    limit = context.settings.limits.choices
    if len(prompts) * method.num_sequences > limit:
        counts = f"{len(prompts)} x {method.num_sequences}"
        raise RequestError(f"prompts times n must be at most {limit}, got {counts}.", param="n")
    if len(prompts) > 1 and params.kv_transfer_params is not None:
        raise RequestError(f"kv_transfer_params is for one prompt, got {len(prompts)}.", param="prompt")
    prompt_params = [
        with_max_tokens(params, _max_tokens(context.settings, model, params, prompt)) for prompt in prompts
    ]
    prepared = [
        await model.engine.prepare_prompt(prompt.token_ids, limited, prompt.text, prompt.media)
        for prompt, limited in zip(prompts, prompt_params, strict=True)
    ]
    return PreparedRequest(model, identity, owner, method, params, prepared, prompt_params, prompt_only)


def _max_tokens(
    settings: ServerSettings, model: ServedModel, params: SamplingParams, prompt: TokenizedPrompt
) -> int | None:
    """The server's limit if the request sets none, and what the context has room for if it asks for more. The engine
    refuses a prompt that leaves no room."""
    in_language = params.target_language is not None
    before = model.engine.config.model.decoded_tokens(len(prompt.token_ids), in_language=in_language)
    room = max(model.engine.info.max_model_len - before, 1)
    return settings.answers.unasked(room) if params.max_tokens is None else min(params.max_tokens, room)
