"""kv_transfer_params as routers send them: vLLM's fields, each with a limit."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from tessera.errors import RequestError
from tessera.kv_transfer_params import KVTransferParams
from tessera.sampling_params import SamplingParams


def test_what_a_router_of_vllm_sends_first() -> None:
    fields = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    params = SamplingParams(kv_transfer_params=fields).kv_transfer_params
    assert params == KVTransferParams(do_remote_decode=True, do_remote_prefill=False)
    assert params.as_fields() == {"do_remote_decode": True, "do_remote_prefill": False}


def test_what_an_engine_answers_comes_back_as_it_is() -> None:
    params = KVTransferParams(
        do_remote_prefill=True, remote_engine_id="e", remote_block_ids=(), remote_host="::1", remote_port=1,
        remote_request_id="r", remote_num_tokens=0, remote_blocks_expiry_time=1.5, remote_signature="s", tp_size=1,
    )  # fmt: skip
    sent = msgspec.json.decode(msgspec.json.encode(params.as_fields()))
    again = KVTransferParams.from_fields({**sent, "of_a_later_version": [1]})
    assert again is not None
    assert again.as_fields() == {**params.as_fields(), "remote_block_ids": []}
    crossed = msgspec.msgpack.decode(
        msgspec.msgpack.encode(SamplingParams(kv_transfer_params=again)), type=SamplingParams
    )
    assert crossed.kv_transfer_params == again


@pytest.mark.parametrize("value", [{}, {"do_remote_decode": False}, {"remote_host": "x"}])
def test_what_asks_for_nothing(value: dict[str, Any]) -> None:
    assert SamplingParams(kv_transfer_params=value).kv_transfer_params is None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1], "kv_transfer_params must be an object"),
        ({str(number): 1 for number in range(65)}, "must have at most 64 fields"),
        ({"do_remote_decode": 1}, "kv_transfer_params: Expected"),
        ({"remote_port": 0}, "kv_transfer_params.remote_port must be 1 to 65535, got 0"),
        ({"remote_port": 10**300}, "kv_transfer_params"),
        ({"remote_state_tokens": [16, 0]}, "kv_transfer_params.remote_state_tokens must have at most 64 numbers"),
        ({"remote_state_tokens": [16] * 65}, "kv_transfer_params.remote_state_tokens must have at most 64 numbers"),
        ({"remote_num_tokens": -1}, "kv_transfer_params.remote_num_tokens must be 0 to"),
        ({"tp_size": 0}, "kv_transfer_params.tp_size must be 1 to"),
        ({"remote_engine_id": "e" * 257}, "kv_transfer_params.remote_engine_id must be at most 256 characters"),
        ({"remote_host": "h" * 256}, "kv_transfer_params.remote_host must be at most 255 characters"),
        ({"remote_block_ids": [[0] * 2**17]}, "kv_transfer_params.remote_block_ids must have at most 131072 ids"),
        ({"remote_block_ids": ["a"]}, "kv_transfer_params: Expected"),
        ({"do_remote_decode": True, "do_remote_prefill": True}, "do_remote_prefill does not go with do_remote_decode"),
    ],
)
def test_each_field_has_a_limit(value: Any, said: str) -> None:
    with pytest.raises(RequestError, match=re.escape(said)) as error:
        SamplingParams(kv_transfer_params=value)
    assert "\n" not in error.value.message
    assert (error.value.param or "").startswith("kv_transfer_params")


def test_one_completion_at_a_time() -> None:
    with pytest.raises(RequestError, match="kv_transfer_params is for one completion, got n=2"):
        SamplingParams(n=2, kv_transfer_params={"do_remote_decode": True})
