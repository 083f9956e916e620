"""The prompts of a completion: texts and lists of token ids, which become token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tessera.engine.truncation import Truncation
from tessera.errors import RequestError
from tessera.server.context import ServerContext
from tessera.server.generation.prompt import TokenizedPrompt, longest_prompt
from tessera.server.prompt_field import PromptField
from tessera.server.served_model import ServedModel
from tessera.server.settings import Limits


def prompt_field(limits: Limits) -> PromptField:
    return PromptField("prompt", limits.prompts, "prompts")


async def read_prompts(
    context: ServerContext,
    model: ServedModel,
    raw: msgspec.Raw,
    add_special_tokens: bool,
    *,
    truncation: Truncation | None = None,
    wrap: Callable[[str], str] | None = None,
    client: str = "",
) -> list[TokenizedPrompt]:
    """Decodes a prompt field and tokenizes its texts. raw: its JSON. client: see client_of(). wrap: makes the prompt of
    a text. Raises RequestError, TextWorkerError."""
    limits = context.settings.limits
    texts, ids, _ = await prompt_field(limits).read(raw, context.assembly)
    if wrap is not None and ids:
        raise RequestError("suffix needs a prompt that is a text.", param="suffix")
    prompts = [TokenizedPrompt(prompt) for prompt in ids]
    if texts:
        texts = texts if wrap is None else [wrap(text) for text in texts]
        prompts = await tokenize(limits, model, texts, add_special_tokens, whole=truncation is None, client=client)
    return prompts if truncation is None else [_truncated(prompt, truncation) for prompt in prompts]


def _truncated(prompt: TokenizedPrompt, truncation: Truncation) -> TokenizedPrompt:
    kept = truncation.apply(prompt.token_ids)
    return prompt if len(kept) == len(prompt.token_ids) else TokenizedPrompt(kept)


async def tokenize(
    limits: Limits,
    model: ServedModel,
    texts: Sequence[str],
    add_special_tokens: bool,
    *,
    whole: bool = True,
    client: str = "",
) -> list[TokenizedPrompt]:
    """whole: a text has to fit in what the model reads. Raises RequestError, TextWorkerError."""
    workers = model.text
    if workers is None:
        raise RequestError("This server has no tokenizer: send the prompt as token ids.", param="prompt")
    most = limits.prompt_chars
    if any(len(text) > most for text in texts):
        raise RequestError(f"A prompt must be at most {most} characters long.", param="prompt")
    max_tokens = longest_prompt(model) if whole else None
    tokens = await workers.encode(texts, add_special_tokens, max_tokens=max_tokens, owner=client)
    return [TokenizedPrompt(ids, text) for ids, text in zip(tokens, texts, strict=True)]
