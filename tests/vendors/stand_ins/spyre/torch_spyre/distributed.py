"""The backend "spyreccl" of torch.distributed, whose library reads its ranks from the environment when it is loaded."""

from __future__ import annotations

import os

from torch.distributed import Backend
from torch_fakechip.functional import FunctionalGroup

_RANKS = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}


class SpyreGroup(FunctionalGroup):
    def __init__(self, store, rank, size, timeout):
        expected = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size}
        assert {name: str(value) for name, value in expected.items()} == _RANKS
        super().__init__(store, rank, size, timeout)

    def getBackendName(self):
        return "spyreccl"


Backend.register_backend("spyreccl", SpyreGroup, devices=["spyre"])
