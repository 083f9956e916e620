"""The fields of requests that generate, as msgspec structs. The requests of each API extend these, or become these.

The limits are here only for the OpenAPI document. Values are checked where these numbers come from
(tessera/sampling_params.py, settings.py), with clearer errors than msgspec's.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from tessera import kv_transfer_params as transfer
from tessera import sampling_params as most
from tessera.engine.beam_search import MAX_PENALTY
from tessera.server.openapi import field_schema
from tessera.server.settings import Limits

Salt = Annotated[str, field_schema(maxLength=Limits.salt_chars)]
Priority = Annotated[int, field_schema(minimum=-(2**31), maximum=2**31 - 1)]
RequestId = Annotated[str, field_schema(minLength=1, maxLength=Limits.request_id_chars)]
_Stop = Annotated[str, field_schema(minLength=1, maxLength=most.MAX_STOP_CHARS)]
_Share = Annotated[float, field_schema(minimum=0, maximum=1)]
_Penalty = Annotated[float, field_schema(minimum=-most.MOST_PENALTY, maximum=most.MOST_PENALTY)]
PositiveInt = Annotated[int, field_schema(minimum=1)]
NumLogprobs = Annotated[int, field_schema(minimum=-1)]
_SCHEMA, _TAG = (
    {"anyOf": [{"type": "object"}, {"type": "string", "maxLength": chars}]}
    for chars in (most.MAX_SCHEMA_CHARS, most.MAX_TAG_CHARS)
)
_CHARS = {"type": ["string", "null"], "maxLength": transfer.MAX_CHARS}
_IDS = {"type": "array", "items": {"type": "integer"}, "maxItems": transfer.MAX_BLOCK_IDS}
_KV_TRANSFER_PARAMS = {
    "properties": {
        "do_remote_decode": {"type": ["boolean", "null"]},
        "do_remote_prefill": {"type": ["boolean", "null"]},
        "remote_engine_id": _CHARS,
        "remote_request_id": _CHARS,
        "remote_block_ids": {
            "type": ["array", "null"],
            "items": {"anyOf": [{"type": "integer"}, _IDS]},
            "maxItems": transfer.MAX_BLOCK_IDS,
        },
        "remote_host": {"type": ["string", "null"], "maxLength": transfer.MAX_HOST_CHARS},
        "remote_port": {"type": ["integer", "null"], "minimum": 1, "maximum": transfer.LAST_PORT},
        "tp_size": {"type": ["integer", "null"], "minimum": 1, "maximum": transfer.MAX_PARALLEL},
        "remote_num_tokens": {"type": ["integer", "null"], "minimum": 0, "maximum": transfer.MAX_TOKENS},
        "remote_state_tokens": {
            "type": ["array", "null"],
            "maxItems": transfer.MAX_STATES,
            "items": {"type": "integer", "minimum": 1, "maximum": transfer.MAX_TOKENS},
        },
        "remote_blocks_expiry_time": {"type": ["number", "null"]},
        "transfer_mode": _CHARS,
        "remote_signature": _CHARS,
    },
    "maxProperties": transfer.MAX_FIELDS,
}
_STRUCTURED_OUTPUTS = {
    "properties": {
        "choice": {
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": most.MAX_CHOICE_CHARS},
            "minItems": 1,
            "maxItems": most.MAX_CHOICES,
        },
        "regex": {"type": "string", "minLength": 1, "maxLength": most.MAX_GRAMMAR_CHARS},
        "json": _SCHEMA,
        "json_object": {"type": "boolean"},
        "grammar": {"type": "string", "minLength": 1, "maxLength": most.MAX_GRAMMAR_CHARS},
        "structural_tag": _TAG,
        "disable_any_whitespace": {"type": "boolean"},
        "whitespace_pattern": {"type": "string", "minLength": 1, "maxLength": most.MAX_WHITESPACE_CHARS},
        "disable_additional_properties": {"type": "boolean"},
        "strict": {"type": "boolean"},
    },
    "oneOf": [{"required": [kind]} for kind in most.StructuredOutputsParams.KINDS],
    "additionalProperties": False,
}
_RESPONSE_FORMAT = {
    "properties": {
        "type": {"enum": ["text", "json_object", "json_schema", "structural_tag"]},
        "json_schema": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "schema": {"type": "object"},
                "strict": {"type": ["boolean", "null"]},
            },
        },
    },
    "required": ["type"],
}


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationFields(msgspec.Struct, kw_only=True):
    """The fields that chat and completions have in common. null is the same as leaving a field out. model: if it is
    left out, the first name served."""

    model: str | None = None
    n: Annotated[int, field_schema(minimum=1, maximum=Limits.n)] | None = None
    temperature: Annotated[float, field_schema(minimum=0)] | None = None
    top_p: Annotated[float, field_schema(exclusiveMinimum=0, maximum=1)] | None = None
    top_k: Annotated[int, field_schema(minimum=-1)] | None = None
    min_p: _Share | None = None
    seed: Annotated[int, field_schema(minimum=most.INTEGERS["seed"][0], maximum=most.INTEGERS["seed"][1])] | None = None
    stop: _Stop | Annotated[list[_Stop], field_schema(maxItems=most.MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[int], field_schema(maxItems=most.MAX_STOPS)] | None = None
    ignore_eos: bool | None = None
    max_tokens: Annotated[int, field_schema(minimum=0)] | None = None
    min_tokens: Annotated[int, field_schema(minimum=0)] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    add_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: Salt | None = None
    prompt_cache_key: Salt | None = None
    user: Salt | None = None
    priority: Priority | None = None
    request_id: RequestId | None = None
    return_token_ids: bool | None = None
    logprob_token_ids: Annotated[list[int], field_schema(maxItems=most.MAX_LOGPROB_IDS)] | None = None
    truncate_prompt_tokens: Annotated[int, field_schema(minimum=-1)] | None = None
    truncation_side: Annotated[str, field_schema(enum=[*most.TRUNCATION_SIDES])] | None = None
    target_language: Annotated[str, field_schema(minLength=1, maxLength=most.MAX_LANGUAGE_CHARS)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, field_schema(exclusiveMinimum=0, maximum=most.MOST_REPETITION)] | None = None
    logit_bias: Annotated[dict[str, float], field_schema(maxProperties=most.MAX_BIASES)] | None = None
    allowed_token_ids: Annotated[list[int], field_schema(minItems=1, maxItems=most.MAX_ALLOWED_IDS)] | None = None
    bad_words: Annotated[list[str], field_schema(maxItems=most.MAX_BAD_WORDS)] | None = None
    prompt_logprobs: NumLogprobs | None = None
    spaces_between_special_tokens: bool | None = None
    stream_interval: PositiveInt | None = None
    return_tokens_as_token_ids: bool | None = None
    structured_outputs: Annotated[dict[str, Any], field_schema(**_STRUCTURED_OUTPUTS)] | None = None
    response_format: Annotated[dict[str, Any], field_schema(**_RESPONSE_FORMAT)] | None = None
    vllm_xargs: Annotated[dict[str, Any], field_schema(maxProperties=most.MAX_EXTRA_ARGS)] | None = None
    kv_transfer_params: Annotated[dict[str, Any], field_schema(**_KV_TRANSFER_PARAMS)] | None = None
    use_beam_search: bool | None = None
    length_penalty: Annotated[float, field_schema(minimum=-MAX_PENALTY, maximum=MAX_PENALTY)] | None = None
