"""The encoder of an encoder-decoder, through transformers' code with this engine's matrix products."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, PreTrainedModel

from tessera.layers.build import Build
from tessera.models.fields import Checkpoint, RefusedTypeError
from tessera.models.through_transformers.names import CheckpointNames
from tessera.models.through_transformers.partial_encoding import WorkMeter
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
        self.hidden_size = int(whole.config.get_text_config().hidden_size)
        # What the decoder does to all that the encoder made, before its blocks.
        self._behind = _BEHIND.get(str(checkpoint["architectures"][0]), {})
        self._decoder = whole.base_model.decoder if self._behind else None
        for owner in (whole, whole.base_model):
            _remove(owner, lambda _, module: module not in (whole.base_model, self.encoder, self._decoder))
        if self._decoder is not None:
            _remove(self._decoder, lambda name, _: name not in self._behind)
        _compute_positions(self.encoder)
        compute_buffers(whole)
        exchange(build, names, whole)
        self.meter = WorkMeter(whole)

    def encode(self, modality: str, inputs: Mapping[str, Tensor]) -> Tensor:
        """modality: of what it reads. inputs: what the processor made of it, by name -> [positions, hidden_size]."""
        moved = {
            name: value.to(self.target, self.dtype if value.is_floating_point() else None)
            for name, value in inputs.items()
        }
        made: Tensor = self.encoder(**moved, return_dict=True).last_hidden_state[0]
        for name, call in self._behind.items():
            made = call(getattr(self._decoder, name), made)
        return made


def _remove(owner: nn.Module, leaves_out: Callable[[str, nn.Module], bool]) -> None:
    for name, module in list(owner.named_children()):
        if leaves_out(name, module):
            owner.register_module(name, None)


def _with_positions(table: Any, states: Tensor) -> Tensor:
    """table: an embedding of positions."""
    added: Tensor = states + table(torch.arange(len(states), device=states.device))
    return added


def _called(module: Any, states: Tensor) -> Tensor:
    made: Tensor = module(states)
    return made


_BEHIND: Mapping[str, Mapping[str, Callable[[Any, Tensor], Tensor]]] = MappingProxyType(
    {
        "CohereAsrForConditionalGeneration": {"proj": _called},
        "MoonshineStreamingForConditionalGeneration": {"pos_emb": _with_positions, "proj": _called},
    }
)
"""By architecture: modules of the decoder, in order, and how each is called with [positions, size] states."""


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
