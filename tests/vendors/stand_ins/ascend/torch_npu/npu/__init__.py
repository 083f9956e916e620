"""torch.npu, over the compiled fakechip."""

from __future__ import annotations

import sys

import torch
from torch_fakechip.module import *  # noqa: F403
from torch_fakechip.module import Graph, capturing


def get_device_name(device=None):
    return "Ascend910B1"


class NPUGraph:
    def __init__(self):
        self.recorded = Graph()

    def capture_begin(self, pool=None):
        self.recorded.__enter__()

    def capture_end(self):
        self.recorded.__exit__()

    def replay(self):
        self.recorded.replay()

    def pool(self):
        return "the pool"


def graph(npu_graph, pool=None, stream=None):
    assert pool in (None, "the pool")
    return capturing(npu_graph)


torch._register_device_module("npu", sys.modules[__name__])
