"""What quantization_config of compressed-tensors says of a group of modules: which they are, and how their weights are
stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tessera.platform.quantization import ActSpec
from tessera.quantization.formats.fields import Fields
from tessera.quantization.formats.patterns import NamePatterns

MAX_GROUP_SIZE = 1 << 20
FP4_GROUPS: Mapping[str, int] = MappingProxyType({"nvfp4-pack-quantized": 16, "mxfp4-pack-quantized": 32})
"""The formats of 4-bit floats, and the inputs that share a scale."""
PACKED = "pack-quantized"
MXFP8 = "mxfp8-quantized"
MIXED = "mixed-precision"
"""Each group names its own format."""

_INTS = (2, 3, 4, 5, 6, 7, 8)
_SPREAD = ("channel", "tensor", "group", "block")
_FORMATS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType(
    {
        "int-quantized": (("int",), _SPREAD),
        "float-quantized": (("float",), _SPREAD),
        "naive-quantized": (("int", "float"), _SPREAD),
        PACKED: (("int",), ("channel", "group")),
        "nvfp4-pack-quantized": (("float",), ("tensor_group",)),
        "mxfp4-pack-quantized": (("float",), ("group",)),
        MXFP8: (("float",), ("group",)),
    }
)
"""The types of weights, and the strategies, that each value of `format` allows."""
FORMATS = (*_FORMATS, MIXED)
"""What the whole config may name."""

_ACTIVATIONS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "num_bits": (8, 4, 6),
        "type": ("int", "float"),
        "symmetric": (True, False),
        "dynamic": (False, True, "local"),
        "strategy": ("tensor", "token", "group", "tensor_group", "channel", "block"),
    }
)
"""What may be said of activations; the first value is what holds if nothing is."""


class Targets:
    """A list of modules: by name, by a pattern ("re:...") that matches the beginning of the name, or by class. Some
    files name the linear layer within a module, "NAME.linear", where others name the module."""

    def __init__(self, where: str, targets: Sequence[str], patterns: NamePatterns) -> None:
        self._where, self._patterns = where, patterns
        self.names = frozenset(target for target in targets if not target.startswith("re:"))
        texts = [target.removeprefix("re:") for target in targets if target.startswith("re:")]
        self._compiled = [patterns.compiled(text, where) for text in texts]

    def rank(self, name: str, module: str) -> int | None:
        """How the list names a module: 0 by its name, 1 by a pattern, 2 by its class, None if not at all."""
        if name in self.names or f"{name}.linear" in self.names:
            return 0
        if any(self._patterns.matches(pattern, name, self._where) for pattern in self._compiled):
            return 1
        return 2 if module in self.names else None


def targets(config: Fields, name: str, patterns: NamePatterns) -> Targets:
    return Targets(f"{config.where}.{name}", config.strings(name), patterns)


@dataclass(frozen=True)
class ModuleGroup:
    """How the weights of some modules are stored."""

    # In config.json, for messages.
    where: str
    targets: Targets
    # The value of `format`.
    form: str
    # Of an element.
    bits: int
    float: bool
    symmetric: bool
    # Which elements share a scale: "tensor", "channel", "group" or "tensor_group", of `size` inputs, or "block".
    strategy: str
    size: int
    block: tuple[int, int] | None
    # Whether each input has the number of its group.
    permuted: bool
    # As in a Scheme. None: not rounded.
    activation: ActSpec | None
    # Whether the weights are decoded at load, because there is no Scheme for them or for their activations.
    decoded: bool

    @property
    def packed(self) -> bool:
        """Into int32."""
        return self.form == PACKED


def group(config: Fields, form: str, patterns: NamePatterns) -> ModuleGroup:
    own = config.one_of("format", tuple(_FORMATS), None if form == MIXED else form)
    config.refuse("output_activations")
    weights = config.table("weights")
    kinds, strategies = _FORMATS[own]
    kind = weights.one_of("type", kinds, "int")
    weights.one_of("dynamic", (False,), False)
    permuted = weights.one_of("actorder", _orders(own), False) in ("group", "dynamic", True)
    bits = weights.one_of("num_bits", _INTS if kind == "int" else (4,) if own in FP4_GROUPS else (8,), 8)
    symmetric = weights.one_of("symmetric", (True, False) if kind == "int" else (True,), True)
    named = targets(config, "targets", patterns)
    if other := next((one for one in sorted(named.names) if one[:1].isupper() and one != "Linear"), None):
        raise config.unsupported("targets", "the only supported class is Linear", other)
    strategy, size = _strategy(weights, strategies)
    if (fixed := FP4_GROUPS.get(own, 32 if own == MXFP8 else size)) != size:
        raise weights.unsupported("group_size", f"it can be {fixed}", size)
    block = weights.block("block_structure") if strategy == "block" else None
    native = not permuted and _native(own, kind, bits, strategy, symmetric=symmetric)
    activation = None
    if config.get("input_activations") is not None:
        activation = _activation(config.table("input_activations"), block)
        native = native and activation is not None
    return ModuleGroup(
        config.where, named, own, bits, kind == "float", symmetric, strategy, size, block, permuted,
        activation if native else None, not native,
    )  # fmt: skip


def _orders(form: str) -> tuple[Any, ...]:
    unchanged = (None, False, "weight", "static")
    return (*unchanged, "group", "dynamic", True) if form == PACKED else unchanged


def _native(form: str, kind: str, bits: int, strategy: str, *, symmetric: bool) -> bool:
    """Whether a Scheme has such weights."""
    if form == PACKED:
        return bits in (4, 8)
    if form in FP4_GROUPS or form == MXFP8 or strategy == "group":
        return False
    return kind == "float" or (bits == 8 and symmetric and strategy != "block")


def _strategy(weights: Fields, strategies: Sequence[str]) -> tuple[str, int]:
    """The strategy, and the group size or 0."""
    size, limits = weights.get("group_size"), f"a group has 1 to {MAX_GROUP_SIZE:,} inputs"
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not -1 <= size <= MAX_GROUP_SIZE):
        raise weights.unsupported("group_size", limits, size)
    implied = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy = weights.one_of("strategy", strategies, implied)
    if strategy not in ("group", "tensor_group"):
        return strategy, 0
    if size is None or size < 1:
        raise weights.unsupported("group_size", limits, size)
    return strategy, size


def _activation(config: Fields, block: tuple[int, int] | None) -> ActSpec | None:
    """How products round activations; None for what they do not do. block: of the weight, whose inputs are also the
    activation's groups, if it has any."""
    values = {name: config.one_of(name, some, some[0]) for name, some in _ACTIVATIONS.items()}
    kind = "fp8_e4m3" if values["type"] == "float" else "int8"
    if values["num_bits"] != 8 or not values["symmetric"]:
        return None
    match values["dynamic"], values["strategy"]:
        case True, "token":
            return ActSpec(kind, granularity="token")
        case True, "group" if block is not None and config.get("group_size") == block[1]:
            return ActSpec(kind, granularity="group", group=block[1])
        case False, "tensor":
            return ActSpec(kind, granularity="tensor", static=True)
    return None
