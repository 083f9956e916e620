"""Quotas of API keys: requests and tokens a minute, and requests in progress; what each key has used, for the headers
of its responses and for metrics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tessera.engine.metrics import Metric
from tessera.server.http import error_response
from tessera.server.keys import KEY, ApiKey
from tessera.server.limits import RateLimitError
from tessera.server.rate_bucket import RateBucket
from tessera.server.security import HEALTH_PATHS

_USAGE = "tessera.key_usage"
"""The key under which the ASGI scope of a request holds the KeyUsage of its API key."""


class TokenAllowance(Protocol):
    """The tokens that a request may have."""

    def begin(self, num_prompt_tokens: int) -> None:
        """Takes those of a prompt. Raises RateLimitError."""
        ...

    def generated(self, num_tokens: int) -> None:
        """Takes those of an answer, as they come."""
        ...


class _Unlimited:
    def begin(self, num_prompt_tokens: int) -> None:
        pass

    def generated(self, num_tokens: int) -> None:
        pass


UNLIMITED: TokenAllowance = _Unlimited()


def token_budget(scope: Scope) -> TokenAllowance:
    """That of a request; of a line of a batch, which counts in no quota, and without keys it has no end."""
    budget: TokenAllowance = scope.get(_USAGE, UNLIMITED)
    return budget


class KeyUsage:
    """What one key has used. A TokenAllowance of its requests."""

    def __init__(self, key: ApiKey) -> None:
        self.in_progress = 0
        self.num_requests = 0
        self.num_prompt_tokens = 0
        self.num_generated_tokens = 0
        # By the limit.
        self.num_refused: Counter[str] = Counter()
        self._key = key
        self._buckets: dict[str, RateBucket] = {}
        self._set_buckets()

    def apply(self, key: ApiKey) -> None:
        """The key with what the file says of it now."""
        if key is not self._key:
            self._key = key
            self._set_buckets()

    def _set_buckets(self) -> None:
        quota = self._key.quota
        for what, limit in (("requests", quota.requests_per_minute), ("tokens", quota.tokens_per_minute)):
            if limit is None:
                self._buckets.pop(what, None)
            elif what in self._buckets:
                self._buckets[what].change_limit(limit)
            else:
                self._buckets[what] = RateBucket(limit)

    def enter(self) -> None:
        """Counts a request as in progress; leave() ends that. Raises RateLimitError."""
        most = self._key.quota.concurrent_requests
        if most is not None and self.in_progress >= most:
            self.num_refused["concurrent_requests"] += 1
            raise RateLimitError(f"This API key is at its limit of {most} requests in progress; try again.")
        self._take("requests", 1)
        self.in_progress += 1
        self.num_requests += 1

    def leave(self) -> None:
        self.in_progress -= 1

    def begin(self, num_prompt_tokens: int) -> None:
        self._take("tokens", num_prompt_tokens)
        self.num_prompt_tokens += num_prompt_tokens

    def generated(self, num_tokens: int) -> None:
        self.num_generated_tokens += num_tokens
        if (bucket := self._buckets.get("tokens")) is not None:
            bucket.take(num_tokens)

    def _take(self, what: str, amount: int) -> None:
        bucket = self._buckets.get(what)
        if bucket is None:
            return
        if seconds := bucket.seconds_until(amount):
            self.num_refused[f"{what}_per_minute"] += 1
            limit = f"its limit of {bucket.limit} {what} a minute"
            raise RateLimitError(f"This API key is at {limit}; try again in {math.ceil(seconds)} s.", seconds)
        bucket.take(amount)

    def headers(self) -> Iterator[tuple[bytes, bytes]]:
        """OpenAI's (https://platform.openai.com/docs/guides/rate-limits), of the limits that there are."""
        for what, bucket in self._buckets.items():
            values = {"limit": bucket.limit, "remaining": bucket.remaining, "reset": span(bucket.seconds_until_full)}
            for name, value in values.items():
                yield f"x-ratelimit-{name}-{what}".encode(), str(value).encode()


def span(seconds: float) -> str:
    """As OpenAI writes it: 20ms, 1.5s, 6m0s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


class Quotas:
    """What the keys of a server have used, by their names."""

    def __init__(self) -> None:
        self._usages: dict[str, KeyUsage] = {}

    def usage(self, key: ApiKey) -> KeyUsage:
        usage = self._usages.get(key.name)
        if usage is None:
            usage = self._usages[key.name] = KeyUsage(key)
        usage.apply(key)
        return usage

    def metrics(self, keys: Iterable[ApiKey]) -> Iterator[Metric]:
        """Of these keys, each with a label `key`, so that there are as many as the operator has named."""
        usages = {key.name: self.usage(key) for key in keys}
        values: Mapping[str, tuple[str, str]] = {
            "key_requests": ("num_requests", "Requests of an API key that were let in."),
            "key_prompt_tokens": ("num_prompt_tokens", "Prompt tokens of an API key's requests."),
            "key_generation_tokens": ("num_generated_tokens", "Tokens generated for an API key."),
        }
        for name, (attribute, documentation) in values.items():
            for key, usage in usages.items():
                yield Metric(name, "counter", documentation, getattr(usage, attribute), ("key", key))
        for key, usage in usages.items():
            refused = usage.num_refused.total()
            yield Metric("key_requests_refused", "counter", "Requests over an API key's quota.", refused, ("key", key))
        for key, usage in usages.items():
            documentation = "Requests of an API key in progress."
            yield Metric("key_requests_in_progress", "gauge", documentation, usage.in_progress, ("key", key))


class QuotaLimits:
    """ASGI middleware inside ApiKeys: answers 429 to what a key's quota has no room for, and adds the headers that say
    what is left of it."""

    def __init__(self, app: ASGIApp, quotas: Quotas) -> None:
        self._app = app
        self._quotas = quotas

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = scope.get(KEY)
        if key is None or scope["path"] in HEALTH_PATHS:
            await self._app(scope, receive, send)
            return
        usage = scope[_USAGE] = self._quotas.usage(key)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *usage.headers()]
            await send(message)

        try:
            usage.enter()
        except RateLimitError as error:
            await error_response(error)(scope, receive, send_with_headers)
            return
        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            usage.leave()
