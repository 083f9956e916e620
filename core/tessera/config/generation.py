"""What a model's authors recommend for sampling: generation_config.json, and what an operator puts in its place."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tessera.config.checkpoint import read_json
from tessera.errors import ConfigError, ModelError, TesseraError

FILE = "generation_config.json"
MAX_OVERRIDE_CHARS = 2**16
_INT32 = 2**31 - 1


class _Field(NamedTuple):
    """name: in SamplingParams. low, high: of the values it takes, whole: whether they are integers."""

    name: str
    low: float
    high: float
    whole: bool = False


_FIELDS: Mapping[str, _Field] = MappingProxyType(
    {
        "temperature": _Field("temperature", 0, 1e6),
        "top_p": _Field("top_p", 1e-6, 1),
        "top_k": _Field("top_k", -1, _INT32, whole=True),
        "min_p": _Field("min_p", 0, 1),
        "repetition_penalty": _Field("repetition_penalty", 1e-6, 1e6),
        "max_new_tokens": _Field("max_tokens", 1, _INT32, whole=True),
    }
)


def generation_folder(source: str | None, model: Path) -> Path | None:
    """Whose generation_config.json holds; None: nobody's. source: --generation-config. Raises ConfigError."""
    if source in (None, "auto"):
        return model
    if source in ("none", "vllm"):
        return None
    folder = Path(str(source)).expanduser()
    if not (folder / FILE).is_file():
        raise ConfigError(
            f"generation_config must be auto, none or a folder with {FILE}, got '{str(source)[:80]}'.",
            param="generation_config",
        )
    return folder


def sampling_defaults(folder: Path | None, override: str | Mapping[str, Any] | None = None) -> dict[str, float | int]:
    """For requests that do not say, by the names of SamplingParams. override: JSON, or what is read from it, with the
    file's own names. Raises ModelError for the file, ConfigError for what overrides it."""
    path = None if folder is None else folder / FILE
    recommended = read_json(path) if path is not None and path.is_file() else {}
    values = _read({name: recommended.get(name) for name in _FIELDS}, f"in '{path}'", ModelError)
    return values | _read(_given(override), "in override_generation_config", ConfigError)


def _given(override: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    name = "override_generation_config"
    if override is None:
        return {}
    if isinstance(override, str):
        try:
            override = json.loads(override[:MAX_OVERRIDE_CHARS])
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{name} is not JSON: give it as '{{\"temperature\": 0.7}}'.", param=name) from error
    if not isinstance(override, Mapping):
        raise ConfigError(f"{name} must be a JSON object.", param=name)
    for field in override:
        if field not in _FIELDS:
            raise ConfigError(f"{name} has {str(field)[:40]!r}; it takes {', '.join(_FIELDS)}.", param=name)
    return override


def _read(given: Mapping[str, Any], where: str, error: type[TesseraError]) -> dict[str, float | int]:
    values: dict[str, float | int] = {}
    for name, value in given.items():
        if value is None:
            continue
        field = _FIELDS[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise error(f"{name} {where} is not a number.")
        if not field.low <= value <= field.high or (field.whole and value != int(value)):
            kind = "whole number" if field.whole else "number"
            raise error(f"{name} {where} must be a {kind} from {field.low:g} to {field.high:g}, got {value:g}.")
        values[field.name] = int(value) if field.whole else value
    return values
