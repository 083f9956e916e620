"""The backend "neuron" of torch.compile."""

from __future__ import annotations

from torch._dynamo import register_backend
from torch_fakechip import ahead

register_backend(ahead.backend(), "neuron")
