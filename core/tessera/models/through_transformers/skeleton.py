"""transformers' module without weights: parameters have shapes only, what its code computes by itself (rotary
frequencies, tables of positions) lies on the host."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tessera.models.refused import RefusedTypeError
from tessera.models.through_transformers.interfaces import NO_INTERFACE, REHEARSED, SERVED, register
from tessera.models.through_transformers.types import CausalType, first_line


def make_skeleton(kind: CausalType, dtype: torch.dtype) -> PreTrainedModel:
    """Raises RefusedTypeError where transformers cannot make it so."""
    register()
    kind.config.use_cache = False
    try:
        with torch.device("meta"):
            model = kind.model_class._from_config(
                kind.config, dtype=dtype, attn_implementation=REHEARSED, experts_implementation=SERVED
            )
        _check_rotary(model)
        _compute_buffers(model)
    except RefusedTypeError:
        raise
    except KeyError as error:
        if error.args == (REHEARSED,):  # it looks among attention classes of its own
            raise RefusedTypeError(NO_INTERFACE) from error
        raise RefusedTypeError(f"its module cannot be made from config.json ({error})") from error
    except Exception as error:  # transformers' code may raise anything for what it does not do
        raise RefusedTypeError(f"its module cannot be made from config.json ({first_line(error)})") from error
    return model.eval().requires_grad_(False)


def _check_rotary(model: PreTrainedModel) -> None:
    """transformers chooses these frequencies anew for the longest text of each batch."""
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        for kind in kinds.values() if isinstance(kinds, dict) else [kinds]:
            if kind == "longrope" or "dynamic" in str(kind):
                raise RefusedTypeError(f"its rotary scaling '{kind}' would depend on the batch")


def _compute_buffers(model: PreTrainedModel) -> None:
    """Buffers that no checkpoint holds, by the initialisation that transformers' own loading uses. What it leaves out
    is found by the poison."""
    for owner, name, module in _with_owner(model, model, ""):
        fresh = {key: buffer for key, buffer in module.named_buffers(recurse=False) if key in _unsaved(module)}
        for key, buffer in fresh.items():
            setattr(module, key, _poison(buffer))
        if fresh:
            owner._init_weights(module)
        for key in fresh:
            if bool(_poisoned(getattr(module, key)).any()):
                raise RefusedTypeError(f"'{name}.{key}' is in no checkpoint and transformers does not compute it")


def _with_owner(
    owner: PreTrainedModel, module: nn.Module, name: str
) -> Iterator[tuple[PreTrainedModel, str, nn.Module]]:
    """Every module, with the model whose initialisation it has."""
    yield owner, name, module
    for key, child in module.named_children():
        yield from _with_owner(
            child if isinstance(child, PreTrainedModel) else owner, child, f"{name}.{key}" if name else key
        )


def _unsaved(module: nn.Module) -> set[str]:
    return module._non_persistent_buffers_set


def _poison(buffer: Tensor) -> Tensor:
    value = torch.nan if buffer.is_floating_point() else torch.iinfo(buffer.dtype).min if _counts(buffer) else 0
    return torch.full(buffer.shape, value, dtype=buffer.dtype, device="cpu")


def _poisoned(buffer: Tensor) -> Tensor:
    if buffer.is_floating_point():
        return buffer.isnan()
    return buffer == torch.iinfo(buffer.dtype).min if _counts(buffer) else torch.zeros(1, dtype=torch.bool)


def _counts(buffer: Tensor) -> bool:
    return buffer.dtype in (torch.int32, torch.int64)
