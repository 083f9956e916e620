"""Sampling parameters: how the tokens of a request are chosen and when it ends. All fields are validated here.

Names, defaults and checks are vLLM's where it has the same field. Checks that depend on the model (its vocabulary,
--max-logprobs) are made when the request is built (engine/input_processor.py).
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import chain
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import msgspec

from tessera.errors import RequestError
from tessera.kv_transfer_params import KVTransferParams

MAX_N = 16384
MAX_STOPS = 64
MAX_STOP_CHARS = 1024
MAX_BIASES = 1024
MOST_BIAS = 100.0
MAX_ALLOWED_IDS = 2**20
MAX_LOGPROB_IDS = 1024
MAX_BAD_WORDS = 1024
MAX_BAD_WORDS_IDS = 2 * MAX_BAD_WORDS
MAX_BAD_WORD_CHARS = 256
MAX_BAD_WORD_TOKENS = 64
MAX_CHOICES = 1024
MAX_CHOICE_CHARS = 1024
MAX_GRAMMAR_CHARS = 2**14
MAX_SCHEMA_CHARS = 2**18
MAX_TAG_CHARS = 2**20
"""Of a structural tag, as for 256 tools."""
MAX_WHITESPACE_CHARS = 256
TRUNCATION_SIDES = ("left", "right")
MAX_EXTRA_ARGS = 64
MAX_EXTRA_ARG_CHARS = 64
MAX_LANGUAGE_CHARS = 64
MOST_PENALTY = 2.0
MOST_REPETITION = 1e6
GREEDY_BELOW = 1e-5
LOWEST_TEMPERATURE = 1e-2

_INT32 = 2**31 - 1
_SHOWN_BITS = 128


class Bounds(NamedTuple):
    """open_low: low itself is excluded."""

    low: float
    high: float
    open_low: bool = False


INTEGERS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "n": (1, MAX_N),
        "top_k": (0, _INT32),
        "seed": (-(2**63), 2**64 - 1),
        "max_tokens": (1, _INT32),
        "min_tokens": (0, _INT32),
        "stream_interval": (1, _INT32),
        "logprobs": (-1, _INT32),
        "prompt_logprobs": (-1, _INT32),
        "thinking_token_budget": (0, _INT32),
        "truncate_prompt_tokens": (-1, _INT32),
    }
)
"""Fields that are integers or None, with their minimum and maximum."""

NUMBERS: Mapping[str, Bounds] = MappingProxyType(
    {
        "temperature": Bounds(0.0, math.inf),
        "top_p": Bounds(0.0, 1.0, open_low=True),
        "min_p": Bounds(0.0, 1.0),
        "presence_penalty": Bounds(-MOST_PENALTY, MOST_PENALTY),
        "frequency_penalty": Bounds(-MOST_PENALTY, MOST_PENALTY),
        "repetition_penalty": Bounds(1 / MOST_REPETITION, MOST_REPETITION),
    }
)
"""Fields that are finite numbers, with their bounds."""

NOT_SERVED = ("repetition_detection",)


class RequestOutputKind(IntEnum):
    """Which part of the output each RequestOutput of a stream holds."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class StructuredOutputsParams(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What an answer must be: exactly one of the first six fields is set. Fields are vLLM's.

    Raises RequestError for a value that does not hold.
    """

    choice: Sequence[str] | None = None  # one of these texts
    # A text that the regular expression matches as a whole; the syntax is that of Rust's regex crate, without
    # look-around and back-references.
    regex: str | None = None
    # A JSON text that is valid by this JSON Schema (draft 2020-12), given as an object or as its JSON; kept as JSON.
    json: Any = None
    json_object: bool | None = None  # any JSON object
    grammar: str | None = None  # a text of this grammar, in Lark's or GBNF's syntax (EBNF)
    # A text in which tags are followed by what they demand, in xgrammar's format, as an object or as its JSON; kept as
    # JSON.
    structural_tag: Any = None
    disable_any_whitespace: bool | None = None  # JSON without white space
    # A regular expression of the white space that may stand between the parts of JSON; it matches at most once at each
    # place. By default that is a line break with indentation, or at most two spaces.
    whitespace_pattern: str | None = None
    # Whether objects have no properties but those that the schema lists, where it lists some and does not say; None is
    # what the engine's allow_additional_properties says.
    disable_additional_properties: bool | None = None
    # True refuses a oneOf whose schemas may hold together, which is taken as anyOf otherwise; false leaves uniqueItems
    # out where it cannot be enforced, which is refused otherwise.
    strict: bool | None = None

    KINDS: ClassVar[tuple[str, ...]] = ("choice", "regex", "json", "json_object", "grammar", "structural_tag")

    def __post_init__(self) -> None:
        for name in ("json_object", "disable_any_whitespace", "disable_additional_properties", "strict"):
            if not isinstance(getattr(self, name), bool | None):
                raise _wrong_output(f"structured_outputs.{name} must be true or false.", name)
        asked = [name for name in self.KINDS if self._asks(name)]
        if len(asked) != 1:
            given = " and ".join(asked) or "none"
            raise _wrong_output(f"structured_outputs takes exactly one of {', '.join(self.KINDS)}, got {given}.")
        if self.choice is not None:
            msgspec.structs.force_setattr(self, "choice", _choices(self.choice))
        for name in {"regex", "grammar"}.intersection(asked):
            _check_grammar_text(name, getattr(self, name), MAX_GRAMMAR_CHARS)
        for name in {"json", "structural_tag"}.intersection(asked):
            msgspec.structs.force_setattr(self, name, _json_text(name, getattr(self, name)))
        if self.whitespace_pattern is not None:
            _check_grammar_text("whitespace_pattern", self.whitespace_pattern, MAX_WHITESPACE_CHARS)

    def _asks(self, name: str) -> bool:
        """Whether a field is set. json_object may be false, which asks for nothing."""
        value = getattr(self, name)
        return value is not None and not (name == "json_object" and value is False)

    @property
    def kind(self) -> str:
        """The name of the field that is set."""
        return next(name for name in self.KINDS if self._asks(name))


class GrammarSource(msgspec.Struct, frozen=True):
    """What StructuredOutputsParams were translated to by the process that checked them. An engine compiles it as it
    is, so that its own process runs no Python for the size of a schema."""

    # The field of StructuredOutputsParams that was set.
    kind: str
    # What an error of the grammar names, below structured_outputs, such as ".json".
    place: str
    # llguidance's grammars, as JSON. Special tokens of the model are in it by their ids.
    grammars: str


class ReasoningParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """Reasoning that comes before what a grammar demands. begin, end: the texts around it. begun: whether the answer
    begins within it; if not, the model may begin it."""

    begin: str
    end: str
    begun: bool = False


class _OtherFields(msgspec.StructMeta):
    """Says what to use in place of another program's field. Decoding does not come by here."""

    def __call__(self, *args: Any, **fields: Any) -> Any:
        """Raises RequestError for another program's field, TypeError for one that nobody has."""
        try:
            return super().__call__(*args, **fields)
        except TypeError:
            from tessera.config.other_names import other_name

            own = {name: value for name, value in fields.items() if name in self.__struct_fields__}
            for name in fields.keys() - own.keys():
                other = other_name(f"SamplingParams({name})")
                if other is None:
                    raise
                other.checked(name, fields[name], RequestError, stacklevel=2)
            if len(own) == len(fields):
                raise
        return super().__call__(*args, **own)


