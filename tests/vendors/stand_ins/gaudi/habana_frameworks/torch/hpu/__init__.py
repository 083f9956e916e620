"""torch.hpu, over the compiled fakechip."""

from __future__ import annotations

import os
import sys

import torch
from torch_fakechip.module import *  # noqa: F403
from torch_fakechip.module import Graph, capturing, synchronize


def _lazy_init():
    """Torch calls it before it makes a tensor."""


def get_device_name(device=None):
    return os.environ.get("HABANA_STAND_IN", "GAUDI3")


class HPUGraph:
    def __init__(self):
        self.recorded = Graph()

    def capture_begin(self, dry_run=False):
        self.recorded.__enter__()

    def capture_end(self):
        self.recorded.__exit__()

    def replay(self, asynchronous=False):
        self.recorded.replay()
        if not asynchronous:
            synchronize()


def graph(hpu_graph, stream=None):
    return capturing(hpu_graph)


torch._register_device_module("hpu", sys.modules[__name__])
