"""The rotary embedding of a GGUF file, in the words of config.json."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.errors import ModelError
from tessera.gguf.fields import GgufFields
from tessera.gguf.file import GgufFile
from tessera.gguf.tensors import Floats, read_values

_FREQUENCIES = "rope_freqs.weight"
_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = (_FREQUENCIES, _LONG, _SHORT)

_STILL = np.float32(1e30)
"""The factor of a wavelength that does not turn."""

_LLAMA3 = (1.0, 4.0, 8192)
"""low_freq_factor, high_freq_factor and original_max_position_embeddings of Llama 3.1 and its descendants."""


def rope_settings(fields: GgufFields, file: GgufFile) -> dict[str, Any]:
    """rope_theta, and rope_scaling if there is one. Raises ModelError for a scaling that is not known."""
    theta = fields.number("rope.freq_base", 10000.0)
    settings: dict[str, Any] = {"rope_theta": theta, **_partial(fields)}
    kind = fields.get("rope.scaling.type")
    if _FREQUENCIES in file.tensors:
        return settings | {"rope_scaling": _by_factors(_factors(file, _FREQUENCIES), theta, fields)}
    if _LONG in file.tensors:
        original = fields.count("rope.scaling.original_context_length")
        scaling = {
            "rope_type": "longrope",
            "short_factor": _factors(file, _SHORT),
            "long_factor": _factors(file, _LONG),
        }
        if (attention := fields.get("rope.scaling.attn_factor")) is not None:
            scaling["attention_factor"] = attention
        return settings | {"rope_scaling": scaling, "original_max_position_embeddings": original}
    if kind in (None, "none"):
        return settings
    if kind == "linear":
        return settings | {"rope_scaling": {"rope_type": "linear", "factor": fields.number("rope.scaling.factor")}}
    if kind == "yarn":
        return settings | {"rope_scaling": _yarn(fields)}
    raise ModelError(f"rotary scaling '{str(kind)[:40]}' of the GGUF file is not supported.")


def proportional(fields: GgufFields, file: GgufFile) -> dict[str, Any]:
    """rope_parameters where only the first pairs of a head are turned, by the angles that they have among all pairs.
    The file's factors of the others are so large that they stand still. Raises ModelError."""
    settings = {"rope_type": "proportional", "rope_theta": fields.number("rope.freq_base", 10000.0)}
    factors = _factors(file, _FREQUENCIES) if _FREQUENCIES in file.tensors else [1.0]
    turned = factors.count(1.0)
    if not all(factor in (1.0, _STILL) for factor in np.array(factors, np.float32)) or 1.0 in factors[turned:]:
        raise ModelError(f"'{_FREQUENCIES}' of the GGUF file has other factors than models of its architecture have.")
    # Half an element more, as the product with the width is rounded down.
    return settings | {"partial_rotary_factor": (turned + 0.25) / len(factors)}


def _partial(fields: GgufFields) -> dict[str, Any]:
    """Where only a part of each head is rotated."""
    width = fields.count(
        "attention.key_length", fields.count("embedding_length") // fields.count("attention.head_count")
    )
    rotated = fields.count("rope.dimension_count", width)
    # Half an element more, as the product with the width is rounded down.
    return {} if rotated == width else {"partial_rotary_factor": (rotated + 0.5) / width}


def _yarn(fields: GgufFields) -> dict[str, Any]:
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": fields.number("rope.scaling.factor"),
        "original_max_position_embeddings": fields.count("rope.scaling.original_context_length"),
    }
    for name, key in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
        if fields.get(f"rope.scaling.{key}") is not None:
            scaling[name] = fields.number(f"rope.scaling.{key}")
    return scaling


def _factors(file: GgufFile, name: str) -> list[float]:
    """A tensor of factors, one for each wavelength."""
    if name not in file.tensors:
        raise ModelError(f"the GGUF file has no '{name}', which its rotary embedding needs.")
    values = [float(value) for value in read_values(file, file.tensors[name]).ravel()]
    if not all(math.isfinite(value) and value > 0 for value in values):
        raise ModelError(f"'{name}' of the GGUF file has factors that are not positive numbers.")
    return values


def _by_factors(factors: Sequence[float], theta: float, fields: GgufFields) -> dict[str, Any]:
    """Llama 3's scaling, which converters write as the factor of each wavelength: in its own words if they are its own,
    and else with these factors for every length."""
    low, high, original = _LLAMA3
    factor = max(factors)
    usual = llama3_factors(len(factors), theta, factor)
    if np.allclose(usual, factors, rtol=1e-5):
        return {
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": original,
        }  # fmt: skip
    return {
        "rope_type": "longrope", "short_factor": list(factors), "long_factor": list(factors), "attention_factor": 1.0,
        "original_max_position_embeddings": fields.count("context_length"),
    }  # fmt: skip


def llama3_factors(count: int, theta: float, factor: float) -> Floats:
    low, high, original = _LLAMA3
    wavelengths = 2 * math.pi * theta ** (np.arange(count) / count)
    smooth = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1 - smooth) / factor + smooth)
