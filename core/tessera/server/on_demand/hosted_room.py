"""The room for batches in a server of several models."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

from tessera.errors import NotFoundError
from tessera.server.access import Counts
from tessera.server.batches.input_file import named_model
from tessera.server.batches.protocol import RequestLine
from tessera.server.batches.runner import PAUSE_SECONDS, POLL_SECONDS, IdleRoom, Room
from tessera.server.key_file import KeyFile
from tessera.server.on_demand.hosted_model import HostedModel
from tessera.server.on_demand.hosted_models import HostedModels, NotLoadedError


class HostedRoom(Room):
    """The room that other requests leave in the model that a request names. That is loaded only in place of models that
    nobody has used for a while: a batch takes none from anyone."""

    def __init__(
        self, models: HostedModels, counts: Counts, stores: Callable[[], bool], keys: KeyFile | None = None
    ) -> None:
        """stores: whether there is room for results. keys: with the models that a tenant may use."""
        self._models = models
        self._counts = counts
        self._stores = stores
        self._keys = keys
        # By model: who waits for one holds up nobody who waits for another.
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def take(self, line: RequestLine, tenant: str) -> None:
        name = named_model(line)
        try:
            model = self._models.find(name)
        except NotFoundError:
            return
        key = None if self._keys is None else self._keys.of_tenant(tenant)
        if key is not None and not key.allows(name or model.name):
            return
        async with self._turns[model.name]:
            await asyncio.sleep(0)  # the request that was let in before now counts as generating
            while not await self._is_free(model):  # noqa: ASYNC110 - neither engines nor users tell when they are done
                await asyncio.sleep(POLL_SECONDS)

    @property
    def is_lost(self) -> bool:
        """A model whose engine has ended is loaded anew, unless the server ends."""
        return self._models.is_closed

    async def _is_free(self, model: HostedModel) -> bool:
        if self.is_lost or not self._stores() or not self._models.has_quiet_room(model):
            return False
        try:
            async with self._models.use(model) as loaded:
                return IdleRoom(loaded.engine, self._counts, self._stores).is_free()
        except NotLoadedError:
            await asyncio.sleep(PAUSE_SECONDS)  # so that it may be tried again before all of a batch has failed
            return True
