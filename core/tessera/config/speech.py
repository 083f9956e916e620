"""What a model that writes down speech is asked with, and what its answers are made of: the tokens that
generation_config.json of a Whisper names (arXiv:2212.04356, section 2.3)."""

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
    # The token of a prompt whose answer has no times; those behind it are times from 0 s on, `resolution` apart.
    no_timestamps: int
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

    @property
    def no_speech(self) -> int:
        """The token <|nospeech|>, whose probability behind `start` is that of silence."""
        return self.no_timestamps - 1

    @property
    def previous(self) -> int:
        """The token <|startofprev|>, which begins what was said before."""
        return self.no_timestamps - 2

    @property
    def first_time(self) -> int:
        """The token of 0 s."""
        return self.no_timestamps + 1

    @property
    def translates(self) -> bool:
        return "translate" in self.tasks


def speech_config(checkpoint: Mapping[str, Any], generation: Mapping[str, Any], vocab_size: int) -> SpeechConfig | None:
    """checkpoint: config.json of an encoder-decoder that hears. generation: its generation_config.json. None if that
    does not say how the model is asked. Raises ModelError."""
    if _MARK not in generation:
        return None
    read = _TokenFields({**checkpoint, **generation}, vocab_size)
    first = read.limit("max_initial_timestamp_index")
    end = generation.get("eos_token_id", checkpoint.get("eos_token_id"))
    languages, tasks = read.tokens_by_name("lang_to_id"), read.tokens_by_name("task_to_id")
    if languages and "transcribe" not in tasks:
        raise ModelError("task_to_id in generation_config.json must have a token for transcribe.")
    mark = read.token(_MARK)
    if not _BEFORE <= mark < vocab_size - 1:
        raise ModelError(f"{_MARK} in generation_config.json must have others before and behind it.")
    return SpeechConfig(
        start=read.token("decoder_start_token_id"),
        end=read.checked("eos_token_id", end[0] if isinstance(end, list) and end else end),
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
    heads = _TokenFields({**checkpoint, **generation}, 0).heads("alignment_heads")
    return None if not heads else PoolerConfig(("align",), "last", activation="identity", alignment_heads=heads)


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
