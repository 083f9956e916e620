"""kv_transfer_params: what a router passes between an engine that computes prompts and one that goes on with them.

Names are those of vLLM's NIXL connector (https://docs.vllm.ai/en/latest/features/nixl_connector_usage/), whose routers
send the whole object on as it is; remote_signature and remote_state_tokens are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tessera.errors import RequestError

RECEIVED = "external_prefix_cache_hits"
"""The counter of prompt tokens that came from other engines, by vLLM's name."""
NAME = "kv_transfer_params"
MAX_FIELDS = 64
MAX_CHARS = 256
MAX_HOST_CHARS = 255
MAX_BLOCK_IDS = 2**17
LAST_PORT = 65_535
MAX_TOKENS = 2**31 - 1
MAX_PARALLEL = 2**16
MAX_STATES = 64


class KVTransferParams(msgspec.Struct, frozen=True, omit_defaults=False, kw_only=True):
    """None is the same as leaving a field out. Raises RequestError for a value that does not hold."""

    # Keep the prompt's cache for another engine: the answer says where it is.
    do_remote_decode: bool | None = None
    # Another engine has the prompt's cache: fetch it.
    do_remote_prefill: bool | None = None
    remote_engine_id: str | None = None
    # The lease.
    remote_request_id: str | None = None
    # By cache group; empty, since blocks of other sizes are found by tokens.
    remote_block_ids: Sequence[int | Sequence[int]] | None = None
    remote_host: str | None = None
    remote_port: int | None = None
    tp_size: int | None = None
    # Tokens of the prompt that are there.
    remote_num_tokens: int | None = None
    # Of a model with states: numbers of these tokens behind which the states are there.
    remote_state_tokens: Sequence[int] | None = None
    # Seconds since 1970: when the lease ends if nobody asks.
    remote_blocks_expiry_time: float | None = None
    # "pull": who wants them fetches them.
    transfer_mode: str | None = None
    # Of the fields above, under the cluster's key, so that a client cannot make an engine connect to somewhere else.
    remote_signature: str | None = None

    def __post_init__(self) -> None:
        for name in ("remote_engine_id", "remote_request_id", "transfer_mode", "remote_signature", "remote_host"):
            most = MAX_HOST_CHARS if name == "remote_host" else MAX_CHARS
            value = getattr(self, name)
            if value is not None and len(value) > most:
                raise _wrong(name, f"must be at most {most} characters long.")
        for name, low, high in (
            ("remote_port", 1, LAST_PORT),
            ("tp_size", 1, MAX_PARALLEL),
            ("remote_num_tokens", 0, MAX_TOKENS),
        ):
            number = getattr(self, name)
            if number is not None and not low <= number <= high:
                raise _wrong(name, f"must be {low} to {high}, got {str(number)[:40]}.")
        states = self.remote_state_tokens or ()
        if len(states) > MAX_STATES or not all(1 <= number <= MAX_TOKENS for number in states):
            raise _wrong("remote_state_tokens", f"must have at most {MAX_STATES} numbers, each 1 to {MAX_TOKENS}.")
        ids = self.remote_block_ids or ()
        if len(ids) + sum(len(group) for group in ids if not isinstance(group, int)) > MAX_BLOCK_IDS:
            raise _wrong("remote_block_ids", f"must have at most {MAX_BLOCK_IDS} ids.")
        if self.do_remote_decode and self.do_remote_prefill:
            raise _wrong("do_remote_prefill", "does not go with do_remote_decode; leave out one of them.")

    @classmethod
    def from_fields(cls, value: Any) -> KVTransferParams | None:
        """What a client sent; None if it asks for nothing. Raises RequestError."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise RequestError(f"{NAME} must be an object.", param=NAME)
        if len(value) > MAX_FIELDS:
            raise RequestError(f"{NAME} must have at most {MAX_FIELDS} fields.", param=NAME)
        try:
            params = msgspec.convert(dict(value), cls)
        except msgspec.ValidationError as error:
            raise RequestError(f"{NAME}: {str(error)[:200]}.", param=NAME) from error
        return params if params.do_remote_decode or params.do_remote_prefill else None

    def as_fields(self) -> dict[str, Any]:
        """Those that are set."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in fields.items() if value is not None}


def _wrong(name: str, problem: str) -> RequestError:
    return RequestError(f"{NAME}.{name} {problem}", param=f"{NAME}.{name}")
