"""Where weights come from: the safetensors files of a folder, or nowhere (random ones)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tessera.errors import ModelError
from tessera.layers.weights import Part


class Source(Protocol):
    """Reads a part of a tensor, in the checkpoint's dtype, on the host. dtype: that most of it has."""

    dtype: str

    def read(self, part: Part) -> Tensor: ...


class Safetensors:
    """The *.safetensors files of a folder, mapped, so that a shard reads only its own bytes. Raises ModelError in one
    line for what is missing or broken."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self._files: dict[Path, Any] = {}
        self._where = self._index()
        self.dtype = self._most_common_dtype()

    def names(self) -> Iterator[str]:
        return iter(self._where)

    def whole(self, name: str) -> Tensor:
        """A whole tensor by its name."""
        tensor: Tensor = self._open(self._where[name]).get_tensor(name)
        return tensor

    def read(self, part: Part) -> Tensor:
        if part.name not in self._where:
            raise ModelError(
                f"the weights lack '{part.name}', which this architecture needs; "
                "the folder's files and config.json do not belong together."
            )
        view = self._open(self._where[part.name]).get_slice(part.name)
        if part.columns is not None:
            tensor = view[_slice(part.rows), _slice(part.columns)]
        else:
            tensor = view[_slice(part.rows)]
        if part.rows is None and tuple(tensor.shape) != part.shape:
            raise ModelError(f"'{part.name}' has shape {tuple(tensor.shape)} where config.json says {part.shape}.")
        result: Tensor = tensor
        return result

    def _open(self, file: Path) -> Any:
        if file not in self._files:
            try:
                self._files[file] = safe_open(file, framework="pt", device="cpu")
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{file.name} cannot be read ({_first_line(error)}); download it again.") from None
        return self._files[file]

    def _index(self) -> dict[str, Path]:
        index = self.folder / "model.safetensors.index.json"
        if index.is_file():
            try:
                named = json.loads(index.read_text())["weight_map"]
                where = {str(name): self.folder / Path(file).name for name, file in named.items()}
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                raise ModelError(f"{index.name} is not a safetensors index ({_first_line(error)}).") from None
            for file in sorted(set(where.values())):
                if not file.is_file():
                    raise ModelError(f"{index.name} names {file.name}, which is not there; download it again.")
            return where
        files = sorted(self.folder.glob("*.safetensors"))
        if not files:
            raise ModelError(
                f"no *.safetensors in {self.folder}; other formats are not read "
                "(give --load-format dummy for random weights)."
            )
        return {name: file for file in files for name in self._open(file).keys()}  # noqa: SIM118 - not a dict

    def _most_common_dtype(self) -> str:
        names = [name for name in self._where if name.endswith("weight")] or list(self._where)
        kind = self._open(self._where[names[0]]).get_slice(names[0]).get_dtype()
        return {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}.get(kind, "float32")


class Dummy:
    """Random weights of the right shapes, the same for the same seed; a tensor's values depend on its name and part
    alone."""

    dtype = "bfloat16"

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def read(self, part: Part) -> Tensor:
        if part.fill is not None:
            return torch.full(part.shape, part.fill)
        generator = torch.Generator().manual_seed(self.seed + sum(map(ord, part.name)) + (part.rows or (0,))[0])
        spread = 1.0 / math.sqrt(part.shape[-1])
        return torch.empty(part.shape, dtype=torch.bfloat16).uniform_(-spread, spread, generator=generator)


def _slice(bounds: tuple[int, int] | None) -> slice:
    return slice(None) if bounds is None else slice(*bounds)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
