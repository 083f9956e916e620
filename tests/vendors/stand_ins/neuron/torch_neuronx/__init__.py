"""Stands in for torch_neuronx: importing it registers the device, torch.neuron, the backend "neuron" of
torch.distributed and the one of torch.compile. Names and arguments are those of the published source; what is behind
them is plain torch on a made-up device. Nothing here is the vendor's."""

from __future__ import annotations

import os

os.environ["TORCH_FAKECHIP_NAME"] = "neuron"

from torch_neuronx import distributed, dynamo, neuron

__all__ = ["distributed", "dynamo", "neuron"]
