"""transformers' generate in float32, in its process: what transcripts are compared with."""

from __future__ import annotations

import wave
from collections.abc import Sequence

import numpy as np
import torch
import transformers
from benchmarks.transcription_task import (
    LEAST_LOGPROB,
    MOST_NO_SPEECH,
    TEMPERATURES,
    Line,
    TranscriptionTask,
    drive,
)
from transformers import AutoFeatureExtractor, AutoModelForSpeechSeq2Seq, AutoTokenizer

MOST_COMPRESSION = 1.35
"""Of tokens, which transformers compresses where openai-whisper compresses text: its documentation's value."""
WINDOW = 30.0
"""Seconds. A longer recording is written down window after window."""


class Transformers:
    def __init__(self, task: TranscriptionTask) -> None:
        torch.set_num_threads(task.threads)
        self._model = AutoModelForSpeechSeq2Seq.from_pretrained(task.weights, dtype=torch.float32).eval()
        self._features = AutoFeatureExtractor.from_pretrained(task.weights)
        self._tokenizer = AutoTokenizer.from_pretrained(task.weights)
        self.version = f"{transformers.__version__}, torch {torch.__version__}"

    def transcribe(self, paths: Sequence[str]) -> list[list[Line]]:
        return [self._lines(path) for path in paths]

    def _lines(self, path: str) -> list[Line]:
        with wave.open(path) as file:
            rate = file.getframerate()
            sound = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 2**15
        whole = len(sound) / rate > WINDOW
        arguments = {"truncation": False, "padding": "longest"} if whole else {}
        inputs = self._features(sound, sampling_rate=rate, return_tensors="pt", return_attention_mask=True, **arguments)
        made = self._model.generate(
            inputs.input_features,
            attention_mask=inputs.attention_mask,
            return_timestamps=True,
            return_segments=True,
            condition_on_prev_tokens=whole,
            temperature=TEMPERATURES,
            compression_ratio_threshold=MOST_COMPRESSION,
            logprob_threshold=LEAST_LOGPROB,
            no_speech_threshold=MOST_NO_SPEECH,
        )
        return [
            (float(one["start"]), float(one["end"]), self._tokenizer.decode(one["tokens"], skip_special_tokens=True))
            for one in made["segments"][0]
        ]


if __name__ == "__main__":
    drive(Transformers, times=False)