class SamplingParams(msgspec.Struct, omit_defaults=True, kw_only=True, dict=True, metaclass=_OtherFields):
    """How the tokens of one request are chosen and when it ends.

    Raises RequestError for an invalid value. Fields may be set later; they are checked when a request takes its copy,
    so that setting several one after another may pass through what does not go together.
    """

    n: int = 1  # completions per prompt, 1 to 16384
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0  # of the most likely tokens, those whose probabilities reach this sum
    top_k: int = 0  # 0 or -1 disables it
    min_p: float = 0.0  # of the likeliest token's probability, the share that others must have
    # -2**63 to 2**64 - 1, with -1 the same as None, a random one; the same seed draws the same numbers whatever runs in
    # the same batch.
    seed: int | None = None
    stop: Sequence[str] | str | None = None  # strings that end the completion
    stop_token_ids: Sequence[int] | None = None  # tokens that end it
    ignore_eos: bool = False
    max_tokens: int | None = 16  # None: as many as the context has room for
    min_tokens: int = 0  # the number of tokens before which no such token is sampled
    # The number of alternatives per token; 0 returns the chosen token only, -1 the whole vocabulary, None nothing.
    logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    presence_penalty: float = 0.0  # subtracted once from the logits of tokens in the completion
    frequency_penalty: float = 0.0  # subtracted once per occurrence
    # Divides (multiplies, if negative) the logits of tokens in the prompt or completion.
    repetition_penalty: float = 1.0
    prompt_logprobs: int | None = None  # as logprobs, for the tokens of the prompt
    # The alternatives are these tokens, at most 1024, and the sampled one instead of the most likely ones; sets
    # logprobs to their number.
    logprob_token_ids: Sequence[int] | None = None
    logit_bias: dict[int, float] | None = None  # added to the logits by token id, clamped to -100 to 100
    allowed_token_ids: Sequence[int] | None = None  # only these are sampled
    # Texts that the completion does not write as the tokenizer writes them, with a space in front or without.
    bad_words: Sequence[str] | None = None
    bad_words_ids: Sequence[Sequence[int]] | None = None  # the same as token ids
    spaces_between_special_tokens: bool = True
    kept_special_tokens: Sequence[str] = ()  # texts of special tokens that skip_special_tokens leaves in the text
    stream_interval: int | None = None  # new tokens between two outputs of a stream
    extra_args: dict[str, Any] | None = None  # numbers for features, by name
    structured_outputs: Any = None  # StructuredOutputsParams, or a mapping of its fields
    grammar_source: GrammarSource | None = None  # what they were translated to; None until they are checked
    reasoning: ReasoningParams | None = None  # where the answer that the grammar is for begins; None is at once
    thinking_token_budget: int | None = None  # tokens of reasoning after which the model is made to end it
    repetition_detection: Any = None  # recognised, but not supported yet
    # How many of a prompt's last tokens are kept, or of its first ones if truncation_side is "right"; -1 keeps what
    # leaves room for the answer.
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None  # "left" or "right"
    # Of a model whose encoder reads the prompt: the language in which its answer is, as the tokenizer names it.
    target_language: str | None = None
    # KVTransferParams, or a mapping of its fields: keep the prompt's cache for another engine, or fetch it from one.
    kv_transfer_params: Any = None

    @classmethod
    def from_optional(cls, **fields: Any) -> SamplingParams:
        """SamplingParams in which None stands for a field's default. Raises RequestError."""
        return cls(**{name: value for name, value in fields.items() if value is not None})

    def clone(self) -> SamplingParams:
        """A checked copy that shares nothing that can change. Raises RequestError."""
        return msgspec.structs.replace(self)

    def __post_init__(self) -> None:
        for name, value in normalised(self).items():
            msgspec.structs.force_setattr(self, name, value)
        check(self)
        for name, value in effective(self).items():
            msgspec.structs.force_setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__struct_fields__:
            super().__setattr__(name, value)
            self.__dict__["unchecked"] = True  # no field, so it is neither compared nor sent
            return
        from tessera.config.other_names import other_name

        other = other_name(f"SamplingParams({name})")
        if other is None:
            raise AttributeError(f"SamplingParams has no field {name!r}")
        other.checked(name, value, RequestError, stacklevel=2)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)


