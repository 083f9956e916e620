"""The backend "neuron" of torch.distributed, which starts the runtime and refuses to come after it."""

from __future__ import annotations

import os

from torch.distributed import Backend
from torch_fakechip.functional import FunctionalGroup

from torch_neuronx import runtime


class NeuronGroup(FunctionalGroup):
    groups = 0

    def __init__(self, store, rank, size, timeout):
        if NeuronGroup.groups == 0:
            assert not runtime.started.is_set(), "the runtime must not start before the group of all workers"
            assert os.environ["LOCAL_RANK"] == str(rank)
            assert os.environ["LOCAL_WORLD_SIZE"] == str(size)
            runtime.started.set()
        NeuronGroup.groups += 1
        super().__init__(store, rank, size, timeout)

    def getBackendName(self):
        return "neuron"


Backend.register_backend("neuron", NeuronGroup, devices=["neuron"])
