"""What a caller of LLM may write: the many forms of a prompt, and one of something for all or one for each."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera.errors import RequestError

PromptInput = str | Sequence[int] | Mapping[str, Any]


def unknown_keyword(name: str, function: Callable[..., Any]) -> str:
    """What is said of a keyword that a function does not have, with the nearest that it has."""
    known = [
        p.name for p in inspect.signature(function).parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    near = difflib.get_close_matches(name, known, n=1)
    return f"LLM() got an unexpected keyword argument {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def prompts_of(
    prompts: PromptInput | Sequence[PromptInput] | None,
    prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None,
) -> list[str | Sequence[int]]:
    """Texts and token ids, one a prompt. Raises RequestError for what is neither."""
    if (prompts is None) == (prompt_token_ids is None):
        raise RequestError("Give either prompts or prompt_token_ids.", param="prompts")
    given: Any = prompts if prompts is not None else prompt_token_ids
    one = isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence) or _is_ids(given)
    return [_prompt(prompt) for prompt in ([given] if one else given)]


def _prompt(given: Any) -> str | Sequence[int]:
    if isinstance(given, Mapping):
        known = [name for name in ("prompt_token_ids", "prompt") if given.get(name) is not None]
        if not known:
            raise RequestError('A prompt as a dictionary has "prompt" or "prompt_token_ids".', param="prompts")
        given = given[known[0]]
    if isinstance(given, str) or (isinstance(given, Sequence) and not isinstance(given, bytes)):
        return given
    raise RequestError(f"A prompt is a text or a list of token ids, not {type(given).__name__}.", param="prompts")


def _is_ids(given: Sequence[Any]) -> bool:
    return len(given) > 0 and all(isinstance(one, int) for one in given)


def conversations(messages: Any) -> list[Sequence[Mapping[str, Any]]]:
    """One conversation, or a list of them, as a list."""
    return [messages] if len(messages) > 0 and isinstance(messages[0], Mapping) else list(messages)


def for_each(name: str, given: Any, kind: type, count: int) -> list[Any]:
    """One for all, or one for each of count prompts, as a list. Raises RequestError where they are not as many."""
    many = [given] * count if isinstance(given, kind) else list(given)
    if len(many) != count:
        raise RequestError(f"There are {count} prompts, but {len(many)} {name}.", param=name)
    return many
