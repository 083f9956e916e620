"""What a model that writes down speech is asked with, and what its answers are made of: the tokens that
generation_config.json of a Whisper names (arXiv:2212.04356, section 2.3), and those of models that write no times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tessera.config.pooler import PoolerConfig
from tessera.errors import ModelError

_MARK = "no_timestamps_token_id"
_BEFORE = 2  # tokens that stand before it: those of silence and of what was said before
_MOST_TOKENS = 4096


@dataclass(frozen=True)
class SpeechConfig:
    """Of one model."""

    # The token that begins a prompt: <|startoftranscript|>.
    start: int
    # The token that ends an answer: <|endoftext|>.
    end: int
    # The token of a prompt whose answer has no times; those behind it are times from 0 s on, `resolution` apart. None:
    # the model writes no times.
    no_timestamps: int | None = None
    # Tokens by the codes of languages, such as "en"; empty: the model knows English alone.
    languages: dict[str, int] = field(default_factory=dict)
    # Tokens by "transcribe" and "translate"; empty if the model does not translate.
    tasks: dict[str, int] = field(default_factory=dict)
    # Tokens that no answer has.
    suppressed: tuple[int, ...] = ()
    # Tokens that no answer begins with.
    suppressed_first: tuple[int, ...] = ()
    # How late the first time of an answer may be, as a number of steps of `resolution`; None: as late as any.
    most_first_time: int | None = None
    # Seconds between two times, and between two positions of the encoder.
    resolution: float = 0.02
    # Seconds that the encoder takes at once.
    window: float = 30.0
    # Tokens of a prompt behind `start`, and those at its end.
    ahead: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    # Whether a prompt names the language of the text, behind that of the speech, and no task.
    names_target: bool = False
    # Whether, by such a name, the model translates to English.
    to_english: bool = False

    @property
    def timed(self) -> bool:
        """Whether the model writes times. Such a one also says which language it hears, and what silence is, and is
        shown what came before."""
        return self.no_timestamps is not None

    @property
    def mark(self) -> int:
        """`no_timestamps` of a model that writes times."""
        assert self.no_timestamps is not None, "it writes no times"
        return self.no_timestamps

    @property
    def no_speech(self) -> int:
        """The token <|nospeech|>, whose probability behind `start` is that of silence."""
        return self.mark - 1

    @property
    def previous(self) -> int:
        """The token <|startofprev|>, which begins what was said before."""
        return self.mark - 2

    @property
    def first_time(self) -> int:
        """The token of 0 s."""
        return self.mark + 1

    @property
    def translates(self) -> bool:
        return "translate" in self.tasks or self.to_english

    def begin(self, language: str, task: str, *, timed: bool) -> list[int]:
        """The prompt, without what came before. language: its code. timed: whether the answer has times."""
        prompt = [self.start, *self.ahead]
        if self.languages:
            written = self.languages["en" if task == "translate" else language] if self.names_target else None
            prompt += [self.languages[language], self.tasks[task] if written is None else written]
        if self.no_timestamps is not None and not timed:
            prompt.append(self.no_timestamps)
        return [*prompt, *self.behind]


def speech_config(checkpoint: Mapping[str, Any], generation: Mapping[str, Any], vocab_size: int) -> SpeechConfig | None:
    """checkpoint: config.json of an encoder-decoder that hears. generation: its generation_config.json. None if that
    does not say how the model is asked. Raises ModelError."""
    if _MARK not in generation:
        return None
    read = _TokenFields(_fields(checkpoint, generation), vocab_size)
    first = read.limit("max_initial_timestamp_index")
    languages, tasks = read.tokens_by_name("lang_to_id"), read.tokens_by_name("task_to_id")
    if languages and "transcribe" not in tasks:
        raise ModelError("task_to_id in generation_config.json must have a token for transcribe.")
    mark = read.token(_MARK)
    if not _BEFORE <= mark < vocab_size - 1:
        raise ModelError(f"{_MARK} in generation_config.json must have others before and behind it.")
    return SpeechConfig(
        start=read.token("decoder_start_token_id"),
        end=read.first("eos_token_id"),
        no_timestamps=mark,
        languages={name.strip("<|>"): token for name, token in languages.items()},
        tasks=tasks,
        suppressed=read.tokens("suppress_tokens"),
        suppressed_first=read.tokens("begin_suppress_tokens"),
        most_first_time=first,
    )


def aligner(checkpoint: Mapping[str, Any], generation: Mapping[str, Any]) -> PoolerConfig | None:
    """What words are timed by; None where the files do not say what heads there are. The arguments are those of
    speech_config(). Raises ModelError."""
    heads = _TokenFields(_fields(checkpoint, generation), 0).heads("alignment_heads")
    return None if not heads else PoolerConfig(("align",), "last", activation="identity", alignment_heads=heads)


def untimed_speech(
    checkpoint: Mapping[str, Any], generation: Mapping[str, Any], vocab_size: int, window: float
) -> SpeechConfig | None:
    """Of a model that writes no times, whose prompt is what transformers' generate() begins with. checkpoint,
    generation: as of speech_config(). window: SpeechConfig.window. None if they do not say how the model is asked.
    Raises ModelError."""
    said = _fields(checkpoint, generation)
    start = next((name for name in ("decoder_start_token_id", "bos_token_id") if said.get(name) is not None), None)
    if start is None or said.get("eos_token_id") is None:
        return None
    read = _TokenFields(said, vocab_size)
    if any(read.tokens(name) for name in ("suppress_tokens", "begin_suppress_tokens")):
        raise ModelError("suppress_tokens in generation_config.json is served of Whisper alone.")
    forced = "forced_bos_token_id"
    return SpeechConfig(
        start=read.token(start),
        end=read.first("eos_token_id"),
        window=window,
        ahead=() if said.get(forced) is None else (read.token(forced),),
    )


def _fields(checkpoint: Mapping[str, Any], generation: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of both; generation_config.json's first."""
    return {**checkpoint, **{name: value for name, value in generation.items() if value is not None}}


