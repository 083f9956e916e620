"""What the routes share: the models, the settings and the request counts."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.types import Scope

from tessera.engine.model_tasks import check_generates
from tessera.errors import NotFoundError
from tessera.server.access import Counts
from tessera.server.assembly import Assembly
from tessera.server.host_metrics import DiskWatch
from tessera.server.keys import check_allows
from tessera.server.limits import AnswerAdmission
from tessera.server.loop_watch import LoopWatch
from tessera.server.quotas import Quotas
from tessera.server.served_model import ServedModel, served_models
from tessera.server.settings import ServerSettings
from tessera.server.task_routes import TASK_ROUTES

if TYPE_CHECKING:
    from tessera.engine.async_engine import AsyncEngine


class ServerState:
    """What is counted and watched of a server, however many models it has."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.quotas = Quotas()
        self.loop = LoopWatch()
        self.disks = DiskWatch()


class ServerContext:
    """Created once for a model, before its first request."""

    def __init__(self, engine: AsyncEngine, settings: ServerSettings, state: ServerState | None = None) -> None:
        """state: of a server that has other models too."""
        self.engine = engine
        """For what the server reports and limits as a whole; a request has that of its model."""
        self.settings = settings
        self.models = served_models(engine, settings)
        """By the names that requests give; the first is that of requests that give none. Adapters come and go."""
        self.created = int(time.time())
        self.state = state or ServerState()
        self.counts = self.state.counts
        self.assembly = Assembly()
        places = (
            engine.info.max_num_seqs + engine.config.parallel.data_parallel_size * engine.config.scheduler.max_waiting
        )
        self.token_admission = AnswerAdmission(
            settings.max_asked_tokens or places * engine.info.max_model_len, "tokens", "n, max_tokens, logprobs"
        )
        """Of the tokens that requests may generate, each counted once more for every log probability."""
        self.number_admission = AnswerAdmission(settings.limits.all_pooled_numbers, "numbers", "input")
        """Of the numbers that requests which pool get."""
        self.starters: list[Callable[[], None]] = []
        """What to do when the server begins to answer."""
        self.closers: list[Callable[[], Awaitable[None]]] = []
        """What to do when the server ends, before the engine does."""
        self.closers.append(self.assembly.close)
        self.numbers = itertools.count()
        """Numbers that make the names of requests unique, because clients may send the same id twice."""

    @property
    def default_model(self) -> ServedModel:
        return next(iter(self.models.values()))

    def model(self, name: str | None) -> ServedModel:
        """The model that a request means. Raises NotFoundError if it is not served."""
        if name is None:
            return self.default_model
        if name not in self.models:
            raise NotFoundError(f"The model `{name[:256]}` does not exist.", param="model", code="model_not_found")
        return self.models[name]

    def allowed_model(self, name: str | None, scope: Scope) -> ServedModel:
        """As model(); raises KeyNotAllowedError too, if the request's API key may not use it."""
        model = self.model(name)
        check_allows(scope, model.name)
        return model

    def running_model(self, name: str | None, scope: Scope) -> ServedModel:
        """As allowed_model(); raises EngineDeadError or EngineAsleepError too, if its engine is not running."""
        model = self.allowed_model(name, scope)
        model.engine.check_alive()
        return model

    def generating_model(self, name: str | None, scope: Scope) -> ServedModel:
        """As running_model(); raises RequestError too, for a model that answers with numbers only."""
        model = self.running_model(name, scope)
        check_generates(model.engine.config.model, TASK_ROUTES)
        return model
