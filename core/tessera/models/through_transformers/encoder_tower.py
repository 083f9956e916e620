"""The encoder of an encoder-decoder, through transformers' code with this engine's matrix products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, PreTrainedModel

from tessera.layers.build import Build
from tessera.models.fields import Checkpoint, RefusedTypeError
from tessera.models.through_transformers.names import CheckpointNames
from tessera.models.through_transformers.skeleton import compute_buffers
from tessera.models.through_transformers.tower import exchange
from tessera.models.through_transformers.types import first_line
from tessera.ops.tensors import torch_dtype


class EncoderTower:
    """Makes what a decoder sees. hidden_size: of it, and of the decoder."""

    levels = 1

    def __init__(self, build: Build, checkpoint: Checkpoint) -> None:
        """Raises RefusedTypeError where transformers cannot make the type."""
        self.dtype, self.target = torch_dtype(build.dtype), build.device.target
        whole = _skeleton(checkpoint, self.dtype)
        names = CheckpointNames(whole, build.dtype, stored=() if build.stored is None else build.stored.names())
        self.encoder = whole.get_encoder()
        self.hidden_size = int(whole.config.hidden_size)
        for owner in (whole, whole.base_model):
            for name, module in list(owner.named_children()):
                if module not in (whole.base_model, self.encoder):
                    owner.register_module(name, None)
        _compute_positions(self.encoder)
        compute_buffers(whole)
        exchange(build, names, whole)

    def encode(self, modality: str, inputs: Mapping[str, Tensor]) -> Tensor:
        """modality: of what it reads. inputs: what the processor made of it, by name -> [positions, hidden_size]."""
        moved = {
            name: value.to(self.target, self.dtype if value.is_floating_point() else None)
            for name, value in inputs.items()
        }
        made: Tensor = self.encoder(**moved, return_dict=True).last_hidden_state
        return made[0]


def _compute_positions(encoder: nn.Module) -> None:
    """Leaves tables of positions, which checkpoints need not have, to what computes buffers."""
    module: Any
    for module in encoder.modules():
        if hasattr(module, "create_weight"):
            table = module.weight.detach()
            del module.weight
            module.register_buffer("weight", table, persistent=False)


def _skeleton(checkpoint: Checkpoint, dtype: torch.dtype) -> PreTrainedModel:
    """The whole model without weights."""
    architecture = str(checkpoint["architectures"][0])
    given = {name: value for name, value in checkpoint.items() if name not in ("auto_map", "dtype", "torch_dtype")}
    try:
        config = CONFIG_MAPPING[str(checkpoint["model_type"])].from_dict(given)
        with torch.device("meta"):
            model: PreTrainedModel = getattr(transformers, architecture)._from_config(config, dtype=dtype)
    except Exception as error:  # transformers' code may raise anything for what it does not support
        raise RefusedTypeError(f"its encoder cannot be made from config.json ({first_line(error)})") from error
    return model.eval().requires_grad_(False)
