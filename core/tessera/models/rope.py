"""Reads the rotary embedding of a config.json, in its old form (rope_theta, rope_scaling) or the new one
(rope_parameters)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tessera.errors import ModelError
from tessera.layers.rotary import (
    Dynamic,
    LinearScaling,
    Llama3,
    LongRope,
    Proportional,
    Rope,
    Scaling,
    Yarn,
    longrope_attention_factor,
    yarn_attention_factor,
)
from tessera.models.fields import ConfigFields

_PLACE = "of the rotary embedding"


class RopeReader:
    def __init__(
        self,
        fields: ConfigFields,  # config.json
        head_dim: int,
        max_model_len: int,  # decides between scalings that depend on the length
        *,
        partial: bool = False,  # whether only a part of each head may be rotated
        renamed: Mapping[str, str] | None = None,  # the family's names of kinds
    ) -> None:
        self.fields, self.head_dim, self.max_model_len = fields, head_dim, max_model_len
        self.partial, self.renamed = partial, renamed or {}
        self.kinds: Mapping[str, Callable[[ConfigFields], Scaling | None]] = {
            "default": lambda rope: None,
            "mrope": lambda rope: None,  # by place in an image too; the places of text are all one
            "linear": lambda rope: LinearScaling(_positive(rope, "factor")),
            "llama3": self._llama3,
            "yarn": self._yarn,
            "longrope": self._longrope,
            "dynamic": self._dynamic,
            "proportional": self._proportional,
        }

    def read(self) -> Rope:
        """The rotary embedding of all layers. Raises ModelError for an unsupported scaling or a missing number."""
        scaling = self.fields.table("rope_scaling")
        said = scaling if scaling.values else self.fields.table("rope_parameters")
        return self.read_rope(said, _positive(self.fields, "rope_theta", 10000.0, above=1.0))

    def read_rope(self, rope: ConfigFields, theta: float) -> Rope:
        """The rotary embedding that an object of config.json describes. theta: used if the object has none."""
        named = rope.get("rope_type") or rope.get("type") or "default"
        kind = self.renamed.get(str(named), str(named))
        if kind not in self.kinds:
            raise ModelError(f"rotary scaling '{kind[:40]}' is not supported; supported are {', '.join(self.kinds)}.")
        self.dim = self.head_dim if kind == "proportional" else self._dim(rope)
        return Rope(self.dim, _positive(rope, "rope_theta", theta, above=1.0), self.kinds[kind](rope))

    def _dim(self, rope: ConfigFields) -> int:
        share = _positive(rope, "partial_rotary_factor", _positive(self.fields, "partial_rotary_factor", 1.0))
        if share != 1.0 and not self.partial:
            raise ModelError("a partial_rotary_factor below 1 is not supported for this architecture.")
        dim = int(self.head_dim * share)
        if dim < 2 or dim % 2 or dim > self.head_dim:
            part = f"{dim} of {self.head_dim} elements of a head" if share != 1.0 else f"heads of {dim} elements"
            raise ModelError(f"{part} cannot be rotated: head_dim must be even, and so must what is rotated of it.")
        return dim

    def _original(self, rope: ConfigFields) -> float:
        """The context length of training, before the context was extended."""
        name = "original_max_position_embeddings"
        source = self.fields if self.fields.get(name) is not None else rope
        return _positive(source, name, _positive(self.fields, "max_position_embeddings", above=1.0), above=1.0)

    def _factor(self, rope: ConfigFields, original: float) -> float:
        """How many times longer the extended context is."""
        if rope.get("factor") is not None:
            return _positive(rope, "factor")
        return _positive(self.fields, "max_position_embeddings") / original

    def _llama3(self, rope: ConfigFields) -> Scaling:
        factor, low, high = (_positive(rope, name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
        return Llama3(factor, low, high, self._original(rope))

    def _yarn(self, rope: ConfigFields) -> Scaling:
        original = self._original(rope)
        factor = self._factor(rope, original)
        usual = yarn_attention_factor(factor, rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0))
        return Yarn(
            factor,
            original,
            attention_factor=_positive(rope, "attention_factor", usual),
            fast=_positive(rope, "beta_fast", 32.0),
            slow=_positive(rope, "beta_slow", 1.0),
            truncate=rope.flag("truncate", default=True),
        )

    def _longrope(self, rope: ConfigFields) -> Scaling:
        original = self._original(rope)
        name = "long_factor" if self.max_model_len > original else "short_factor"
        usual = longrope_attention_factor(self._factor(rope, original), original)
        usual = _positive(rope, "long_mscale" if name == "long_factor" else "short_mscale", usual)
        length, trained = f"max_model_len ({self.max_model_len})", f"the {original:.0f} tokens of training"
        relation = "exceeds" if name == "long_factor" else "is within"
        return LongRope(
            tuple(_factors(rope, name, self.dim // 2)),
            _positive(rope, "attention_factor", usual),
            f"rotary embedding: the {name}s of longrope for every request, since {length} {relation} {trained}",
        )

    def _dynamic(self, rope: ConfigFields) -> Scaling | None:
        original = _positive(self.fields, "max_position_embeddings")
        length = max(self.max_model_len, original)
        note = f"rotary embedding: dynamic scaling is fixed at {length:.0f} tokens (max_model_len) for every request"
        return Dynamic(_positive(rope, "factor"), original, length, note=note)

    def _proportional(self, rope: ConfigFields) -> Scaling:
        share = _positive(rope, "partial_rotary_factor", 1.0)
        if share > 1.0 or self.head_dim % 2:
            raise ModelError(
                f"partial_rotary_factor ({share:g}) of heads of {self.head_dim} elements cannot be rotated."
            )
        return Proportional(share, _positive(rope, "factor", 1.0))


AxisLayout = Callable[[Sequence[int], int], list[int]]
"""mrope_section, and the number of pairs -> the axis of each pair: 0 is time, 1 height, 2 width."""


def in_sections(sections: Sequence[int], pairs: int) -> list[int]:
    """One section behind the other: time, height, width, and again from the first. Qwen2-VL."""
    return [index % 3 for index, number in enumerate(sections) for _ in range(number)]


def interleaved(sections: Sequence[int], pairs: int) -> list[int]:
    """Pairs of height and width between those of time; what sections have beyond these counts for nothing. Qwen3-VL."""
    axes = [0] * pairs
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = [axis] * len(axes[axis : 3 * sections[axis] : 3])
    return axes


def time_last(sections: Sequence[int], pairs: int) -> list[int]:
    """Sections are of height, width and time: pairs of height and width in turn, and then those of time. ERNIE 4.5
    VL."""
    return [*[1, 2] * ((sections[0] + sections[1]) // 2), *[0] * sections[2]]


def by_axis(fields: ConfigFields, rope: Rope, sections: Sequence[int], layout: AxisLayout = in_sections) -> Rope:
    """The same with an axis for each pair, as mrope_section says. sections: the family's, if it is omitted. Raises
    ModelError."""
    said = fields.table("rope_scaling").get("mrope_section") or fields.table("rope_parameters").get("mrope_section")
    said, half = said or list(sections), rope.dim // 2
    numbers = isinstance(said, list) and all(type(number) is int and 0 <= number <= 4096 for number in said)
    if not numbers or len(said) < 3 or len(axes := layout(said, half)) != half:
        raise ModelError(f"mrope_section {_PLACE} in config.json is not a list of at least 3 numbers, {half} together.")
    return replace(rope, axes=tuple(axes))


def _positive(fields: ConfigFields, name: str, default: float | None = None, *, above: float = 0.0) -> float:
    value = fields.get(name)
    if value is None and default is not None:
        return default
    if not _is_positive(value) or value <= above:
        fault = "is missing" if value is None else "is not a positive number that it can have"
        raise ModelError(f"{name} {_PLACE} {fault} in config.json.")
    return float(value)


def _factors(rope: ConfigFields, name: str, count: int) -> Sequence[float]:
    values = rope.get(name)
    if not isinstance(values, list) or len(values) != count or not all(_is_positive(value) for value in values):
        raise ModelError(f"{name} {_PLACE} in config.json is not a list of {count} positive numbers.")
    return [float(value) for value in values]


def _is_positive(value: object) -> bool:
    """A positive number small enough, and large enough, to compute with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 1e-9 < value < 1e15
