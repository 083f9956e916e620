"""What the encoder of an encoder-decoder reads of a sound: transformers' feature extractor of the model. No text of a
prompt stands for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tessera.arrays import Array
from tessera.errors import ModelError, RequestError
from tessera.media.item import MediaPlaces, MediaReady, ProcessedMedia, digest_of

_MOST_MESSAGE_CHARS = 300


class SpeechProcessor:
    """A model's feature extractor. ready: no token has a feature."""

    def __init__(self, folder: str | Path, options: Mapping[str, Any] | None = None) -> None:
        """Raises ModelError, also for options: it takes none."""
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
        self._extractor, self._rate = extractor, int(extractor.sampling_rate)
        self._most_samples = int(extractor.n_samples)
        self.ready = MediaReady({"audio": MediaPlaces("", (), self._rate)})

    def sound(self, samples: Array, options: Mapping[str, Any] | None = None) -> ProcessedMedia:
        """[samples] float32 at the rate that ready names, no more than the encoder takes at once. options: none are
        known. Raises RequestError."""
        if options:
            raise RequestError("mm_processor_kwargs has no effect on this model; leave it out.")
        if not 0 < len(samples) <= self._most_samples:
            most = self._most_samples / self._rate
            raise RequestError(f"This model takes sounds of up to {most:g} seconds at once; send this one in parts.")
        made = self._extractor(samples, sampling_rate=self._rate, return_tensors="np")
        inputs = {"input_features": np.ascontiguousarray(made["input_features"], np.float32)}
        return ProcessedMedia("audio", digest_of(inputs), "", 0, inputs)
