"""The models that requests name: each with its engine, and with how its prompts and answers are written."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from tessera._version import __version__
from tessera.errors import ModelError
from tessera.lora import lora_args
from tessera.parsing.formats import response_format, with_calls
from tessera.parsing.plain import Telling
from tessera.parsing.response import ResponseFormat
from tessera.server.media_reader import MediaReader
from tessera.server.settings import ServerSettings

if TYPE_CHECKING:
    from tessera.config import EngineConfig
    from tessera.engine.async_engine import AsyncEngine
    from tessera.text.workers import TextWorkers

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServedModel:
    """A model under one of its names, or an adapter, on the same engine."""

    # as requests give it
    name: str
    engine: AsyncEngine
    # renders and tokenizes its prompts; None: they are token ids
    text: TextWorkers | None
    # reads the images and sounds of its prompts; None: they have none
    media: MediaReader | None
    # how it writes its reasoning and calls; None: its answers are text
    format: ResponseFormat | None
    # what it has to be told in words about tools, where its calls are plain
    telling: Telling
    # `system_fingerprint` of its answers
    fingerprint: str
    # the name of the model that it changes; "" for that model itself
    parent: str = ""
    # Request.feature_args of its requests
    feature_args: Mapping[str, str] = field(default_factory=dict)


def served_models(engine: AsyncEngine, settings: ServerSettings) -> dict[str, ServedModel]:
    """All models that an engine serves, by name: the names of the model itself first, and then --lora-modules."""
    names = settings.served_model_names or (engine.config.model.served_name,)
    model = ServedModel(
        name=names[0],
        engine=engine,
        text=engine.text,
        media=None if engine.media is None else MediaReader(engine.media, settings.media, engine.config.model),
        format=detect_format(engine.text, settings),
        telling=Telling.from_template("" if engine.text is None else engine.text.template),
        fingerprint=fingerprint(names[0], engine.config),
    )
    modules = {
        name: replace(model, name=name, parent=names[0], feature_args=lora_args(folder))
        for name, folder in engine.config.lora.modules
    }
    return {name: replace(model, name=name) for name in names} | modules


def fingerprint(name: str, config: EngineConfig) -> str:
    """It changes with the model's name, the version, and the settings that change numbers."""
    model, parallel = config.model, config.parallel
    settings = (model.checkpoint, model.dtype, model.quantization, model.load_format, config.cache.dtype, config.seed)
    sizes = parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parallel.expert_parallel
    devices = (config.platform, *sizes, config.batch_invariant)
    data = msgspec.json.encode((name, __version__, settings, devices), order="sorted")
    return f"fp_{hashlib.sha256(data).hexdigest()[:12]}"


def detect_format(text: TextWorkers | None, settings: ServerSettings) -> ResponseFormat | None:
    """How answers are read: as the flags say, or else as the checkpoint's response_template does, or else as the family
    that the chat template is recognised by. None: they are text. Says in the log if a checkpoint brings a
    response_template."""
    flags = (settings.tool_call_parser, settings.reasoning_parser)
    if text is None:
        return response_format(*flags, "")
    family, template = response_format(*flags, text.template), text.response_template
    if not template:
        return with_calls(family) if settings.tool_call_parser == "auto" and text.template else family
    if flags != ("auto", "auto"):
        _LOG.info("Answers are read as the flags say; the checkpoint's response_template is not used.")
        return family
    # Not at the top: few checkpoints have one.
    from tessera.parsing.response_template.forcing import template_format

    vocabulary = text.vocabulary
    special = [vocabulary.added_token_texts[token] for token in sorted(vocabulary.special_ids)]
    try:
        found = template_format(template, family, special)
    except ModelError as error:
        fallback = "text" if family is None else f"those of the family '{family.name}'"
        _LOG.warning("The checkpoint's response_template cannot be used: %s. Answers are read as %s.", error, fallback)
        return family
    _LOG.info("Answers are read by the checkpoint's response_template.")
    return found
