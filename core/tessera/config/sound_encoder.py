"""How much of a sound the encoder of an encoder-decoder takes at once, and how many positions it makes of it, where
that number varies with the sound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from tessera.errors import ModelError

SAMPLE_RATE = 16_000
"""Hz, of the sounds of all these models."""
_HALF_A_MINUTE = 30 * SAMPLE_RATE


@dataclass(frozen=True)
class Convolution:
    """A step that makes fewer positions of many, over a window that moves."""

    # Positions that it sees at once.
    width: int
    # Positions between two windows.
    stride: int
    # Zeros before and behind all, together.
    padding: int = 0

    def length(self, number: int) -> int:
        """How many it makes of so many."""
        return max(0, (number + self.padding - self.width) // self.stride + 1)

    def least(self, number: int) -> int:
        """The fewest of which it makes so many."""
        return max(1, (number - 1) * self.stride + self.width - self.padding)


@dataclass(frozen=True)
class SoundEncoder:
    """Of one model."""

    # What it takes at once.
    most_samples: int
    # From samples to its positions.
    steps: tuple[Convolution, ...]
    # Sounds are filled with zeros to a multiple of so many samples, which a mask then says; 1: they are not.
    multiple: int = 1

    def positions(self, samples: int) -> int:
        for step in self.steps:
            samples = step.length(samples)
        return samples

    def samples(self, positions: int) -> int:
        """The fewest that make so many positions."""
        for step in reversed(self.steps):
            positions = step.least(positions)
        return positions

    def within(self, positions: int) -> SoundEncoder:
        """The same with no more positions."""
        return replace(self, most_samples=min(self.most_samples, self.samples(positions + 1) - 1))


def sound_encoder(config: Mapping[str, Any]) -> SoundEncoder | None:
    """config: of config.json. None of a type whose encoder always makes as many positions, or that has none. Raises
    ModelError."""
    read = _READERS.get(str(config["architectures"][0]))
    return None if read is None else read(config)


def _moonshine(config: Mapping[str, Any]) -> SoundEncoder:
    """arXiv:2410.15608, section 3: sounds of up to 30 seconds were what it learned of."""
    return SoundEncoder(_HALF_A_MINUTE, (Convolution(127, 64), Convolution(7, 3), Convolution(3, 2)))


def _moonshine_streaming(config: Mapping[str, Any]) -> SoundEncoder:
    encoder = _table(config, "encoder_config")
    rate, milliseconds = encoder.get("sample_rate", SAMPLE_RATE), encoder.get("frame_ms", 5.0)
    if rate != SAMPLE_RATE or isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        raise ModelError(f"encoder_config in config.json must have a sample_rate of {SAMPLE_RATE} and a frame_ms.")
    frame = round(SAMPLE_RATE * milliseconds / 1000)
    if not 1 <= frame <= SAMPLE_RATE:
        raise ModelError("encoder_config.frame_ms in config.json is not a number of up to 1000.")
    rows, causal = config.get("max_position_embeddings", 4096), Convolution(5, 2, 4)
    if type(rows) is not int or rows < 1:
        raise ModelError("max_position_embeddings in config.json is not a number from 1 on.")
    return SoundEncoder(_HALF_A_MINUTE, (Convolution(frame, frame), causal, causal), multiple=frame).within(rows)


def _speech_to_text(config: Mapping[str, Any]) -> SoundEncoder:
    """arXiv:2010.05171: spectra of 25 ms, each 10 ms."""
    widths = config.get("conv_kernel_sizes", [5, 5])
    convolutions = [Convolution(width, 2, width // 2 * 2) for width in _numbers(widths, "conv_kernel_sizes")]
    return SoundEncoder(_HALF_A_MINUTE, (_SPECTRA, *convolutions))


def _speecht5(config: Mapping[str, Any]) -> SoundEncoder:
    """arXiv:2110.07205: the convolutions of wav2vec 2.0 (arXiv:2006.11477)."""
    widths = _numbers(config.get("conv_kernel", [10, 3, 3, 3, 3, 2, 2]), "conv_kernel")
    strides = _numbers(config.get("conv_stride", [5, 2, 2, 2, 2, 2, 2]), "conv_stride")
    if len(widths) != len(strides):
        raise ModelError("conv_kernel and conv_stride in config.json must have equally many numbers.")
    steps = tuple(Convolution(width, stride) for width, stride in zip(widths, strides, strict=True))
    return SoundEncoder(_HALF_A_MINUTE, steps)


def _fast_conformer(config: Mapping[str, Any]) -> SoundEncoder:
    """arXiv:2305.05084: spectra each 10 ms, and a number of convolutions in a row."""
    encoder = _table(config, "encoder_config")
    names = ("subsampling_factor", "subsampling_conv_kernel_size", "subsampling_conv_stride")
    said = [encoder.get(name, default) for name, default in zip(names, (8, 3, 2), strict=True)]
    factor, width, stride = _numbers(said, f"one of {', '.join(names)}")
    convolution = Convolution(width, stride, (width - 1) // 2 * 2)
    return SoundEncoder(_HALF_A_MINUTE, (Convolution(160, 160), *[convolution] * (factor.bit_length() - 1)))


def _numbers(field: Any, name: str) -> Sequence[int]:
    valid = isinstance(field, list) and all(type(one) is int and 1 <= one <= SAMPLE_RATE for one in field)
    if not valid or not field:
        raise ModelError(f"{name} in config.json is not a list of numbers from 1 on.")
    return list(field)


def _table(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    said = config.get(name) or {}
    if not isinstance(said, Mapping):
        raise ModelError(f"{name} in config.json is not an object.")
    return said


_SPECTRA = Convolution(400, 160)
_READERS: Mapping[str, Callable[[Mapping[str, Any]], SoundEncoder]] = MappingProxyType(
    {
        "CanaryForConditionalGeneration": _fast_conformer,
        "CohereAsrForConditionalGeneration": _fast_conformer,
        "MoonshineForConditionalGeneration": _moonshine,
        "MoonshineStreamingForConditionalGeneration": _moonshine_streaming,
        "Speech2TextForConditionalGeneration": _speech_to_text,
        "SpeechT5ForSpeechToText": _speecht5,
    }
)
SOUND_ENCODERS = tuple(_READERS)
"""Architectures whose encoders make as many positions as a sound has."""
