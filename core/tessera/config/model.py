"""The model to serve: its folder, downloaded from the Hub if needed, its tokenizer, and the facts in its files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tessera.config.checkpoint import FILE, Checkpoint, read_checkpoint
from tessera.config.engine import ENGINE_FLAGS, MAX_TOKENS, ModelConfig, ModelOptions
from tessera.config.flags import record_of
from tessera.config.generation import FILE as GENERATION_FILE
from tessera.config.generation import eos_token_ids, generation_folder, sampling_defaults
from tessera.config.locate import HubAccess, locate_model, named_model, tokenizer_of_model
from tessera.config.mmproj import find_mmproj
from tessera.config.modalities import (
    NOUNS,
    encoder_length,
    modalities,
    reads_text,
    sees_prompt,
    why_not_processed,
)
from tessera.config.model_folder import is_gguf, read_json
from tessera.config.sound_encoder import SAMPLE_RATE, sound_encoder
from tessera.config.source_text import SourceTextConfig, source_text_config
from tessera.config.speech import SpeechConfig, aligner, speech_config, untimed_speech
from tessera.config.tasks import model_tasks
from tessera.config.told_language import told_language
from tessera.errors import ConfigError, ModelError, printable

log = logging.getLogger(__name__)


def model_config(model: str | None, options: ModelOptions, values: Mapping[str, Any]) -> ModelConfig:
    """The model's folder, downloaded if needed, and the facts in its files. values: of ModelConfig's own flags, from
    given_values(). Raises ConfigError, and ModelError for unsupported files."""
    hub = HubAccess(options.revision, options.tokenizer_revision, options.hf_token, options.download_dir)
    weights, asked = values.get("load_format") != "dummy", options.tokenizer
    own_tokenizer = asked is None and not options.skip_tokenizer_init
    named = named_model(model)
    folder, name = locate_model(model, hub, weights=weights, tokenizer=own_tokenizer)
    mmproj = find_mmproj(folder, options.mmproj)
    checkpoint = read_checkpoint(folder, weights=weights, mmproj=mmproj)
    if values.get("quantization") is not None and checkpoint.config.get("quantization_config") is not None:
        raise ConfigError("the model is already quantized; remove --quantization.", param="quantization")
    tokenizer = None if options.skip_tokenizer_init else tokenizer_of_model(folder, name, asked, hub)
    tasks = model_tasks(checkpoint, options)
    recommended = generation_folder(options.generation_config, folder)
    source = _source_text(checkpoint, recommended)
    speech = _speech(checkpoint, tokenizer) if tasks.generates else None
    has_encoder = encoder_length(checkpoint.config) > 0
    authors = {} if named is None else named.sampling
    return record_of(
        ModelConfig,
        ENGINE_FLAGS,
        values,
        path=str(_resolved(folder)),
        served_name=_served_name(options.served_model_name or name),
        checkpoint=checkpoint.config,
        vocab_size=checkpoint.vocab_size,
        max_model_len=_max_model_len(checkpoint, options.max_model_len, tasks.max_tokens),
        pooler=aligner(checkpoint.config, _generation(folder)) if speech is not None and speech.timed else tasks.pooler,
        generates=tasks.generates,
        eos_token_ids=eos_token_ids(checkpoint, tokenizer, recommended),
        tokenizer="" if tokenizer is None else str(_resolved(tokenizer)),
        mmproj="" if mmproj is None else str(mmproj.absolute()),
        speech=speech,
        source_text=source,
        modalities=_modalities(checkpoint, values, tokenizer, mmproj) if tasks.generates or not has_encoder else (),
        sampling_defaults=sampling_defaults(
            recommended, options.override_generation_config, authors if source is None else {"temperature": 0.0}
        ),
    )


def _speech(checkpoint: Checkpoint, tokenizer: Path | None) -> SpeechConfig | None:
    """tokenizer: its folder. Raises ModelError."""
    if not encoder_length(checkpoint.config):
        return None
    generation, hears = _generation(checkpoint.folder), sound_encoder(checkpoint.config)
    if hears is not None:
        window = hears.most_samples / SAMPLE_RATE
        speech = untimed_speech(checkpoint.config, generation, checkpoint.vocab_size, window)
        return speech if speech is None or tokenizer is None else told_language(speech, checkpoint.config, tokenizer)
    return speech_config(checkpoint.config, generation, checkpoint.vocab_size)


def _source_text(checkpoint: Checkpoint, recommended: Path | None) -> SourceTextConfig | None:
    """recommended: the folder whose generation_config.json is used. Raises ModelError."""
    if not reads_text(checkpoint.config):
        return None
    return source_text_config(checkpoint.config, _generation(recommended), checkpoint.vocab_size)


def _generation(folder: Path | None) -> Mapping[str, Any]:
    """generation_config.json of a folder."""
    return {} if folder is None else read_json(folder, GENERATION_FILE) or {}


def _modalities(
    checkpoint: Checkpoint, values: Mapping[str, Any], tokenizer: Path | None, mmproj: Path | None
) -> tuple[str, ...]:
    """What prompts may hold beside text: nothing where it cannot be processed, which the log says. Raises ConfigError,
    and ModelError for a model whose text model alone is not served."""
    served = modalities(checkpoint.config, values.get("limit_mm_per_prompt") or {})
    if sees_prompt(checkpoint.config) and not served:
        raise ConfigError(
            "limit_mm_per_prompt: this model is served with its images alone; leave it out.",
            param="limit_mm_per_prompt",
        )
    if encoder_length(checkpoint.config):
        if not served and not reads_text(checkpoint.config):
            raise ConfigError(
                "limit_mm_per_prompt: this model answers to what its encoder reads, and nothing else; leave it out.",
                param="limit_mm_per_prompt",
            )
        return served
    if not served or tokenizer is None:  # with prompts of token ids, who sends them has processed what is beside
        return served
    processed: list[str] = []
    for modality in served:
        reason = why_not_processed(checkpoint.folder, modality, mmproj=mmproj is not None)
        if reason is None:
            processed.append(modality)
        elif sees_prompt(checkpoint.config):
            raise ModelError(f"This model is served with its {NOUNS[modality]}s alone, and {reason}.")
        else:
            text = "" if len(served) > 1 else ", and the text model alone is served"
            log.warning("%ss are refused%s: %s", NOUNS[modality], text, reason)
    return tuple(processed)


def _resolved(folder: Path) -> Path:
    """The absolute path. A GGUF file is opened by the name that it was given: what it links to may have another."""
    return folder.absolute() if is_gguf(folder) else folder.resolve()


def _served_name(name: str) -> str:
    if len(name) > 256 or not name.isprintable():
        raise ConfigError("served_model_name must be at most 256 printable characters.", param="served_model_name")
    return name


def _max_model_len(checkpoint: Checkpoint, requested: int | None, usual: int | None) -> int:
    """usual: the longest text that the modules behind the model were made for, if they say so."""
    most = checkpoint.max_positions
    if requested is None and usual is not None:
        return min(usual, most or usual)
    if most is None:
        if requested is None:
            raise ModelError(
                f"'{printable(checkpoint.folder)}' does not give the model's context length; set --max-model-len."
            )
        return requested
    allowed = checkpoint.most_positions or most
    if requested is not None and requested > allowed:
        raise ConfigError(
            f"max_model_len is {requested}, but the model supports at most {allowed} tokens; lower it.",
            param="max_model_len",
        )
    if requested is None and most > MAX_TOKENS:
        raise ModelError(
            f"'{printable(checkpoint.folder / FILE)}' says that the model was made for {most:,} tokens, which is more "
            f"than {MAX_TOKENS:,}; give --max-model-len."
        )
    return most if requested is None else requested