class _TokenFields:
    """Reads tokens. Raises ModelError."""

    def __init__(self, values: Mapping[str, Any], vocab_size: int) -> None:
        self._values, self._vocab_size = values, vocab_size

    def checked(self, name: str, value: Any) -> int:
        if type(value) is not int or not 0 <= value < self._vocab_size:
            raise ModelError(f"{name} in generation_config.json must be a token of the model's vocabulary.")
        return value

    def token(self, name: str) -> int:
        return self.checked(name, self._values.get(name))

    def first(self, name: str) -> int:
        """Of a token, or a list of some."""
        value = self._values.get(name)
        return self.checked(name, value[0] if isinstance(value, list) and value else value)

    def tokens(self, name: str) -> tuple[int, ...]:
        values = self._values.get(name) or []
        if not isinstance(values, list) or len(values) > _MOST_TOKENS:
            raise ModelError(f"{name} in generation_config.json must be a list of tokens.")
        return tuple(self.checked(name, value) for value in values if value != -1)

    def tokens_by_name(self, name: str) -> dict[str, int]:
        values = self._values.get(name) or {}
        if not isinstance(values, dict) or len(values) > _MOST_TOKENS:
            raise ModelError(f"{name} in generation_config.json must be tokens by name.")
        return {key: self.checked(name, value) for key, value in values.items()}

    def heads(self, name: str) -> tuple[tuple[int, int], ...]:
        """Without any, all heads of the last half of the layers, as openai-whisper has it for a model that it does not
        know."""
        layers, heads = (self._values.get(f"decoder_{what}") for what in ("layers", "attention_heads"))
        if type(layers) is not int or type(heads) is not int:
            return ()
        pairs = self._values.get(name)
        if pairs is None:
            return tuple((layer, head) for layer in range(layers // 2, layers) for head in range(heads))
        if (
            not isinstance(pairs, list)
            or not 0 < len(pairs) <= layers * heads
            or not all(
                isinstance(pair, list)
                and len(pair) == 2
                and all(type(number) is int for number in pair)
                and 0 <= pair[0] < layers
                and 0 <= pair[1] < heads
                for pair in pairs
            )
        ):
            raise ModelError(f"{name} in generation_config.json must be a list of [layer, head] of the decoder.")
        return tuple(sorted({(layer, head) for layer, head in pairs}))

    def limit(self, name: str) -> int | None:
        value = self._values.get(name)
        if value is not None and (type(value) is not int or value < 0):
            raise ModelError(f"{name} in generation_config.json must be a number.")
        return value
