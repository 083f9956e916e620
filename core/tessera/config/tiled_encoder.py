"""How many positions the tower of a model makes of an image, where the tokens of a text see them through cross
attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tessera.errors import ModelError

_TILED = ("MllamaForConditionalGeneration",)
_DEFAULTS: Mapping[str, int] = {"image_size": 448, "patch_size": 14, "max_num_tiles": 4}
_MAX_SIZES: Mapping[str, int] = {"image_size": 8192, "patch_size": 8192, "max_num_tiles": 64}
MOST_IMAGES = 4
"""Of a prompt, unless --limit-mm-per-prompt says otherwise: each has room in the cache as long as its request runs."""


@dataclass(frozen=True)
class TiledEncoder:
    """An image is cut into tiles, and filled up with empty ones to as many as there may be."""

    # Of an image, empty ones included.
    tiles: int
    # That it makes of a tile: one for each patch, and one.
    positions: int

    @property
    def length(self) -> int:
        """Of an image."""
        return self.tiles * self.positions


def tiled_encoder(config: Mapping[str, Any]) -> TiledEncoder | None:
    """config: of config.json. None of other types. Raises ModelError."""
    if str((config.get("architectures") or ["?"])[0]) not in _TILED:
        return None
    said = config.get("vision_config")
    vision = said if isinstance(said, Mapping) else {}
    size, patch, tiles = (_number(vision, name) for name in _DEFAULTS)
    return TiledEncoder(tiles, (size // patch) ** 2 + 1)


def _number(vision: Mapping[str, Any], name: str) -> int:
    value = vision.get(name, _DEFAULTS[name])
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        value = value[0]
    if type(value) is not int or not 1 <= value <= _MAX_SIZES[name]:
        raise ModelError(f"vision_config.{name} in config.json is not a number from 1 to {_MAX_SIZES[name]}.")
    return value
