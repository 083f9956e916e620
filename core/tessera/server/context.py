"""What the routes share: the engine, the settings and the request counts."""

from __future__ import annotations

import hashlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from tessera._version import __version__
from tessera.errors import EngineDeadError, ModelError, NotFoundError
from tessera.parsing.formats import response_format, with_calls
from tessera.parsing.plain import Telling
from tessera.parsing.response import ResponseFormat
from tessera.server.access import Counts
from tessera.server.assembly import Assembly
from tessera.server.limits import TokenAdmission
from tessera.server.loop_watch import LoopWatch
from tessera.server.settings import ServerSettings

if TYPE_CHECKING:
    from tessera.config import EngineConfig
    from tessera.engine.async_engine import AsyncEngine

_LOG = logging.getLogger(__name__)


def fingerprint(name: str, config: EngineConfig) -> str:
    """`system_fingerprint` of answers: it changes with the model's name, the version, and the settings that change
    numbers."""
    model, parallel = config.model, config.parallel
    settings = (model.checkpoint, model.dtype, model.quantization, model.load_format, config.cache.dtype, config.seed)
    devices = (config.platform, parallel.tensor_parallel_size, parallel.pipeline_parallel_size, config.batch_invariant)
    said = msgspec.json.encode((name, __version__, settings, devices), order="sorted")
    return f"fp_{hashlib.sha256(said).hexdigest()[:12]}"


def format_of(engine: AsyncEngine, settings: ServerSettings) -> ResponseFormat | None:
    """How answers are read: as the flags say, or else as the checkpoint's response_template does, or else as the family
    that the chat template is recognised by. None: they are text. Says in the log if a checkpoint brings a
    response_template."""
    asked = (settings.tool_call_parser, settings.reasoning_parser)
    if engine.text is None:
        return response_format(*asked, "")
    family, own = response_format(*asked, engine.text.template), engine.text.response_template
    if not own:
        return with_calls(family) if settings.tool_call_parser == "auto" and engine.text.template else family
    if asked != ("auto", "auto"):
        _LOG.info("Answers are read as the flags say; the checkpoint's response_template is not used.")
        return family
    # Not at the top: few checkpoints have one.
    from tessera.parsing.response_template.forcing import template_format

    vocabulary = engine.text.vocabulary
    special = [vocabulary.added_token_texts[token] for token in sorted(vocabulary.special_ids)]
    try:
        found = template_format(own, family, special)
    except ModelError as error:
        known = "text" if family is None else f"those of the family '{family.name}'"
        _LOG.warning("The checkpoint's response_template cannot be used: %s. Answers are read as %s.", error, known)
        return family
    _LOG.info("Answers are read by the checkpoint's response_template.")
    return found


class ServerContext:
    """Created once, before the first request."""

    def __init__(self, engine: AsyncEngine, settings: ServerSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.model_names = settings.served_model_names or (engine.config.model.served_name,)
        self.adapters = dict(engine.config.lora.modules)
        """The folder of each adapter, by the name that requests give as `model`."""
        self.format = format_of(engine, settings)
        """How the model writes its reasoning and calls; None: its answers are text."""
        self.telling = Telling.from_template("" if engine.text is None else engine.text.template)
        """What the model has to be told in words about tools, where its calls are plain."""
        self.fingerprint = fingerprint(self.model_names[0], engine.config)
        self.created = int(time.time())
        self.counts = Counts()
        self.assembly = Assembly()
        self.loop = LoopWatch()
        scheduler = engine.config.scheduler
        places = scheduler.max_num_seqs + scheduler.max_waiting
        self.token_admission = TokenAdmission(settings.max_asked_tokens or places * engine.info.max_model_len)
        self.starters: list[Callable[[], None]] = []
        """What to do when the server begins to answer."""
        self.closers: list[Callable[[], Awaitable[None]]] = []
        """What to do when the server ends, before the engine does."""
        self.starters.append(self.loop.start)
        self.closers += [self.assembly.close, self.loop.stop]
        self.numbers = itertools.count()
        """Numbers that make the names of requests unique, because clients may send the same id twice."""

    def named(self, asked: str | None) -> str:
        """The model that a request means: the first that is served, if it names none."""
        return self.model_names[0] if asked is None else asked

    def check_name(self, asked: str | None) -> None:
        """Raises NotFoundError for a model that is not served."""
        name = self.named(asked)
        if name not in self.model_names and name not in self.adapters:
            raise NotFoundError(f"The model `{name[:256]}` does not exist.", param="model", code="model_not_found")

    def check_model(self, name: str | None) -> None:
        """Raises NotFoundError for a model that is not served, and EngineDeadError if the engine is not running."""
        self.check_name(name)
        if not self.engine.health.alive:
            raise EngineDeadError("The engine is not running.")