def snapshot(params: SamplingParams) -> SamplingParams:
    """A valid copy for a request, which later changes of params do not reach. Checks only what may have changed since
    params were made: fields that were set, and dictionaries. Raises RequestError."""
    if "unchecked" in params.__dict__ or params.logit_bias is not None or params.extra_args is not None:
        return params.clone()
    return copy.copy(params)


def changed(params: SamplingParams, **fields: Any) -> SamplingParams:
    """A copy with other values, which are valid: nothing is checked again, since lists of ids may be very long."""
    copied = copy.copy(params)
    for name, value in fields.items():
        msgspec.structs.force_setattr(copied, name, value)
    return copied


def with_max_tokens(params: SamplingParams, max_tokens: int | None) -> SamplingParams:
    """params itself if it has this limit. Raises RequestError if it is below min_tokens."""
    if max_tokens == params.max_tokens:
        return params
    _check_min_tokens(params.min_tokens, max_tokens)
    return changed(params, max_tokens=max_tokens)


def normalised(params: SamplingParams) -> dict[str, Any]:
    """Fields that callers may write in several forms, in their internal form. Raises RequestError."""
    stop = params.stop
    fields: dict[str, Any] = {
        "stop": (stop,) if isinstance(stop, str) else tuple(stop or ()),
        "stop_token_ids": tuple(params.stop_token_ids or ()),
    }
    if params.kept_special_tokens:
        fields["kept_special_tokens"] = _sequence("kept_special_tokens", params.kept_special_tokens)
    if params.seed == -1:
        fields["seed"] = None
    if params.top_k == -1:
        fields["top_k"] = 0
    if params.logit_bias is not None:
        fields["logit_bias"] = _biases(params.logit_bias)
    if params.allowed_token_ids is not None:
        fields["allowed_token_ids"] = _sequence("allowed_token_ids", params.allowed_token_ids)
    if params.logprob_token_ids is not None:
        fields["logprob_token_ids"] = _sequence("logprob_token_ids", params.logprob_token_ids) or None
    if params.bad_words is not None:
        fields["bad_words"] = tuple(dict.fromkeys(_sequence("bad_words", params.bad_words))) or None
    if params.bad_words_ids is not None:
        words = _sequence("bad_words_ids", params.bad_words_ids)
        fields["bad_words_ids"] = tuple(_sequence("bad_words_ids", word) for word in words) or None
    if params.structured_outputs is not None:
        fields["structured_outputs"] = _structured_outputs(params.structured_outputs)
    if params.kv_transfer_params is not None:
        fields["kv_transfer_params"] = KVTransferParams.from_fields(params.kv_transfer_params)
    return fields


