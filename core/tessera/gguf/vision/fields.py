"""Reads the settings of a tower's file, whose author is not trusted."""

from __future__ import annotations

from typing import Any

from tessera.errors import ModelError, printable
from tessera.gguf.fields import GgufFields, fault
from tessera.gguf.file import GgufFile

ARCHITECTURE = "clip"
"""general.architecture of such files."""
_TYPE = ("projector_type", "vision.projector_type")
_LLAVA, _FIRST_TYPE = "has_llava_projector", "mlp"
"""What the oldest files have instead, and the type that it stands for."""


class TowerFields(GgufFields):
    """The settings of a tower, by their names below clip. Raises ModelError as GgufFields does, and for a file that has
    no tower."""

    def __init__(self, file: GgufFile) -> None:
        super().__init__(file.metadata)
        self.file = file
        if self.architecture != ARCHITECTURE:
            raise ModelError(
                f"'{printable(file.path)}' is not the file of a tower: its architecture is "
                f"'{printable(self.architecture, 60)}' and not '{ARCHITECTURE}'."
            )

    @property
    def projector(self) -> str:
        """What is behind the tower, which says what model it is of."""
        said = next((value for name in _TYPE if (value := self.get(name)) is not None), None)
        if said is None and self.get(_LLAVA) is True:
            return _FIRST_TYPE
        if not isinstance(said, str) or not said:
            raise ModelError(f"'{printable(self.file.path)}' does not say what its tower is: no {self.key(_TYPE[0])}.")
        return said

    def size(self, name: str, default: int | None = None) -> int:
        """A positive number of the tower for images."""
        return self.count(f"vision.{name}", default)

    def triple(self, name: str) -> list[float]:
        """A number for each color."""
        values = self.get(f"vision.{name}")
        numbers = values if isinstance(values, list) else []
        if len(numbers) != 3 or not all(isinstance(value, int | float) for value in numbers):
            raise ModelError(f"{self.key(f'vision.{name}')} of the GGUF file {fault(values)}.")
        return [float(value) for value in numbers]

    def layers(self, name: str) -> list[int]:
        """The numbers of the layers for which a list has true; [] without it."""
        values: Any = self.get(f"vision.{name}")
        return [number for number, value in enumerate(values) if value is True] if isinstance(values, list) else []

    def has(self, tensor: str) -> bool:
        return tensor in self.file.tensors

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Of a tensor. Raises ModelError if there is none."""
        if not self.has(tensor):
            raise ModelError(f"'{printable(self.file.path)}' has no '{tensor}', which its tower needs.")
        return self.file.tensors[tensor].shape
