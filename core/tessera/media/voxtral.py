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
    """Mixed into the class. window: how many frames the tower takes at once, 30 seconds of published ones, and how many
    features it makes of them."""

    window: tuple[int, int]
    audio_token: str
    tokenizer: Any
    feature_extractor: Any
    prepare_inputs_layout: Any
    _merge_kwargs: Any
    _retrieve_input_features: Any

    def _process_audio(self, audio: Sequence[Any], **options: Any) -> tuple[dict[str, Any], list[str]]:
        frames, features = self.window
        del options["max_source_positions"]
        options["pad_to_multiple_of"] = frames * self.feature_extractor.hop_length
        each = [self._retrieve_input_features([one], frames, **options) for one in audio]
        texts = [_BEGIN + self.audio_token * (len(windows) * features) for windows in each]
        return {"input_features": self._retrieve_input_features(audio, frames, **options)}, texts

    def __call__(self, text: Sequence[str], audio: Sequence[Any], **options: Any) -> Mapping[str, Any]:
        """A text with a placeholder for each sound."""
        merged = self._merge_kwargs(tokenizer_init_kwargs=self.tokenizer.init_kwargs, **options)
        sounds = self.prepare_inputs_layout(text=None, audio=audio)[3]
        processed, texts = self._process_audio(sounds, **merged["audio_kwargs"])
        first, *rest = text[0].split(self.audio_token)
        whole = first + "".join(sound + other for sound, other in zip(texts, rest, strict=True))
        return {"input_ids": np.array([self.tokenizer(whole)["input_ids"]]), **processed}


def window_of(folder: Path) -> tuple[int, int]:
    """VoxtralSounds.window of the tower in config.json: two frames are a position, and several positions a feature."""
    from transformers import AutoConfig

    audio = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False).audio_config
    positions = int(audio.max_source_positions)
    return 2 * positions, positions * audio.hidden_size // audio.intermediate_size