def effective(params: SamplingParams) -> dict[str, Any]:
    """Fields with a different effective value: greedy sampling ignores filters, a tiny temperature is raised to
    LOWEST_TEMPERATURE, logprobs is the number of logprob_token_ids, and extra_args are floats, whatever they were."""
    changed: dict[str, Any] = {}
    if params.temperature < GREEDY_BELOW:
        changed = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    elif params.temperature < LOWEST_TEMPERATURE:
        changed = {"temperature": LOWEST_TEMPERATURE}
    if params.logprob_token_ids is not None:
        changed["logprobs"] = len(params.logprob_token_ids)
    if params.extra_args is not None:
        changed["extra_args"] = {name: float(value) for name, value in params.extra_args.items()}
    return changed


def check(params: SamplingParams) -> None:
    """Raises RequestError with the field's name for an invalid normalised value."""
    _check_bounds(params)
    _check_stops(params)
    _check_words(params)
    check_side(params.truncation_side)
    _check_language(params.target_language)
    if params.allowed_token_ids is not None:
        _check_ids("allowed_token_ids", params.allowed_token_ids, MAX_ALLOWED_IDS, min_ids=1)
    if params.logprob_token_ids is not None:
        _check_ids("logprob_token_ids", params.logprob_token_ids, MAX_LOGPROB_IDS)
    if params.extra_args is not None:
        check_extra_args("extra_args", params.extra_args)
    for name in NOT_SERVED:
        if getattr(params, name) is not None:
            raise RequestError(f"{name} is not supported yet; remove it.", param=name)
    if params.thinking_token_budget is not None and params.reasoning is None:
        raise RequestError(
            "thinking_token_budget is for models with reasoning, and none is known of this one; remove it.",
            param="thinking_token_budget",
        )
    if params.n > 1 and params.kv_transfer_params is not None:
        raise RequestError(f"kv_transfer_params is for one completion, got n={params.n}.", param="n")
    if params.n > 1 and params.temperature < GREEDY_BELOW:
        raise RequestError(f"n must be 1 when using greedy sampling (temperature 0), got {params.n}.", param="n")


def check_side(side: Any) -> None:
    """Raises RequestError for what is no truncation_side."""
    if side is not None and side not in TRUNCATION_SIDES:
        raise RequestError("truncation_side must be left or right.", param="truncation_side")


def _check_bounds(params: SamplingParams) -> None:
    for name, (low, high) in INTEGERS.items():
        value = getattr(params, name)
        if value is not None and not (type(value) is int and low <= value <= high):
            integer(name, value, low, high)
    for name, bounds in NUMBERS.items():
        number(name, getattr(params, name), bounds.low, bounds.high, open_low=bounds.open_low)
    _check_min_tokens(params.min_tokens, params.max_tokens)


def _check_min_tokens(min_tokens: int, max_tokens: int | None) -> None:
    if max_tokens is not None and min_tokens > max_tokens:
        raise RequestError(f"min_tokens must be at most max_tokens={max_tokens}, got {min_tokens}.", param="min_tokens")


