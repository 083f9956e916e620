"""What a caller of LLM may pass: the forms of a prompt, and one value for all prompts or one per prompt."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, TypedDict

from tessera.errors import ConfigError, RequestError
from tessera.llm.media import MediaTaken, PromptWithMedia, media_of
from tessera.lora import LoRARequest, lora_args
from tessera.request import NO_ARGS

if TYPE_CHECKING:
    from tessera.config.other_names import OtherName

LoRARequests = LoRARequest | Sequence[LoRARequest | None] | None
PromptType = str | Sequence[int] | Mapping[str, Any]
TextOrMedia = str | Mapping[str, Any]
Conversations = Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]]


class TextPrompt(TypedDict):
    """A prompt as a text."""

    prompt: str


class MediaPrompt(TypedDict):
    """A prompt as a text that has the model's placeholder once for each image, video and sound."""

    prompt: str
    # {"image": an image or a list of them, "video": a video or a list of them, "audio": a sound or a list of them}
    multi_modal_data: Mapping[str, Any]


class TokensPrompt(TypedDict):
    """A prompt as token ids."""

    prompt_token_ids: Sequence[int]


def keywords_of(keywords: Mapping[str, Any], names: Container[str]) -> dict[str, Any]:
    """The keywords of LLM, without other programs' that have no effect. names: those that LLM has. Raises ConfigError
    for one that may not be ignored."""
    others = {name: other for name in keywords if name not in names and (other := _other_keyword(name)) is not None}
    for name, other in others.items():
        other.checked(name, keywords[name], ConfigError, stacklevel=3)
    return {name: value for name, value in keywords.items() if name not in others}


def _other_keyword(name: str) -> OtherName | None:
    from tessera.config.other_names import other_keyword

    return other_keyword(name)


def refuse_others(call: str, keywords: Mapping[str, Any]) -> None:
    """Checks keywords of other programs' methods of this name. Raises RequestError for what is not done anyway, and
    TypeError for a keyword that nobody has."""
    for name, value in keywords.items():
        from tessera.config.other_names import other_name

        other = other_name(f"{call}({name})") or other_name(f"call({name})")
        if other is None:
            raise TypeError(f"LLM.{call}() got an unexpected keyword argument {name!r}")
        other.checked(name, value, RequestError, stacklevel=3)


def prompts_of(
    prompts: PromptType | Sequence[PromptType] | None,
    prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None,
) -> list[str | Sequence[int]]:
    """Texts and token ids, one per prompt. Raises RequestError for anything else."""
    return [_prompt(prompt) for prompt in _listed(prompts, prompt_token_ids)]


def prompts_with_media_of(
    prompts: PromptType | Sequence[PromptType] | None,
    prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None,
    taken: MediaTaken,
) -> list[str | Sequence[int] | PromptWithMedia]:
    """The same, of which some may have images, videos and sounds."""
    return [
        prompt_with_media(prompt, taken) if has_media(prompt) else _prompt(prompt)
        for prompt in _listed(prompts, prompt_token_ids)
    ]


def _listed(
    prompts: PromptType | Sequence[PromptType] | None,
    prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None,
) -> list[Any]:
    if (prompts is None) == (prompt_token_ids is None):
        raise RequestError("Pass either prompts or prompt_token_ids.", param="prompts")
    given: Any = prompts if prompts is not None else prompt_token_ids
    one = isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence) or _is_ids(given)
    return [given] if one else list(given)


def has_media(prompt: Any) -> bool:
    return isinstance(prompt, Mapping) and bool(prompt.get("multi_modal_data"))


def prompt_with_media(prompt: Mapping[str, Any], taken: MediaTaken) -> str | PromptWithMedia:
    files, text = media_of(prompt["multi_modal_data"], taken), prompt.get("prompt")
    if not isinstance(text, str):
        raise RequestError('A prompt with images, videos or sounds needs its text, "prompt".', param="prompts")
    return PromptWithMedia(text, files) if files else text


def _prompt(prompt: Any) -> str | Sequence[int]:
    if has_media(prompt):
        raise RequestError("This call takes no images, videos and sounds; leave out multi_modal_data.", param="prompts")
    if isinstance(prompt, Mapping):
        known = [name for name in ("prompt_token_ids", "prompt") if prompt.get(name) is not None]
        if not known:
            raise RequestError('A prompt that is a dictionary needs "prompt" or "prompt_token_ids".', param="prompts")
        prompt = prompt[known[0]]
    if isinstance(prompt, str) or (isinstance(prompt, Sequence) and not isinstance(prompt, bytes)):
        return prompt
    raise RequestError(f"A prompt must be a string or token ids, not {type(prompt).__name__}.", param="prompts")


def _is_ids(prompt: Sequence[Any]) -> bool:
    return len(prompt) > 0 and all(isinstance(one, int) for one in prompt)


def conversations(messages: Any) -> list[Sequence[Mapping[str, Any]]]:
    """One conversation, or a list of them, as a list."""
    return [messages] if len(messages) > 0 and isinstance(messages[0], Mapping) else list(messages)


def for_each(name: str, values: Any, kind: type | tuple[type, ...], count: int) -> list[Any]:
    """A value for each of count prompts, from one value or a list. Raises RequestError if the numbers differ."""
    many = [values] * count if isinstance(values, kind) else list(values)
    if len(many) != count:
        raise RequestError(f"Got {count} prompts but {len(many)} {name}.", param=name)
    return many


def lora_args_of(lora_request: LoRARequests, count: int, *, enabled: bool) -> list[Mapping[str, str]]:
    """Request.feature_args for each of count prompts. enabled: LoraConfig.enable. Raises RequestError."""
    asked = for_each("lora_request", lora_request, (LoRARequest, NoneType), count)
    if not all(isinstance(one, LoRARequest | None) for one in asked):
        raise RequestError(
            "lora_request must be a LoRARequest, or a list of LoRARequests and None.", param="lora_request"
        )
    if not enabled and any(asked):
        raise RequestError("Adapters are off here: start with enable_lora.", param="lora_request")
    return [NO_ARGS if one is None else lora_args(str(Path(one.lora_path).expanduser().absolute())) for one in asked]
