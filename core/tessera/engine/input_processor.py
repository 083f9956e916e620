"""Turns a prompt into the engine's requests: checks token ids and sampling parameters against the model and its limits,
and makes one request, with its seed, per completion."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from tessera.arrays import Array
from tessera.engine.model_tasks import check_samples
from tessera.engine.pooling import check_pooling
from tessera.engine.truncation import TextLimit, Truncation
from tessera.errors import RequestError
from tessera.media.placed import PlacedMedia
from tessera.media.source_text import source_text
from tessera.pooling_params import PoolingParams, RequestPooling
from tessera.request import NO_ARGS, Request, make_cache_key
from tessera.sampling_params import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS_IDS,
    RequestOutputKind,
    SamplingParams,
    changed,
)
from tessera.scheduler.restrictions import check_first
from tessera.text import StopStrings

if TYPE_CHECKING:
    from tessera.config import EngineConfig, ModelConfig
    from tessera.config.pooler import Padding
    from tessera.config.source_text import SourceTextConfig
    from tessera.text import Vocabulary

NO_SAMPLING = SamplingParams(detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
"""Of requests that pool."""
NO_COLUMNS: Mapping[str, float] = MappingProxyType({})
SEEDS = 1 << 64
UNSEEDED = 1 << 63


@dataclass(frozen=True)
class Prompt:
    """A checked prompt."""

    # None if the client sent ids.
    text: str | None
    # [tokens] int32.
    ids: Array
    # Per completion, limited by the context length.
    max_tokens: int
    # As the engine takes them; see resolved().
    params: SamplingParams
    # The stop strings of params, if it has any.
    stops: StopStrings | None = None
    # In order of their places.
    media: tuple[PlacedMedia, ...] = ()
    # Of a model whose encoder reads the prompt: [tokens] int32 that its decoder begins with.
    begin: Array | None = None

    @property
    def decoded(self) -> Array:
        """[tokens] int32: what the decoder goes on with."""
        return self.ids if self.begin is None else self.begin


@dataclass(frozen=True)
class PooledPrompt:
    """A checked prompt of a request that pools."""

    # None if the client sent ids.
    text: str | None
    # [tokens] int32.
    ids: Array
    params: PoolingParams
    # What the engine is told of it.
    pooling: RequestPooling
    # Values for columns of the input batch.
    columns: Mapping[str, float]
    # In order of their places.
    media: tuple[PlacedMedia, ...] = ()


class InputProcessor:
    """Checks prompts and turns them into requests; sends nothing to the engine. shorten: reduce a max_tokens that does
    not fit in the context instead of refusing it."""

    def __init__(
        self, config: EngineConfig, vocabulary: Vocabulary | None, max_model_len: int, *, shorten: bool = False
    ) -> None:
        self._shorten = shorten
        self._vocabulary = vocabulary
        self._model = config.model
        self._max_model_len = max_model_len
        self._random = np.random.default_rng(config.seed)
        self._next_key = 0
        self._stops: WeakValueDictionary[Sequence[str], StopStrings] = WeakValueDictionary()
        """Those of the requests in progress, which often have the same."""

    def prepare(
        self, ids: Sequence[int], params: SamplingParams, *, text: str | None, media: Sequence[PlacedMedia] = ()
    ) -> Prompt:
        """Checks a prompt against every limit. text: the text that the ids come from, if any. params: without
        bad_words; see with_bad_words(). Raises RequestError. May run on another thread."""
        check_samples(self._model)
        source = self._model.source_text
        if source is not None and source.never:
            banned = [*(params.bad_words_ids or ()), *([token] for token in source.never)]
            params = changed(params, bad_words_ids=tuple(banned))
        if source is not None and not media:
            return self._prepare_source(source, ids, params, text)
        if params.target_language is not None:
            raise RequestError(
                "target_language is for models whose encoder reads the prompt; remove it.", param="target_language"
            )
        self._check_vocabulary(params)
        truncation = Truncation.from_params(
            params.truncate_prompt_tokens,
            params.truncation_side,
            max_model_len=self._max_model_len,
            max_tokens=params.max_tokens or 1,
        )
        checked = self._checked(ids if truncation is None else truncation.apply(ids), self._max_model_len, answers=True)
        _check_whole(checked.size == len(ids), media)
        max_tokens = self._bounded(checked.size, params.max_tokens)
        stops = self._stop_strings(params)
        return Prompt(text, checked, max_tokens, resolved(params, self._model), stops, tuple(media))

    def _prepare_source(
        self, source: SourceTextConfig, ids: Sequence[int], params: SamplingParams, text: str | None
    ) -> Prompt:
        """Of a model whose encoder reads the prompt."""
        self._check_vocabulary(params)
        if params.prompt_logprobs is not None:
            raise RequestError(
                "This model's encoder reads the prompt, so its tokens have no log probabilities; leave out "
                "prompt_logprobs, or one of echo and logprobs.",
                param="prompt_logprobs",
            )
        limit = TextLimit.from_params(params.truncate_prompt_tokens, params.truncation_side, source.length)
        checked = self._checked(limit.apply(ids), source.length)
        begin = np.asarray(self._begin(source, params), np.int32)
        max_tokens = self._bounded(begin.size, params.max_tokens)
        params = resolved(params, self._model)
        return Prompt(text, checked, max_tokens, params, self._stop_strings(params), (source_text(checked),), begin)

    def _begin(self, source: SourceTextConfig, params: SamplingParams) -> tuple[int, ...]:
        """What the decoder begins with."""
        name, param = params.target_language, "target_language"
        if name is None:
            return source.begin
        if self._vocabulary is None:
            raise RequestError(
                "No tokenizer is loaded (skip_tokenizer_init), so target_language cannot be found; remove it.",
                param=param,
            )
        language = self._vocabulary.language_id(name)
        if language is None or language >= self._model.vocab_size:
            usual = self._vocabulary.added_token_texts.get(source.begin[-1]) if len(source.begin) > 1 else None
            example = "" if usual is None else f", such as {usual[:40]!r}"
            raise RequestError(
                f"{name!r} is no language of this model; name one as its tokenizer does{example}.", param=param
            )
        return source.begin_in(language)

    def _check_vocabulary(self, params: SamplingParams) -> None:
        if params.stop and self._vocabulary is None:
            raise RequestError(
                "No tokenizer is loaded (skip_tokenizer_init), so stop strings cannot be found.", param="stop"
            )
        if params.structured_outputs is not None and self._vocabulary is None:
            raise RequestError(
                "No tokenizer is loaded (skip_tokenizer_init), so structured_outputs cannot be followed; remove it.",
                param="structured_outputs",
            )

    def prepare_pooled(
        self, ids: Sequence[int], params: PoolingParams, *, text: str | None, pooled_from: int = 0,
        columns: Mapping[str, float] = NO_COLUMNS, media: Sequence[PlacedMedia] = (),
    ) -> PooledPrompt:  # fmt: skip
        """The same for a request that pools. pooled_from: the position of the first token behind an instruction.
        columns: of the input batch. media: in order of their places. Raises RequestError."""
        pooler = check_pooling(params, self._model)
        limit = TextLimit.from_params(params.truncate_prompt_tokens, params.truncation_side, self._max_model_len)
        kept = limit.apply(ids)
        checked = self._checked(kept if media else _filled(kept, pooler.padding), self._max_model_len)
        _check_whole(len(kept) == len(ids), media)
        pooling = RequestPooling.from_config(pooler, params.task, pooled_from)
        if pooling.start >= checked.size:
            raise RequestError(
                f"The prompt is cut to {checked.size} tokens, and its instruction, which is not pooled, has "
                f"{pooling.start}; raise truncate_prompt_tokens.",
                param="prompt",
            )
        return PooledPrompt(text, checked, params, pooling, columns, tuple(media))

    def pooling_request(
        self, prompt: PooledPrompt, request_id: str, *, arrival: float, priority: int, cache_salt: str,
        tenant: str = "", feature_args: Mapping[str, str] = NO_ARGS,
    ) -> Request:  # fmt: skip
        """The request of a prompt that is pooled."""
        self._next_key += 1
        return Request(
            key=self._next_key - 1,
            request_id=request_id,
            prompt=prompt.ids,
            params=NO_SAMPLING,
            max_tokens=0,
            seed=0,
            arrival=arrival,
            priority=priority,
            cache_key=make_cache_key(cache_salt, feature_args),
            columns=dict(prompt.columns),
            feature_args=dict(feature_args),
            tenant=tenant or cache_salt,
            pooling=prompt.pooling,
            media=prompt.media,
        )

    def requests(
        self, prompt: Prompt, request_id: str, *, arrival: float, priority: int, cache_salt: str, tenant: str = "",
        feature_args: Mapping[str, str] = NO_ARGS,
    ) -> list[Request]:  # fmt: skip
        """One request for each of the params.n completions. They share the prompt of the first one, and only the first
        one computes prompt_logprobs. Without a tenant, cache_salt stands for it."""
        first, params = self._next_key, prompt.params
        cache_key = make_cache_key(cache_salt, feature_args)
        others = params if params.prompt_logprobs is None else changed(params, prompt_logprobs=None)
        self._next_key += params.n
        return [
            Request(
                key=first + index,
                request_id=request_id if params.n == 1 else f"{index}_{request_id}",
                prompt=prompt.decoded,
                params=others if index else params,
                max_tokens=prompt.max_tokens,
                seed=self._seed(params, index),
                arrival=arrival,
                priority=priority,
                cache_key=cache_key,
                leader=first if index else -1,
                columns={name: float(value) for name, value in (params.extra_args or {}).items()},
                feature_args=dict(feature_args),
                tenant=tenant or cache_salt,
                media=prompt.media,
            )
            for index in range(params.n)
        ]

    def _checked(self, ids: Sequence[int], max_tokens: int, *, answers: bool = False) -> Array:
        """answers: there must be room for a token behind them."""
        if len(ids) == 0:
            raise RequestError("The prompt is empty: it must have at least one token.", param="prompt")
        if len(ids) > max_tokens - answers:
            raise self._over_context(len(ids), 1) if answers else _too_long(len(ids), max_tokens)
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

    def _stop_strings(self, params: SamplingParams) -> StopStrings | None:
        if not params.stop or not params.detokenize:
            return None
        stops = tuple(params.stop)
        found = self._stops.get(stops)
        if found is None:
            found = self._stops[stops] = StopStrings(stops)
        return found

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


def _too_long(num_tokens: int, max_tokens: int) -> RequestError:
    return RequestError(
        f"This model takes texts of up to {max_tokens} tokens, and this one has {num_tokens}; shorten it, or set "
        "truncate_prompt_tokens to -1.",
        param="prompt",
        code="context_length_exceeded",
    )


def _filled(ids: Sequence[int], padding: Padding | None) -> Sequence[int]:
    """A text that is too long or empty stays as it is, to be refused."""
    if padding is None or not len(ids):
        return ids
    return [*ids, *[padding.token] * (padding.length - len(ids))]


def _check_whole(whole: bool, media: Sequence[PlacedMedia]) -> None:
    """whole: whether all tokens of the prompt are kept. Raises RequestError where it has images and is cut."""
    if media and not whole:
        raise RequestError("A prompt with images cannot be truncated; shorten it.", param="truncate_prompt_tokens")


def no_tokenizer() -> RequestError:
    return RequestError("No tokenizer is loaded (skip_tokenizer_init): give the prompt as token ids.", param="prompt")


def _not_ids() -> RequestError:
    return RequestError("The prompt must be a string or a list of token ids.", param="prompt")


# ---- sampling parameters against one model ---------------------------------------------------------------------------


def resolved(params: SamplingParams, model: ModelConfig) -> SamplingParams:
    """The parameters as an engine takes them: token ids checked, of which some may be drawn, and -1 log probabilities
    replaced by the size of the vocabulary. Returns params itself if nothing changes. Raises RequestError."""
    vocab = model.vocab_size
    _check_ids("stop_token_ids", params.stop_token_ids or (), vocab)
    _check_ids("logit_bias", params.logit_bias or (), vocab)
    _check_ids("allowed_token_ids", params.allowed_token_ids or (), vocab)
    _check_ids("logprob_token_ids", params.logprob_token_ids or (), vocab)
    for word in params.bad_words_ids or ():
        _check_ids("bad_words_ids", word, vocab)
    check_first(params, model.eos_token_ids, vocab)
    fields: dict[str, Any] = {}
    for name in ("logprobs", "prompt_logprobs"):
        num_logprobs = getattr(params, name)
        if num_logprobs is not None and not (name == "logprobs" and params.logprob_token_ids):
            check_logprobs(name, num_logprobs, model)
        if num_logprobs == -1:
            fields[name] = vocab
    return changed(params, **fields) if fields else params


def check_logprobs(name: str, num_logprobs: int, model: ModelConfig) -> None:
    """Raises RequestError if `num_logprobs` exceeds --max-logprobs; -1 asks for the whole vocabulary."""
    limit = model.vocab_size if model.max_logprobs == -1 else model.max_logprobs
    wanted = model.vocab_size if num_logprobs == -1 else num_logprobs
    if wanted > limit:
        raise RequestError(
            f"{name} asks for {wanted} log probabilities per token, but at most {limit} are allowed (--max-logprobs).",
            param=name,
        )


def _check_ids(name: str, ids: Collection[int], vocab: int) -> None:
    if not ids or (min(ids) >= 0 and max(ids) < vocab):
        return
    for token in ids:
        if not 0 <= token < vocab:
            raise RequestError(
                f"{name}: token id {token} is out of the vocabulary: ids are 0 to {vocab - 1}.", param=name
            )


_LINE = "\n"
_LEADS = ("", " ", _LINE)
"""What may precede a word, each of which may give it tokens of its own: nothing, where some tokenizers add a space; a
space; and a line break, which no tokenizer joins to a word."""


def bad_word_texts(params: SamplingParams) -> list[str]:
    """The texts to tokenize, without special tokens, for with_bad_words(). A word's own leading spaces make no
    difference, unless it has nothing else."""
    words = [word.lstrip(" ") or word for word in params.bad_words or ()]
    return [_LINE, *(lead + word for word in words for lead in _LEADS)]


def with_bad_words(params: SamplingParams, tokens: Sequence[Sequence[int]]) -> SamplingParams:
    """params with bad_words replaced by bad_words_ids. tokens: the token ids of each of bad_word_texts(). Raises
    RequestError."""
    line, *forms = map(list, tokens)
    of_each = zip(forms[::3], forms[1::3], forms[2::3], strict=True)
    words = [ids for of_one in of_each for ids in _forms(line, *of_one)]
    words += map(list, params.bad_words_ids or ())
    if len(words) > MAX_BAD_WORDS_IDS:
        raise RequestError(
            f"bad_words become at most {MAX_BAD_WORDS_IDS} lists of token ids, these {len(words)}; give fewer of them.",
            param="bad_words",
        )
    return changed(params, bad_words=None, bad_words_ids=tuple(words))


def _forms(line: list[int], first: list[int], spaced: list[int], broken: list[int]) -> list[list[int]]:
    """The token ids of a word without a space in front and with one, shortest first. One that ends in another is left
    out: the other forbids it. line: those of a line break, which `broken` begins with."""
    forms = [first, spaced]
    if broken[: len(line)] == line:
        forms.append(broken[len(line) :])
    shortest: list[list[int]] = []
    for form in sorted(forms, key=len):
        if any(form[-len(other) :] == other for other in shortest):
            continue
        if not 1 <= len(form) <= MAX_BAD_WORD_TOKENS:
            raise RequestError(
                f"Each of bad_words must have 1 to {MAX_BAD_WORD_TOKENS} tokens, got {len(form)}.", param="bad_words"
            )
        shortest.append(form)
    return shortest


def no_bad_words() -> RequestError:
    return RequestError(
        "No tokenizer is loaded (skip_tokenizer_init), so bad_words cannot be found; give bad_words_ids.",
        param="bad_words",
    )