def _check_stops(params: SamplingParams) -> None:
    stops: Sequence[Any] = params.stop or ()  # callers may ignore the annotations
    if len(stops) > MAX_STOPS:
        raise RequestError(f"stop takes at most {MAX_STOPS} strings, got {len(stops)}.", param="stop")
    for text in stops:
        if not isinstance(text, str) or not text or len(text) > MAX_STOP_CHARS:
            raise RequestError(f"stop strings must have 1 to {MAX_STOP_CHARS} characters.", param="stop")
    if stops and not params.detokenize:
        raise RequestError("stop strings need detokenize=True.", param="stop")
    _check_ids("stop_token_ids", params.stop_token_ids or (), MAX_STOPS)


def _check_words(params: SamplingParams) -> None:
    words: Sequence[Any] = params.bad_words or ()
    if len(words) > MAX_BAD_WORDS:
        raise RequestError(f"bad_words takes at most {MAX_BAD_WORDS} texts, got {len(words)}.", param="bad_words")
    for word in words:
        if not isinstance(word, str) or not word or len(word) > MAX_BAD_WORD_CHARS:
            raise RequestError(f"bad_words must have 1 to {MAX_BAD_WORD_CHARS} characters each.", param="bad_words")
    lists = params.bad_words_ids or ()
    if len(lists) > MAX_BAD_WORDS_IDS:  # a word may have two tokenizations
        raise RequestError(
            f"bad_words_ids takes at most {MAX_BAD_WORDS_IDS} lists, got {len(lists)}.", param="bad_words_ids"
        )
    for ids in lists:
        if not 1 <= len(ids) <= MAX_BAD_WORD_TOKENS:
            _check_ids("bad_words_ids", ids, MAX_BAD_WORD_TOKENS, min_ids=1)
    _check_each("bad_words_ids", tuple(chain.from_iterable(lists)))


def _check_language(name: Any) -> None:
    if name is not None and not (isinstance(name, str) and 1 <= len(name) <= MAX_LANGUAGE_CHARS):
        raise RequestError(
            f"target_language must be a name of 1 to {MAX_LANGUAGE_CHARS} characters.", param="target_language"
        )


def _structured_outputs(value: Any) -> StructuredOutputsParams:
    if isinstance(value, StructuredOutputsParams):
        return value
    if not isinstance(value, Mapping):
        raise _wrong_output(f"structured_outputs must be an object, got {describe_value(value)}.")
    for name in value:
        if name not in StructuredOutputsParams.__struct_fields__:
            known = ", ".join(StructuredOutputsParams.__struct_fields__)
            raise _wrong_output(f"structured_outputs has an unknown field '{describe_value(name)}'; it has {known}.")
    return StructuredOutputsParams(**value)


def _choices(value: Any) -> tuple[str, ...]:
    value = _sequence("structured_outputs.choice", value)
    if not all(isinstance(text, str) for text in value):
        raise _wrong_output("structured_outputs.choice must be a list of texts.", "choice")
    choices = tuple(dict.fromkeys(value))
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise _wrong_output(f"structured_outputs.choice takes 1 to {MAX_CHOICES} texts, got {len(choices)}.", "choice")
    for text in choices:
        _check_grammar_text("choice", text, MAX_CHOICE_CHARS)
    total = sum(map(len, choices))
    if total > MAX_GRAMMAR_CHARS:
        raise _wrong_output(
            f"structured_outputs.choice has at most {MAX_GRAMMAR_CHARS} characters in all, got {total}.", "choice"
        )
    return choices


def _check_grammar_text(name: str, text: Any, max_chars: int) -> None:
    if not isinstance(text, str) or not 1 <= len(text) <= max_chars:
        said = "have texts" if name == "choice" else "be a text"
        raise _wrong_output(f"structured_outputs.{name} must {said} of 1 to {max_chars} characters.", name)
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise _wrong_output(f"structured_outputs.{name} holds half of a surrogate pair, which no UTF-8 text can.", name)


