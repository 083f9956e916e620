"""What the encoder of an encoder-decoder reads of a sound: transformers' feature extractor of the model. No text of a
prompt stands for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tessera.arrays import Array
from tessera.config.sound_encoder import SAMPLE_RATE, SoundEncoder
from tessera.errors import ModelError, RequestError
from tessera.media.item import MediaPlaces, MediaReady, ProcessedMedia, digest_of

_MOST_MESSAGE_CHARS = 300
_MASK, _WAVES = "attention_mask", "input_values"
_LEAST_SAMPLES = SAMPLE_RATE // 10
"""Of which spectra have a variance."""


class SpeechProcessor:
    """A model's feature extractor. ready: no token has a feature."""

    def __init__(
        self, folder: str | Path, options: Mapping[str, Any] | None = None, encoder: SoundEncoder | None = None
    ) -> None:
        """encoder: None: it always makes as many positions. Raises ModelError, also for options, of which it takes
        none, and for an extractor that is of another model."""
        from transformers import AutoFeatureExtractor

        if options:
            raise ModelError("mm_processor_kwargs has no effect on models that write down speech; leave it out.")
        try:
            extractor: Any = AutoFeatureExtractor.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
        except MemoryError:
            raise
        except Exception as error:
            what = " ".join(str(error)[:_MOST_MESSAGE_CHARS].split())
            raise ModelError(f"The feature extractor of this model cannot be loaded: {what}") from error
        self._extractor, self._rate, self._encoder = extractor, int(extractor.sampling_rate), encoder
        self._most_samples = int(extractor.n_samples) if encoder is None else encoder.most_samples
        if encoder is not None:
            if self._rate != SAMPLE_RATE:
                raise ModelError(f"The feature extractor of this model takes {self._rate} Hz, not {SAMPLE_RATE}.")
            self._heard(np.zeros(encoder.samples(2), np.float32), encoder)
        self.ready = MediaReady({"audio": MediaPlaces("", (), self._rate)})

    def sound(self, samples: Array, options: Mapping[str, Any] | None = None) -> ProcessedMedia:
        """[samples] float32 at the rate that ready names, no more than the encoder takes at once. options: none are
        known. Raises RequestError."""
        if options:
            raise RequestError("mm_processor_kwargs has no effect on this model; leave it out.")
        if not 0 < len(samples) <= self._most_samples:
            most = self._most_samples / self._rate
            raise RequestError(f"This model takes sounds of up to {most:g} seconds at once; send this one in parts.")
        if self._encoder is not None:
            return self._heard(samples, self._encoder)
        made = self._extractor(samples, sampling_rate=self._rate, return_tensors="np")
        inputs = {"input_features": np.ascontiguousarray(made["input_features"], np.float32)}
        return ProcessedMedia("audio", digest_of(inputs), "", 0, inputs)

    def _heard(self, samples: Array, encoder: SoundEncoder) -> ProcessedMedia:
        """Without what a mask leaves out, and so without the mask, unless the encoder has to know which of the last
        samples are none. Behind a sound that is too short there is silence."""
        samples = np.pad(samples, (0, max(0, encoder.samples(1) - len(samples), _LEAST_SAMPLES - len(samples))))
        filled = {"padding": True, "pad_to_multiple_of": encoder.multiple} if encoder.multiple > 1 else {}
        with np.errstate(divide="ignore", invalid="ignore"):
            made = self._extractor(
                samples, sampling_rate=self._rate, return_tensors="np", return_attention_mask=True, **filled
            )
        name = next(name for name in self._extractor.model_input_names if name != _MASK)
        # Silence has no variance, by which some divide.
        whole, mask = np.nan_to_num(np.asarray(made[name], np.float32)), np.asarray(made[_MASK], bool)
        inputs = {name: whole, _MASK: mask} if filled else {name: np.ascontiguousarray(whole[:, mask[0]])}
        length = whole.shape[1] if filled else len(samples)
        expected = length if name == _WAVES else encoder.steps[0].length(length)
        if (frames := inputs[name].shape[1]) != expected:
            raise ModelError(
                f"The feature extractor of this model makes {frames} frames where its encoder takes {expected}."
            )
        return ProcessedMedia("audio", digest_of(inputs), "", encoder.positions(length), inputs)
