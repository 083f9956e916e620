"""The format auto-round, which AutoRound writes: weights packed as gptq or awq packs them, with settings by layer.

`packing_format` says how they are packed (formats/gptq.py and formats/awq.py); `bits`, `group_size` and `sym` hold for
the Linear layers within the blocks that block_name_to_quantize names; extra_config has what differs for layers: by
name, or else by the first part of a name or pattern that is found in the name. 16 bits are a weight that is not
quantized.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tessera.errors import ModelError
from tessera.platform.device import Reason
from tessera.platform.quantization import Part, StoredWeight, WeightFormat
from tessera.quantization.formats.awq import awq
from tessera.quantization.formats.fields import Fields
from tessera.quantization.formats.gptq import gptq
from tessera.quantization.formats.patterns import NamePatterns

_GPTQ = {"desc_act": False, "lm_head": True}  # which layers are quantized is for AutoRound's own fields to say
_PACKINGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "auto_round:auto_gptq": {**_GPTQ, "checkpoint_format": "gptq"},
        "auto_round:gptq": {**_GPTQ, "checkpoint_format": "gptq"},
        "auto_round:gptqmodel": {**_GPTQ, "checkpoint_format": "gptq_v2"},
        "auto_round:auto_awq": {"version": "gemm"},
        "auto_round:awq": {"version": "gemm"},
    }
)
_SETTINGS = ("bits", "group_size", "sym")
_FLOAT_BITS = 16  # of a weight, or an activation, that is not quantized
_MAX_LAYERS = 1 << 17
_SPECIAL = frozenset("*+?^$()[]{}|\\")
"""What a name of a layer has only if it is a pattern."""


def auto_round(config: Mapping[str, Any]) -> AutoRound:
    """config: quantization_config. Raises ModelError, naming the field, for what is not supported."""
    return AutoRound(Fields("quantization_config", config))


class AutoRound(WeightFormat):
    """A WeightFormat."""

    def __init__(self, config: Fields) -> None:
        packing = config.one_of("packing_format", tuple(_PACKINGS), "auto_round:auto_gptq")
        config.one_of("data_type", ("int",), "int")
        config.refuse("modules_to_not_convert", "dynamic", "modules_in_block_to_quantize")
        self._where, self._packing = config.where, _PACKINGS[packing]
        self._usual = _settings(config, {})
        self._blocks = _blocks(config)
        layers = config.table("extra_config") if config.get("extra_config") is not None else Fields(config.where, {})
        if len(layers.values) > _MAX_LAYERS:
            raise ModelError(f"{layers.where} in config.json has more than {_MAX_LAYERS:,} layers.")
        self._layers = {str(name): _settings(layers.table(str(name)), self._usual) for name in layers.values}
        self._patterns = NamePatterns()
        # Whatever is not the name of a layer is a pattern; most are plain parts of names, which need no compiling.
        self._compiled = {
            text: self._patterns.compiled(f".*?(?:{text})", layers.where)
            for text in self._layers
            if not _SPECIAL.isdisjoint(text)
        }
        self._formats: dict[tuple[Any, ...], WeightFormat] = {}
        self._format(self._usual)  # refuses settings that no layer could have

    def stored(self, weight: Part, module: str, dtype: str) -> StoredWeight | Part | Reason:
        settings = self._settings_of(weight.name.removesuffix(".weight"))
        if settings is None:
            return "quantization_config.block_name_to_quantize does not name it"
        if settings["bits"] >= _FLOAT_BITS:
            return "quantization_config.extra_config leaves it out"
        return self._format(settings).stored(weight, module, dtype)

    def _settings_of(self, name: str) -> Mapping[str, Any] | None:
        """None if the weight is not quantized."""
        if name in self._layers:
            return self._layers[name]
        for text, settings in self._layers.items():
            if self._is_in(text, name):
                return settings
        inside = name.startswith(self._blocks) if self._blocks else ".layers." in name
        return self._usual if inside else None

    def _is_in(self, text: str, name: str) -> bool:
        """Whether a pattern, or a part of a name, of extra_config is found in a name."""
        pattern = self._compiled.get(text)
        if pattern is None:
            return text in name
        return self._patterns.matches(pattern, name, f"{self._where}.extra_config")

    def _format(self, settings: Mapping[str, Any]) -> WeightFormat:
        """Of weights with these settings, made once."""
        key = tuple(settings[name] for name in _SETTINGS)
        if key not in self._formats:
            if "version" in self._packing:
                self._formats[key] = awq({**self._packing, **settings, "zero_point": not settings["sym"]})
            else:
                self._formats[key] = gptq({**self._packing, **settings})
        return self._formats[key]


def _settings(config: Fields, usual: Mapping[str, Any]) -> Mapping[str, Any]:
    """usual: what holds for a field that is left out."""
    settings = {name: config.get(name, usual.get(name)) for name in _SETTINGS}
    settings["bits"] = config.one_of("bits", (2, 3, 4, 8, _FLOAT_BITS, 32), usual.get("bits"))
    settings["sym"] = config.one_of("sym", (True, False), usual.get("sym", True))
    config.one_of("act_bits", (_FLOAT_BITS, 32), _FLOAT_BITS)
    size = settings["group_size"]
    if type(size) is not int:
        raise config.unsupported("group_size", "it can be -1 or a number of inputs", size)
    return settings


def _blocks(config: Fields) -> tuple[str, ...]:
    """Beginnings of the names of layers: in one text with commas, a list, or lists of all blocks; () if not said."""
    name = "block_name_to_quantize" if config.get("block_name_to_quantize") is not None else "to_quant_block_names"
    value = config.get(name, [])
    entries = value.split(",") if isinstance(value, str) else value
    if not isinstance(entries, list):
        raise config.unsupported(name, "it can be a text or a list of names", value)
    flat = [one for entry in entries for one in (entry if isinstance(entry, list) else [entry])]
    if not all(isinstance(one, str) for one in flat):
        raise config.unsupported(name, "it can be a text or a list of names", value)
    return tuple(flat)
