"""RMS norms in a transformers module, computed by this engine's op. Each is of its own class there, and some scale by
one more than their weight, so they are told by what they compute."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from tessera.layers.build import Build
from tessera.models.through_transformers.names import CheckpointNames
from tessera.ops import NormSpec
from tessera.ops.norms import rms_norm
from tessera.ops.tensors import torch_dtype

_EPS = ("variance_epsilon", "eps")
"""What transformers' classes call what is added to the mean square."""
_OFFSETS = (0.0, 1.0)


class BoundNorm:
    """[.., n] -> [.., n]: called in place of a norm's own forward. weight: the module's, once it is loaded."""

    def __init__(self, build: Build, module: Any, spec: NormSpec) -> None:
        self.module, self.spec, self.dtype = module, spec, torch_dtype(spec.dtype)
        self.call = build.ops.bind("rms_norm", spec)

    def __call__(self, hidden_states: Tensor) -> Tensor:
        """A model's code may norm what it holds in float32."""
        x, weight = hidden_states, self.module.weight
        if x.dtype != self.dtype:
            return torch.as_tensor(rms_norm(self.spec, x, weight))
        normed: Tensor = self.call(x.reshape(-1, self.spec.n), weight)
        return normed.view(x.shape)


def bind_norms(build: Build, names: CheckpointNames, model: nn.Module) -> None:
    """Has the norms whose weight is in the model's dtype computed by the bound op."""
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.dtype == torch_dtype(build.dtype) and not names.keeps_float32(name):
            spec = computed_norm(module, build.dtype)
            if spec is not None:
                module.forward = BoundNorm(build, module, spec)


def computed_norm(module: nn.Module, dtype: str) -> NormSpec | None:
    """The RMS norm that a module computes; None for another module. module: its weight may be on the meta device."""
    weights = dict(module.named_parameters())
    eps = next((getattr(module, name) for name in _EPS if hasattr(module, name)), None)
    if [*weights] != ["weight"] or weights["weight"].dim() != 1 or not isinstance(eps, float):
        return None
    if len(inspect.signature(module.forward).parameters) != 1:
        return None
    n = len(weights["weight"])
    weight = torch.linspace(-1.5, 2.0, n)
    # The second row has squares that are small beside eps.
    x = torch.stack([torch.linspace(-3.0, 5.0, n), eps**0.5 * torch.linspace(-0.5, 0.3, n)])
    try:
        trial = copy.deepcopy(module).to_empty(device="cpu").float()
        trial.load_state_dict({"weight": weight})
        theirs = trial(x)
    except Exception:  # noqa: BLE001 - transformers' code may raise anything, and is served as it is then
        return None
    specs = [NormSpec(n, dtype, eps, offset) for offset in _OFFSETS]
    return next((spec for spec in specs if _equal(theirs, rms_norm(spec, x, weight))), None)


def _equal(theirs: Any, ours: Any) -> bool:
    return isinstance(theirs, Tensor) and theirs.shape == ours.shape and torch.allclose(theirs, ours, atol=1e-6)
