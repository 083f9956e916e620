"""Recordings whose words are known: sentences that eSpeak NG says in several voices and speeds, joined with pauses."""

from __future__ import annotations

import random
import subprocess
import tempfile
import wave
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soxr

RATE = 16_000
"""Hz."""
VOICES = (("en-us", 150), ("en-gb", 165), ("en-us+f3", 140), ("en-gb-scotland+m3", 155))
"""Of eSpeak NG, each with its words a minute."""
PAUSE = 0.4
"""Seconds between two sentences."""
_WHO = (
    "The old farmer", "My younger sister", "A tired teacher", "The captain of the ship", "Our new neighbour",
    "Every student in the class", "The doctor from the village", "A small group of children", "The woman at the desk",
    "His best friend",
)  # fmt: skip
_DOES = (
    "carried seven apples", "bought a pair of leather shoes", "wrote a long letter", "forgot the keys",
    "opened the heavy wooden door", "watched the rain", "painted a picture of the river", "told a funny story",
    "found a silver coin", "asked for a glass of water", "sold the last ticket", "heard the music",
)  # fmt: skip
_WHERE = (
    "near the railway station", "in the kitchen", "behind the school", "at the edge of the forest", "in the market",
    "on the bridge", "beside the church", "in front of the museum", "across the street", "under the tall trees",
)  # fmt: skip
_WHEN = (
    "on Monday morning", "before the sun came up", "while the others were sleeping", "last summer", "after dinner",
    "at the end of the week", "without saying a word", "when the snow had melted", "an hour ago", "late at night",
)  # fmt: skip

Sound = npt.NDArray[np.int16]


@dataclass(frozen=True)
class Spoken:
    """A recording: a WAV of RATE with one channel."""

    path: Path
    # In order.
    sentences: tuple[str, ...]
    seconds: float


def sentences(seed: int) -> Iterator[str]:
    """No end of them, and few twice."""
    draw = random.Random(seed)
    while True:
        yield " ".join(map(draw.choice, (_WHO, _DOES, _WHERE, _WHEN))) + "."


def clip(path: Path, sentence: str, number: int) -> Spoken:
    """One sentence. number: of the voice, any."""
    return _written(path, [sentence], [_speech(sentence, *VOICES[number % len(VOICES)])])


def recording(path: Path, seconds: float, seed: int) -> Spoken:
    """Sentences until the recording is so long, each in the next voice."""
    texts, sounds, length = [], [], 0.0
    for text, voice in zip(sentences(seed), cycle(VOICES), strict=False):
        if length >= seconds:
            break
        sound = np.concatenate([_speech(text, *voice), np.zeros(int(PAUSE * RATE), np.int16)])
        texts.append(text)
        sounds.append(sound)
        length += len(sound) / RATE
    return _written(path, texts, sounds)


def _speech(text: str, voice: str, speed: int) -> Sound:
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        subprocess.run(["espeak-ng", "-v", voice, "-s", str(speed), "-w", file.name, text], check=True)
        with wave.open(file.name) as wav:
            heard = np.frombuffer(wav.readframes(wav.getnframes()), np.int16)
            made: Sound = soxr.resample(heard, wav.getframerate(), RATE)
            return made


def _written(path: Path, texts: Sequence[str], sounds: Sequence[Sound]) -> Spoken:
    sound = np.concatenate(sounds)
    with wave.open(str(path), "wb") as wav:
        wav.setparams((1, 2, RATE, 0, "NONE", ""))
        wav.writeframes(sound.tobytes())
    return Spoken(path, tuple(texts), len(sound) / RATE)
