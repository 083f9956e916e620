"""What a caller of LLM may pass: the forms of a prompt, and one value for all prompts or one per prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from tessera.errors import RequestError
from tessera.lora import LoRARequest

Adapters = LoRARequest | Sequence[LoRARequest | None] | None
PromptInput = str | Sequence[int] | Mapping[str, Any]


def prompts_of(
    prompts: PromptInput | Sequence[PromptInput] | None,
    prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None,
) -> list[str | Sequence[int]]:
    """Texts and token ids, one per prompt. Raises RequestError for anything else."""
    if (prompts is None) == (prompt_token_ids is None):
        raise RequestError("Pass either prompts or prompt_token_ids.", param="prompts")
    given: Any = prompts if prompts is not None else prompt_token_ids
    one = isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence) or _is_ids(given)
    return [_prompt(prompt) for prompt in ([given] if one else given)]


def _prompt(given: Any) -> str | Sequence[int]:
    if isinstance(given, Mapping):
        known = [name for name in ("prompt_token_ids", "prompt") if given.get(name) is not None]
        if not known:
            raise RequestError('A prompt that is a dictionary needs "prompt" or "prompt_token_ids".', param="prompts")
        given = given[known[0]]
    if isinstance(given, str) or (isinstance(given, Sequence) and not isinstance(given, bytes)):
        return given
    raise RequestError(f"A prompt must be a string or token ids, not {type(given).__name__}.", param="prompts")


def _is_ids(given: Sequence[Any]) -> bool:
    return len(given) > 0 and all(isinstance(one, int) for one in given)


def conversations(messages: Any) -> list[Sequence[Mapping[str, Any]]]:
    """One conversation, or a list of them, as a list."""
    return [messages] if len(messages) > 0 and isinstance(messages[0], Mapping) else list(messages)


def for_each(name: str, given: Any, kind: type | tuple[type, ...], count: int) -> list[Any]:
    """A value for each of count prompts, from one value or a list. Raises RequestError if the numbers differ."""
    many = [given] * count if isinstance(given, kind) else list(given)
    if len(many) != count:
        raise RequestError(f"Got {count} prompts but {len(many)} {name}.", param=name)
    return many


def adapters_of(lora_request: Adapters, count: int) -> list[str]:
    """The folder of the adapter of each of count prompts; "" for none. Raises RequestError."""
    asked = for_each("lora_request", lora_request, (LoRARequest, NoneType), count)
    if not all(isinstance(one, LoRARequest | None) for one in asked):
        raise RequestError(
            "lora_request must be a LoRARequest, or a list of LoRARequests and None.", param="lora_request"
        )
    return ["" if one is None else str(Path(one.lora_path).expanduser().absolute()) for one in asked]
