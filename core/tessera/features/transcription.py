"""The rules for the answers of models that write down speech, the engine's half, which only says where they hold, and
which requests time words. The workers' half is runner/transcription.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tessera.config.pooler import ALIGNED
from tessera.errors import ConfigError
from tessera.platform.feature import EngineFeature, Feature, FeatureState

if TYPE_CHECKING:
    from tessera.config import EngineConfig
    from tessera.request import Request

FEATURE = Feature(
    engine="tessera.features.transcription:TranscriptionInEngine",
    worker="tessera.runner.transcription:TranscriptionInWorker",
)

RULES = "transcription"
"""The column: which rules hold for a row's answer: FREE, UNTIMED or TIMED."""
FREE, UNTIMED, TIMED = range(3)


class TranscriptionInEngine(EngineFeature):
    """Refuses what the rules do not go along with."""

    def __init__(self, config: EngineConfig, option: str) -> None:
        if option:
            raise ConfigError("The feature transcription takes no option.")
        if config.model.speech is None or not config.model.speech.timed:
            raise ConfigError("The feature transcription is for models that write times of speech; leave it out.")
        if config.scheduler.speculative is not None:
            raise ConfigError(
                "Models that write down speech are served without drafts; remove --speculative-config.",
                param="speculative_config",
            )

    def begin(self, request: Request) -> FeatureState | None:
        aligned = request.pooling is not None and request.pooling.task == "align"
        return Aligned(len(request.prompt)) if aligned else None


class Aligned(FeatureState):
    """A request of the task align, whose prompt has that many tokens."""

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens

    def columns(self) -> Mapping[str, float]:
        return {ALIGNED: self.num_tokens}
