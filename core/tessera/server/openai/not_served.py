"""Fields that are known and not served yet.

A request that uses one is refused by the field's name, never answered as if it had not said it.

Each table gives the values that ask for nothing: null always, and the field's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.errors import RequestError

Values = tuple[Any, ...]

GENERATION: Mapping[str, Values] = {
    "detokenize": (True,),
    "early_stopping": (False,),
    "ebnf": (),
    "grammar": (),
    "guided_choice": ([],),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "json_schema": (),
    "kv_transfer_params": ({},),
    "logits_processors": ([],),
    "mm_processor_kwargs": ({},),
    "regex": (),
    "repetition_detection": (),
    "response_format": ({"type": "text"},),
    "structural_tag": (),
    "structured_outputs": (),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
}

COMPLETIONS: Mapping[str, Values] = {
    "functions": ([],),
    "max_completion_tokens": (),
    "prompt_embeds": (),
    "suffix": ("",),
    "tools": ([],),
    "top_logprobs": (0,),
}

CHAT: Mapping[str, Values] = {
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "include_reasoning": (True,),
    "media_io_kwargs": ({},),
    "modalities": (["text"],),
    # False asks for at most one call, which no call is.
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "prompt_cache_retention": ("in_memory", "in-memory"),
    "reasoning_effort": ("none",),
    "suffix": ("",),
    "verbosity": ("medium",),
    "web_search_options": (),
}

_HINTS: Mapping[str, str] = {"chat_template": "A chat template comes from the server, not from a request"}
_LONGEST_DEFAULT = 64


def check(name: str, raw: bytes, defaults: Values) -> None:
    """Raises RequestError if a field says more than its defaults. raw: its JSON, b"" where it is absent."""
    if raw and not asks_for_nothing(raw, defaults):
        hint = _HINTS.get(name, "This server does not serve the field yet")
        raise RequestError(f"{hint}: leave out {name}.", param=name)


def asks_for_nothing(raw: bytes, defaults: Values) -> bool:
    """Whether JSON bytes are null or one of the defaults; true is not 1."""
    if len(raw) > _LONGEST_DEFAULT:
        return False
    try:
        value = msgspec.json.decode(raw)
    except ValueError:
        # The pass before skipped what it did not build: here a number may be out of range, a text not UTF-8.
        return False
    return value is None or any(_same(value, default) for default in defaults)


def _same(value: Any, default: Any) -> bool:
    return bool(value == default) and isinstance(value, bool) == isinstance(default, bool)
