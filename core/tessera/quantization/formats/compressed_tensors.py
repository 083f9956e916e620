"""The format compressed-tensors, which llm-compressor writes: int8, int4 packed into int32, and fp8.

quantization_config has groups of modules, each with how its weights and activations are quantized. A weight
"NAME.weight" [n, k] of a group is stored as
- weight, int8 or fp8 [n, k]; or weight_packed, int32 [n, k / 8] (/ 4 in 8 bits), the first element in the lowest bits,
  8 (128) added to each;
- weight_scale: [1], [n, 1] or [n, k / group_size];
- weight_zero_point, if packed and not symmetric: int32 [n / 8, k / group_size], packed along n;
- input_scale [1], if activations are static.
weight_shape, [n, k], says nothing that config.json does not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tessera.config.model_folder import shown
from tessera.errors import ModelError
from tessera.platform.device import Reason, Tensor
from tessera.platform.quantization import ActSpec, Part, QuantSpec, Scheme, StoredWeight, TensorSpec, Unpacking

_WORD = 32  # bits of an int32, which packed weights are stored in
_MOST_GROUP = 1 << 20
_LONGEST_PATTERN = 1000
_SECONDS = 0.2  # of a processor, to match one pattern with one name

_FORMATS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "int-quantized": ("int",),
        "float-quantized": ("float",),
        "naive-quantized": ("int", "float"),
        "pack-quantized": ("int",),
    }
)
"""The types of weights that each can have."""

_MIXED = "mixed-precision"  # each group names its own


def compressed_tensors(said: Mapping[str, Any]) -> CompressedTensors:
    """said: quantization_config. Raises ModelError, naming the field, for what is not supported."""
    return CompressedTensors(_Fields("quantization_config", said))


class _Fields:
    """An object of config.json that a model's author wrote, and its place there."""

    def __init__(self, where: str, said: object) -> None:
        if not isinstance(said, Mapping):
            raise ModelError(f"{where} in config.json is not an object.")
        self.where, self.said = where, said

    def get(self, name: str, default: Any = None) -> Any:
        value = self.said.get(name)
        return default if value is None else value

    def table(self, name: str) -> _Fields:
        return _Fields(f"{self.where}.{name}", self.said.get(name))

    def one_of(self, name: str, supported: Sequence[Any], default: Any = None) -> Any:
        value = self.get(name, default)
        if not any(value is one or (type(value) is type(one) and value == one) for one in supported):
            raise self.refused(name, f"it can be {', '.join(json.dumps(one) for one in supported)}", value)
        return value

    def refused(self, name: str, why: str, value: Any) -> ModelError:
        said = shown(json.dumps(value), 60)
        return ModelError(f"{self.where}.{name} in config.json is {said}, which is not supported; {why}.")

    def absent(self, *names: str) -> None:
        for name in names:
            if self.get(name):
                raise ModelError(f"{self.where}.{name} in config.json is not supported; use a model without it.")

    def targets(self, name: str) -> _Targets:
        value = self.get(name, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ModelError(f"{self.where}.{name} in config.json is not a list of strings.")
        return _Targets(f"{self.where}.{name}", value)


class _Targets:
    """Modules by their names, by patterns ("re:") that the beginning of a name matches, or by their class. where: they
    stand."""

    def __init__(self, where: str, texts: Sequence[str]) -> None:
        self._where = where
        self.names = frozenset(text for text in texts if not text.startswith("re:"))
        self._patterns = [self._compiled(text.removeprefix("re:")) for text in texts if text.startswith("re:")]

    def rank(self, name: str, module: str) -> int | None:
        """How closely a module of a class is named: 0 by its name, 1 by a pattern, 2 by its class; None if it is
        not."""
        if name in self.names:
            return 0
        if any(self._matches(pattern, name) for pattern in self._patterns):
            return 1
        return 2 if module in self.names else None

    def _compiled(self, pattern: str) -> Any:
        # It can be stopped, which re cannot, and whoever wrote the pattern is not trusted.
        import regex  # type: ignore[import-untyped]  # it has no stubs of its own

        if len(pattern) <= _LONGEST_PATTERN:
            try:
                return regex.compile(pattern)
            except (regex.error, RecursionError, OverflowError):
                pass
        raise ModelError(f"{self._where} in config.json has a pattern that cannot be used: {shown(pattern, 60)}.")

    def _matches(self, pattern: Any, name: str) -> bool:
        try:
            return pattern.match(name, timeout=_SECONDS) is not None
        except TimeoutError:
            raise ModelError(
                f"{self._where} in config.json has a pattern that takes too long to match: "
                f"{shown(pattern.pattern, 60)}."
            ) from None


@dataclass(frozen=True)
class _Group:
    """Modules whose weights are stored in one way. bits, float, symmetric: of a number. size: of a group of inputs with
    one scale; 0: a scale for each output, -1: one for all. packed: into int32. activation: as a Scheme has it."""

    where: str
    targets: _Targets
    bits: int
    float: bool
    symmetric: bool
    size: int
    packed: bool
    activation: ActSpec | None


class CompressedTensors:
    """A WeightFormat."""

    def __init__(self, said: _Fields) -> None:
        said.absent("kv_cache_scheme", "transform_config", "moe_sparsity_config")
        if (sparsity := said.get("sparsity_config")) is not None:
            _Fields(f"{said.where}.sparsity_config", sparsity).one_of("format", ("dense",), "dense")
        form = said.one_of("format", (*_FORMATS, _MIXED))
        groups = said.table("config_groups")
        self._ignore = said.targets("ignore")
        self._groups = [_group(groups.table(str(name)), form) for name in groups.said]
        if not self._groups:
            raise ModelError(f"{groups.where} in config.json has no group.")

    def stored(self, weight: Part, module: str, dtype: str) -> StoredWeight | Reason:
        name = weight.name.removesuffix(".weight")
        if self._ignore.rank(name, module) is not None:
            return "the checkpoint leaves it as it is (quantization_config.ignore)"
        ranked = [
            (rank, number)
            for number, group in enumerate(self._groups)
            if (rank := group.targets.rank(name, module)) is not None
        ]
        if not ranked:
            return "the checkpoint leaves it as it is (no targets of quantization_config.config_groups name it)"
        group = self._groups[min(ranked)[1]]
        return _Stored(group, weight, name, dtype).weight()


# ---- quantization_config, read and checked


def _group(said: _Fields, form: str) -> _Group:
    own = said.one_of("format", tuple(_FORMATS), None if form == _MIXED else form)
    said.absent("output_activations")
    weights, packed = said.table("weights"), own == "pack-quantized"
    kind = weights.one_of("type", _FORMATS[own], "int")
    weights.one_of("dynamic", (False,), False)
    if weights.get("actorder") in ("group", "dynamic", True):
        why = "groups of columns in another order (g_idx) are not supported"
        raise weights.refused("actorder", why, weights.get("actorder"))
    weights.one_of("actorder", (None, False, "weight", "static"))
    bits = weights.one_of("num_bits", (4, 8) if packed else (8,), 8)
    symmetric = weights.one_of("symmetric", (True, False) if packed else (True,), True)
    targets = said.targets("targets")
    if other := next((one for one in sorted(targets.names) if one[:1].isupper() and one != "Linear"), None):
        raise said.refused("targets", "of classes only Linear is", other)
    activation = None if said.get("input_activations") is None else _activation(said.table("input_activations"))
    return _Group(said.where, targets, bits, kind == "float", symmetric, _size(weights, packed), packed, activation)


def _size(weights: _Fields, packed: bool) -> int:
    size = weights.get("group_size")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not -1 <= size <= _MOST_GROUP):
        raise weights.refused("group_size", f"a group has 1 to {_MOST_GROUP} inputs", size)
    inferred = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy = weights.one_of("strategy", ("channel", "group") if packed else ("channel", "tensor"), inferred)
    if strategy != "group":
        return -1 if strategy == "tensor" else 0
    if size is None or size < 1:
        raise weights.refused("group_size", f"a group has 1 to {_MOST_GROUP} inputs", size)
    return size


