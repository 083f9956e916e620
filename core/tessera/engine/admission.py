"""From a prompt to the engine's requests: token ids, the limits they must hold, n answers with their seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tessera.arrays import Array
from tessera.engine.vocabulary import resolved
from tessera.errors import RequestError
from tessera.request import Request
from tessera.sampling_params import SamplingParams

if TYPE_CHECKING:
    from tessera.config import EngineConfig
    from tessera.text import Tokenizer

SEEDS = 1 << 64
UNSEEDED = 1 << 63


@dataclass(frozen=True)
class Prompt:
    """A prompt that holds its limits. text: None where it came as ids. ids: [tokens] int32. max_tokens: of each answer,
    bounded by the context. params: as the engine takes them."""

    text: str | None
    ids: Array
    max_tokens: int
    params: SamplingParams


class Admission:
    """Checks prompts and makes requests of them; nothing is told to the engine yet. shorten: a max_tokens that does not
    fit the context is cut to what does, rather than refused."""

    def __init__(
        self, config: EngineConfig, tokenizer: Tokenizer | None, max_model_len: int, *, shorten: bool = False
    ) -> None:
        self._shorten = shorten
        self._tokenizer = tokenizer
        self._model = config.model
        self._max_model_len = max_model_len
        self._random = np.random.default_rng(config.seed)
        self._next_key = 0

    def prepare(self, prompt: str | Sequence[int], params: SamplingParams, *, add_special_tokens: bool) -> Prompt:
        """Raises RequestError. Changes nothing, so it may run on another thread."""
        if params.stop and self._tokenizer is None:
            raise RequestError(
                "There is no tokenizer (skip_tokenizer_init), so stop strings cannot be found.", param="stop"
            )
        ids = self._checked(self._encode(prompt, add_special_tokens) if isinstance(prompt, str) else prompt)
        text = prompt if isinstance(prompt, str) else None
        max_tokens = self._bounded(ids.size, params.max_tokens)
        return Prompt(text, ids, max_tokens, resolved(params, self._model, self._tokenizer))

    def requests(
        self, prompt: Prompt, request_id: str, *, arrival: float, priority: int, cache_salt: str, tenant: str = ""
    ) -> list[Request]:
        """One request for each of params.n answers; the others share the first one's prompt, which is scored once. Who
        names no tenant is known by the salt."""
        first, params = self._next_key, prompt.params
        others = params if params.prompt_logprobs is None else msgspec.structs.replace(params, prompt_logprobs=None)
        self._next_key += params.n
        return [
            Request(
                key=first + index,
                request_id=request_id if params.n == 1 else f"{index}_{request_id}",
                prompt=prompt.ids,
                params=others if index else params,
                max_tokens=prompt.max_tokens,
                seed=self._seed(params, index),
                arrival=arrival,
                priority=priority,
                salt=cache_salt,
                leader=first if index else -1,
                columns={name: float(value) for name, value in (params.extra_args or {}).items()},
                tenant=tenant or cache_salt,
            )
            for index in range(params.n)
        ]

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if self._tokenizer is None:
            raise RequestError(
                "There is no tokenizer (skip_tokenizer_init): give the prompt as token ids.", param="prompt"
            )
        return self._tokenizer.encode(text, add_special_tokens, max_tokens=self._max_model_len)

    def _checked(self, ids: Sequence[int]) -> Array:
        if len(ids) == 0:
            raise RequestError("The prompt is empty: it must have at least one token.", param="prompt")
        if len(ids) >= self._max_model_len:
            raise self._over_context(len(ids), 1)
        try:
            array = np.asarray(ids)
        except (ValueError, OverflowError) as error:
            raise _not_ids() from error
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise _not_ids()
        outside = array[(array < 0) | (array >= self._model.vocab_size)]
        if outside.size:
            raise RequestError(
                f"Token id {outside[0]} is out of the vocabulary: ids are 0 to {self._model.vocab_size - 1}.",
                param="prompt",
            )
        return array.astype(np.int32)

    def _bounded(self, num_prompt_tokens: int, max_tokens: int | None) -> int:
        room = self._max_model_len - num_prompt_tokens
        if max_tokens is None or (max_tokens > room and self._shorten):
            return room
        if max_tokens > room:
            raise self._over_context(num_prompt_tokens, max_tokens)
        return max_tokens

    def _over_context(self, num_prompt_tokens: int, max_tokens: int) -> RequestError:
        return RequestError(
            f"This model's maximum context length is {self._max_model_len} tokens. However, you requested "
            f"{num_prompt_tokens + max_tokens} tokens ({num_prompt_tokens} in the prompt, {max_tokens} for the "
            "completion). Please reduce the length of the prompt or of the completion.",
            param="prompt",
            code="context_length_exceeded",
        )

    def _seed(self, params: SamplingParams, index: int) -> int:
        if params.seed is None:
            return int(self._random.integers(UNSEEDED))
        return (params.seed + index) % SEEDS


def _not_ids() -> RequestError:
    return RequestError("The prompt must be a text or a list of token ids.", param="prompt")
