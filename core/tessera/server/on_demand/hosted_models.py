"""Loads models when requests ask for them, within limits on how many there are and how much memory they take, and
unloads those used least recently."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.routing import BaseRoute

from tessera.engine.engine_handle import Health
from tessera.errors import MemoryBudgetError, NotFoundError, OverloadedError, TesseraError
from tessera.server.on_demand.hosted_model import ConfiguredModel, HostedEntry, HostedModel, LoadedHost, LoadFailure
from tessera.sizes import show_bytes

if TYPE_CHECKING:
    from tessera.server.settings import OnDemandRules

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
"""How long a model waits for others to become idle, before the one used least recently takes no new requests."""
RETRY_SECONDS = 30.0
"""After a model could not be loaded, until it is tried again."""
LOOK_SECONDS = 1.0
"""Between two looks at which models are idle: an engine does not say when a response in the background has ended."""


class NotLoadedError(OverloadedError):
    """The model cannot be had now. retry_seconds: when to ask again."""

    code = "model_not_loaded"

    def __init__(self, message: str, retry_seconds: float) -> None:
        super().__init__(message, param="model")
        self.retry_seconds = max(math.ceil(retry_seconds), 1)


class HostedModels:
    """All models of a server, by name, in the order of its file."""

    def __init__(self, entries: Sequence[HostedEntry], rules: OnDemandRules) -> None:
        self.models = {entry.name: HostedModel(entry, time.monotonic(), self.has) for entry in entries}
        self.is_closed = False
        """Whether the server ends: none is loaded any more."""
        self._rules = rules
        # Whose turn it is to load or unload; first come, first served.
        self._turn = asyncio.Lock()
        # Set whenever a model may have become idle.
        self._freed = asyncio.Event()
        self._resting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """From now on, models that nobody uses are unloaded after a time, if the rules say so."""
        if self._rules.idle_seconds:
            self._resting = asyncio.create_task(self._unload_idle(), name="idle models")

    @property
    def health(self) -> Health:
        """A model whose engine dies is loaded anew: the server goes on."""
        return Health(alive=True, stalled=False, seconds_since_heartbeat=0.0)

    async def wait_dead(self) -> None:
        """Never returns."""
        await asyncio.get_running_loop().create_future()

    async def shutdown(self) -> None:
        """Unloads all. Requests that are running end with EngineDeadError."""
        self.is_closed = True
        tasks = [self._resting, *(model.loading for model in self.models.values())]
        await _cancel(*(task for task in tasks if task is not None))
        await asyncio.gather(*(self._unload(model) for model in self.models.values()))
        await asyncio.gather(*(model.copies.close() for model in self.models.values()))

    def has(self, name: str) -> bool:
        """Whether a request may name it: a model or an adapter."""
        return name in self.models or any(name in model.adapters for model in self.models.values())

    def find(self, name: str | None) -> HostedModel:
        """The one with this name, or with an adapter that has it. None: the first. Raises NotFoundError."""
        if name is None:
            return next(iter(self.models.values()))
        if name in self.models:
            return self.models[name]
        for model in self.models.values():
            if name in model.adapters:
                return model
        raise NotFoundError(f"The model `{name[:256]}` does not exist.", param="model", code="model_not_found")

    def has_quiet_room(self, model: HostedModel) -> bool:
        """Whether it is loaded, or can be in place of models alone that nobody has used for a while."""
        due = time.monotonic() - PATIENCE_SECONDS
        busy = [one for one in self._others(model) if not one.is_idle or one.last_used > due]
        return model.is_ready or model.loading is not None or not self._is_full(model, busy)

    def routes(self) -> list[BaseRoute]:
        """Those of all that are loaded."""
        return [
            route for model in self.models.values() if model.loaded is not None for route in model.loaded.app.routes
        ]

    @asynccontextmanager
    async def use(self, model: HostedModel) -> AsyncIterator[LoadedHost]:
        """The model, which stays loaded until the end. Raises NotLoadedError if it does not come in time, and
        OverloadedError if it never will."""
        if self.is_closed:
            raise OverloadedError("The server is shutting down.")
        loaded = await self._loaded(model)
        model.num_uses += 1  # nothing was awaited since it was there
        try:
            yield loaded
        finally:
            model.num_uses -= 1
            model.last_used = time.monotonic()
            self._freed.set()

    async def _loaded(self, model: HostedModel) -> LoadedHost:
        if model.loaded is not None and model.is_ready:
            return model.loaded
        model.num_waiting += 1
        try:
            async with asyncio.timeout(self._rules.start_seconds):
                while model.loaded is None or model.leaving:
                    _check_failure(model)
                    if model.loading is None:
                        model.loading = asyncio.create_task(self._load(model), name=f"load {model.name}")
                    await asyncio.shield(model.loading)
                return model.loaded
        except TimeoutError:
            message = f"The model `{model.name}` is not loaded yet; try again."
            raise NotLoadedError(message, self._rules.start_seconds / 4) from None
        finally:
            model.num_waiting -= 1

    # ---- loading

    async def _load(self, model: HostedModel) -> None:
        """Leaves what came of it in the model."""
        began = time.monotonic()
        try:
            async with self._turn:
                # Before any other has to go for it.
                configured = await model.entry.configure()
                await self._make_room(model, configured)
                log.info("loading %s", model.name)
                model.loaded = await configured.load(model.copies)
        except TesseraError as error:
            model.failure = LoadFailure(error, time.monotonic())
            model.num_failures += 1
            log.error("%s could not be loaded: %s", model.name, error.message)
        except Exception as error:
            model.failure = LoadFailure(TesseraError(str(error)), time.monotonic())
            model.num_failures += 1
            log.exception("%s could not be loaded", model.name)
        else:
            model.failure = None
            model.num_loads += 1
            model.last_used = time.monotonic()
            model.watching = asyncio.create_task(self._until_dead(model, model.loaded))
            log.info("%s is loaded after %.1f s", model.name, time.monotonic() - began)
        finally:
            model.loading = None

    async def _make_room(self, model: HostedModel, configured: ConfiguredModel) -> None:
        """Unloads others until this one has room. Raises MemoryBudgetError if it never has."""
        memory = self._rules.memory_bytes
        if memory is not None:
            model.num_bytes = await configured.plan()
            if model.num_bytes > memory:
                needs, has = show_bytes(model.num_bytes), show_bytes(memory)
                raise MemoryBudgetError(f"It needs {needs}, and --models-memory is {has}.")
        patience = time.monotonic() + PATIENCE_SECONDS
        while self._is_full(model, others := self._others(model)):
            others.sort(key=lambda other: other.last_used)
            idle = next((one for one in others if one.is_idle), None)
            if idle is not None:
                await self._unload(idle)
            elif time.monotonic() >= patience:
                await self._leave(others[0])
            else:
                await self._until_freed()

    async def _leave(self, model: HostedModel) -> None:
        """Unloads a model that is in use, once it has answered what it has begun."""
        model.leaving = True
        log.info("%s takes no new requests: others wait for its room", model.name)
        while model.num_uses or model.is_computing:
            await self._until_freed()
        await self._unload(model)

    async def _until_freed(self) -> None:
        self._freed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._freed.wait(), LOOK_SECONDS)

    def _others(self, model: HostedModel) -> list[HostedModel]:
        return [one for one in self.models.values() if one is not model and one.loaded is not None]

    def _is_full(self, model: HostedModel, others: Sequence[HostedModel]) -> bool:
        """Whether there is no room for it beside the others."""
        most, memory = self._rules.max_loaded, self._rules.memory_bytes
        if not others:
            return False
        too_many = most is not None and len(others) >= most
        too_large = memory is not None and sum(one.num_bytes for one in others) + model.num_bytes > memory
        return too_many or too_large

    # ---- unloading

    async def _unload(self, model: HostedModel) -> None:
        loaded, model.loaded, model.leaving = model.loaded, None, False
        if loaded is None:
            return
        if model.watching is not None and model.watching is not asyncio.current_task():
            await _cancel(model.watching)
        model.watching = None
        await loaded.close()
        log.info("%s is unloaded", model.name)

    async def _unload_idle(self) -> None:
        seconds = self._rules.idle_seconds
        while True:
            await asyncio.sleep(min(seconds, LOOK_SECONDS))
            async with self._turn:
                due = time.monotonic() - seconds
                for model in self.models.values():
                    if model.loaded is not None and model.is_idle and model.last_used <= due:
                        await self._unload(model)

    async def _until_dead(self, model: HostedModel, loaded: LoadedHost) -> None:
        """Its engine has died too often: the next request loads it anew."""
        await loaded.engine.wait_dead()
        log.error("%s is unloaded. %s", model.name, loaded.engine.health.error)
        if model.loaded is loaded:
            await self._unload(model)


def _check_failure(model: HostedModel) -> None:
    """Raises NotLoadedError for a while after a failure. Its cause, which may name files, is for the log alone."""
    if model.failure is None:
        return
    left = model.failure.at + RETRY_SECONDS - time.monotonic()
    if left > 0:
        message = f"The model `{model.name}` could not be loaded; the server's log says why."
        raise NotLoadedError(message, left)


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