def _activation(said: _Fields) -> ActSpec:
    said.one_of("num_bits", (8,), 8)
    said.one_of("symmetric", (True,), True)
    kind = "fp8_e4m3" if said.one_of("type", ("int", "float"), "int") == "float" else "int8"
    if said.one_of("dynamic", (True, False), False):
        said.one_of("strategy", ("token",), "tensor")
        return ActSpec(kind, granularity="token")
    said.one_of("strategy", ("tensor",), "tensor")
    return ActSpec(kind, granularity="tensor", static=True)


# ---- one weight


class _Stored:
    """A shard of a weight [n, k] of a group: inputs first to last. group: of inputs that share a scale, small enough to
    divide the shard; 0: a scale an output."""

    def __init__(self, said: _Group, weight: Part, name: str, dtype: str) -> None:
        self.said, self.part, self.name, self.dtype = said, weight, name, dtype
        (self.n, self.k), (self.rows, self.width) = weight.whole, weight.shape
        self.first, self.last = weight.columns or (0, self.k)
        self.size = said.size or (self.k if said.bits == 4 or not said.symmetric else 0)
        if self.size > 0 and self.k % self.size:
            raise ModelError(
                f"{said.where}.weights.group_size ({self.size}) does not divide the {self.k} inputs of '{name}'."
            )
        self.group = math.gcd(self.size, self.first, self.width) if self.size > 0 else 0
        if said.bits == 4 and self.group % 2:
            raise ModelError(
                f"'{name}' cannot be split into shards of {self.width} inputs: a group of them that shares a 4-bit "
                f"scale would have an odd number ({self.group}); use another --tensor-parallel-size."
            )

    def weight(self) -> StoredWeight:
        said, group = self.said, self.group
        kind = "fp8_e4m3" if said.float else f"int{said.bits}"
        scale = self.dtype if group else "float32"
        spec = QuantSpec(kind, "group" if group else "channel", group, said.symmetric, scale)
        element = TensorSpec("float8_e4m3fn" if said.float else "int8", (1, 1))
        shapes = {
            "weight": TensorSpec("uint8", (1, 2)) if said.bits == 4 else element,
            "scale": TensorSpec(scale, (1, group) if group else (1,)),
        }
        parts = {"weight": self._packed() if said.packed else self._elements(), "scale": self._scale(scale)}
        if not said.symmetric:
            shapes["zero_point"], parts["zero_point"] = TensorSpec("int8", (1, group)), self._zero_points()
        if said.activation is not None and said.activation.static:
            shapes["input_scale"] = TensorSpec("float32")
            alone = Unpacking(lambda scale: scale, 1)
            parts["input_scale"] = self._read("input_scale", (1,), None, None, "float32", unpacking=alone, fill=1 / 32)
        return StoredWeight(Scheme(spec, said.activation, parts=shapes), parts)

    def _read(
        self,
        suffix: str,
        whole: tuple[int, ...],
        rows: tuple[int, int] | None,
        columns: tuple[int, int] | None,
        dtype: str,
        *,
        unpacking: Unpacking | None = None,
        fill: float | None = None,
    ) -> Part:
        also = tuple(f"{name.removesuffix('.weight')}.{suffix}" for name in self.part.also)
        return Part(f"{self.name}.{suffix}", whole, rows, columns, fill, also, dtype, unpacking)

    def _elements(self) -> Part:
        dtype = "float8_e4m3fn" if self.said.float else "int8"
        return self._read("weight", self.part.whole, self.part.rows, self.part.columns, dtype)

    def _packed(self) -> Part:
        """As bytes, which are in int32 in the order of their elements: for 4 bits that is how a scheme has them."""
        each, bits = _WORD // self.said.bits, self.said.bits
        columns = None if self.part.columns is None else (self.first // each, -(-self.last // each))
        begin, count = self.first % each * bits // 8, self.width * bits // 8

        def call(words: Tensor) -> Tensor:
            import torch

            some = words.view(torch.uint8)[:, begin : begin + count]
            return some if bits == 4 else (some ^ 128).view(torch.int8)

        unpacking = Unpacking(call, self.rows, self.rows * self.width)
        whole = self.n, -(-self.k // each)
        return self._read("weight_packed", whole, self.part.rows, columns, "int32", unpacking=unpacking)

    def _scale(self, dtype: str) -> Part:
        fill = 1 / (self._limit() * math.sqrt(self.k))
        if self.size < 0:
            alike = Unpacking(lambda one: one.expand(self.rows), self.rows)
            return self._read("weight_scale", (1,), None, None, dtype, unpacking=alike, fill=fill)
        if not self.group:
            flat = Unpacking(lambda scale: scale[:, 0], self.rows)
            return self._read("weight_scale", (self.n, 1), self.part.rows, None, dtype, unpacking=flat, fill=fill)
        columns, of_shard = self._groups()
        unpacking = Unpacking(of_shard, self.rows)
        whole = self.n, self.k // self.size
        return self._read("weight_scale", whole, self.part.rows, columns, dtype, unpacking=unpacking, fill=fill)

    def _groups(self) -> tuple[tuple[int, int], Callable[[Tensor], Tensor]]:
        """The stored groups that the shard has a part of; and what each of its own groups has of them: [rows, stored
        groups] -> [rows, width / group]."""
        columns = self.first // self.size, -(-self.last // self.size)
        begin, count = self.first % self.size // self.group, self.width // self.group

        def call(stored: Tensor) -> Tensor:
            return stored.repeat_interleave(self.size // self.group, dim=1)[:, begin : begin + count]

        return columns, call

    def _zero_points(self) -> Part:
        """Packed along the outputs."""
        bits, each = self.said.bits, _WORD // self.said.bits
        first, last = self.part.rows or (0, self.n)
        columns, of_shard = self._groups()

        def call(words: Tensor) -> Tensor:
            import torch

            shifts = torch.arange(0, _WORD, bits, dtype=torch.int32, device=words.device)
            apart = (words[:, None, :] >> shifts[:, None]) & ((1 << bits) - 1)
            some = apart.flatten(0, 1)[first % each :][: self.rows] - (1 << bits - 1)
            return of_shard(some.to(torch.int8))

        unpacking = Unpacking(call, self.rows)
        whole, rows = (-(-self.n // each), self.k // self.size), (first // each, -(-last // each))
        return self._read("weight_zero_point", whole, rows, columns, "int32", unpacking=unpacking)

    def _limit(self) -> float:
        """About the largest of a weight's numbers."""
        return 448.0 if self.said.float else float(1 << self.said.bits - 1)
