"""Arguments of a hot call: on a device, with a stride, as they were, and by name for a dump."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_AROUND = 5  # elements beside each row


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Nested arguments or results with each tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: mapped(part, change) for name, part in value.items()}
    if isinstance(value, tuple):
        parts = [mapped(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def placed(value: Any, target: Any) -> Any:
    """On a device."""
    return mapped(value, lambda tensor: tensor if tensor.device == target else tensor.to(target))


def on_host(value: Any) -> Any:
    return placed(value, torch.device("cpu"))


def tensors_of(value: Any) -> list[Tensor]:
    """Those that stand among the arguments themselves, not inside a weight."""
    return [part for part in value if isinstance(part, Tensor)]


class Strided:
    """arguments: with each activation of these tokens a view into something wider, NaN beside its rows."""

    def __init__(self, arguments: tuple[Any, ...], tokens: int) -> None:
        self.tokens = tokens
        self._wider: list[Tensor] = []
        self.arguments = tuple(self._widened(part) for part in arguments)

    @property
    def any(self) -> bool:
        return bool(self._wider)

    @property
    def untouched(self) -> bool:
        """Nothing was written beside the rows."""
        return all(bool(part.isnan().all()) for wide in self._wider for part in self._beside(wide))

    def _widened(self, part: Any) -> Any:
        activation = isinstance(part, Tensor) and part.is_floating_point() and part.dim() > 1
        if not activation or len(part) != self.tokens:
            return part
        row = part[0].numel()
        wide = torch.full((self.tokens, row + 2 * _AROUND), torch.nan, dtype=part.dtype, device=part.device)
        self._wider.append(wide)
        view = wide[:, _AROUND : _AROUND + row].unflatten(1, part.shape[1:])
        return view.copy_(part)

    @staticmethod
    def _beside(wide: Tensor) -> tuple[Tensor, Tensor]:
        return wide[:, :_AROUND], wide[:, -_AROUND:]


def named(**values: Any) -> dict[str, Tensor]:
    """Nested values as dense tensors by dotted name, on the host, for a file."""
    found: dict[str, Tensor] = {}

    def collect(name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            dense = value.to_dense() if value.is_mkldnn else value
            found[name] = dense.detach().cpu().contiguous().clone()
        elif isinstance(value, Mapping):
            for key, part in value.items():
                collect(f"{name}.{key}", part)
        elif isinstance(value, tuple | list):
            for key, part in zip(getattr(value, "_fields", range(len(value))), value, strict=True):
                collect(f"{name}.{key}", part)

    for name, value in values.items():
        collect(name, value)
    return found
