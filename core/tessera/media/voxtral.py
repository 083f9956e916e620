"""Voxtral's processor, to which transformers gives sounds only in chats that mistral-common renders: here a sound takes
the place of a placeholder in any text, with the tokens that mistral-common puts there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

NAME = "VoxtralProcessor"
_BEGIN = "[BEGIN_AUDIO]"


class VoxtralSounds:
    """Mixed into the class. window_features: how many features a window of 30 seconds has."""

    window_features: int
    audio_token: str
    tokenizer: Any
    prepare_inputs_layout: Any
    _merge_kwargs: Any
    _retrieve_input_features: Any

    def _process_audio(self, audio: Sequence[Any], **options: Any) -> tuple[dict[str, Any], list[str]]:
        positions = options.pop("max_source_positions")
        each = [self._retrieve_input_features([one], positions, **options) for one in audio]
        texts = [_BEGIN + self.audio_token * (len(windows) * self.window_features) for windows in each]
        return {"input_features": self._retrieve_input_features(audio, positions, **options)}, texts

    def __call__(self, text: Sequence[str], audio: Sequence[Any], **options: Any) -> Mapping[str, Any]:
        """A text with a placeholder for each sound."""
        merged = self._merge_kwargs(tokenizer_init_kwargs=self.tokenizer.init_kwargs, **options)
        sounds = self.prepare_inputs_layout(text=None, audio=audio)[3]
        processed, texts = self._process_audio(sounds, **merged["audio_kwargs"])
        first, *rest = text[0].split(self.audio_token)
        whole = first + "".join(sound + other for sound, other in zip(texts, rest, strict=True))
        return {"input_ids": np.array([self.tokenizer(whole)["input_ids"]]), **processed}


def window_features(folder: Path) -> int:
    """As the tower of config.json makes them: several positions are one feature."""
    from transformers import AutoConfig

    audio = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False).audio_config
    return int(audio.max_source_positions * audio.hidden_size // audio.intermediate_size)