def _json_text(name: str, schema: Any) -> str:
    """The JSON of a schema or a structural tag, which may be given as JSON."""
    place = f"structured_outputs.{name}"
    try:
        value = msgspec.json.decode(schema) if isinstance(schema, str) else schema
        text = msgspec.json.encode(value).decode()
    except (msgspec.DecodeError, TypeError, ValueError, OverflowError, RecursionError):
        raise _wrong_output(f"{place} is not valid JSON, or nested too deeply.", name) from None
    if not isinstance(value, Mapping) and not (name == "json" and isinstance(value, bool)):
        raise _wrong_output(f"{place} must be an object, got {describe_value(value)}.", name)
    most = MAX_TAG_CHARS if name == "structural_tag" else MAX_SCHEMA_CHARS
    if len(text) > most:
        raise _wrong_output(f"{place} has at most {most} characters of JSON, got {len(text)}.", name)
    return text


def _wrong_output(message: str, name: str = "") -> RequestError:
    return RequestError(message, param=f"structured_outputs.{name}" if name else "structured_outputs")


def _biases(value: Any) -> dict[int, float]:
    """Converts token ids to integers, since JSON has them as strings, and clamps the biases."""
    if not isinstance(value, Mapping):
        raise RequestError("logit_bias must map token ids to numbers.", param="logit_bias")
    if len(value) > MAX_BIASES:
        raise RequestError(f"logit_bias takes at most {MAX_BIASES} tokens, got {len(value)}.", param="logit_bias")
    biases = {}
    for key, bias in value.items():
        text = str(key) if not isinstance(key, bool) else ""
        if not (text.isascii() and text.isdigit() and len(text) <= 10):
            raise RequestError(f"logit_bias has a key that is no token id: {describe_value(key)}.", param="logit_bias")
        number("logit_bias", bias, -math.inf, math.inf)
        biases[int(text)] = float(min(MOST_BIAS, max(-MOST_BIAS, bias)))
    return biases


def check_extra_args(field: str, extra_args: Any) -> None:
    """Raises RequestError for an invalid value. field: the caller's name for it."""
    if not isinstance(extra_args, Mapping) or len(extra_args) > MAX_EXTRA_ARGS:
        raise RequestError(f"{field} must map at most {MAX_EXTRA_ARGS} names to numbers.", param=field)
    for name, value in extra_args.items():
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_EXTRA_ARG_CHARS:
            raise RequestError(f"{field} has names of 1 to {MAX_EXTRA_ARG_CHARS} characters.", param=field)
        if not isinstance(value, bool):
            number(f"{field}.{name}", value, -math.inf, math.inf)


def _sequence(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise RequestError(f"{name} must be a list, got {describe_value(value)}.", param=name)
    return tuple(value)


def _check_ids(name: str, ids: Sequence[Any], max_ids: int, *, min_ids: int = 0) -> None:
    if not min_ids <= len(ids) <= max_ids:
        bounds = f"at most {max_ids}" if len(ids) > max_ids else f"at least {min_ids}"
        raise RequestError(f"{name} takes {bounds} ids, got {len(ids)}.", param=name)
    _check_each(name, ids)


def _check_each(name: str, ids: Sequence[Any]) -> None:
    """Raises RequestError for what is no token id. Fast for many that are."""
    if not ids or (set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) <= _INT32):
        return
    for token in ids:
        integer(name, token, 0, _INT32)


# ---- single values --------------------------------------------------------------------------------------------------


def integer(name: str, value: Any, low: int, high: int) -> None:
    """Raises RequestError unless value is an integer between low and high."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be an integer, got {describe_value(value)}.", param=name)
    if not low <= value <= high:
        bounds = f"at least {low}" + ("" if high == _INT32 else f" and at most {high}")
        raise RequestError(f"{name} must be {bounds}, got {describe_value(value)}.", param=name)


def number(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    """Raises RequestError unless value is a finite number within the bounds, and within those of a float."""
    most = sys.float_info.max
    finite = isinstance(value, int | float) and not isinstance(value, bool) and -most <= value <= most
    if not finite:
        raise RequestError(f"{name} must be a finite number, got {describe_value(value)}.", param=name)
    if value < low or value > high or (open_low and value == low):
        bounds = (
            f"in ({low:g}, {high:g}]"
            if open_low
            else f"at least {low:g}" + ("" if math.isinf(high) else f" and at most {high:g}")
        )
        raise RequestError(f"{name} must be {bounds}, got {describe_value(value)}.", param=name)


def describe_value(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:  # Python writes no more than 4,300 digits
        return f"an integer of {value.bit_length()} bits"
    return str(value)[:40] if isinstance(value, (int, float, str)) else type(value).__name__
