"""A LoRA adapter's folder, as peft saves it: reads its settings and the header of its weights, and refuses what cannot
be served. Weights are read in the workers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera.config.model_folder import names_in, open_weights, read_json
from tessera.errors import ModelError, printable

SETTINGS = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"

_TENSOR = re.compile(r"base_model\.model\.(?P<layer>.+)\.lora_(?P<half>[AB])\.weight")
_LAYER_NUMBER = re.compile(r"\.(\d{1,9})(?=\.)")
_FLOATS = ("F64", "F32", "F16", "BF16")
# Settings that change what is computed, or the model's own weights, with the values for which they do not.
_UNSERVED: Mapping[str, tuple[Any, ...]] = {
    "use_dora": (False,),
    "bias": ("none",),
    "lora_bias": (False,),
    "modules_to_save": ([],),
    "rank_pattern": ({},),
    "alpha_pattern": ({},),
    "layer_replication": ([],),
    "target_parameters": ([],),
    "trainable_token_indices": ([], {}),
    "alora_invocation_tokens": ([],),
    "use_qalora": (False,),
    "use_bdlora": (),
    "arrow_config": (),
    "kasa_config": (),
    "monteclora_config": (),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal", "mica"),
}


@dataclass(frozen=True)
class Adapter:
    """layers: the inputs k and outputs n of each linear layer that it changes, by the layer's name in the model's
    checkpoint. It adds scale (x A^T) B^T, with A [rank, k] and B [n, rank]. targets: last parts of the names of layers
    that it should have weights for, if the model has such layers."""

    folder: Path
    rank: int
    scale: float
    layers: Mapping[str, tuple[int, int]]
    targets: tuple[str, ...]

    def mismatch(self, model: Mapping[str, tuple[int, int]]) -> str | None:
        """Why it does not fit a model; None if it does. model: the inputs and outputs of each linear layer."""
        for name, shape in self.layers.items():
            if name not in model:
                return (
                    f"it changes '{printable(name)}', which is not a linear layer of this model that adapters can use"
                )
            if model[name] != shape:
                found, own = (f"{n} outputs and {k} inputs" for k, n in (shape, model[name]))
                return f"its '{printable(name)}' has {found}, but the model's has {own}"
        for target in self.targets:
            if _has(model, target) and not _has(self.layers, target):
                return f"it names '{printable(target, 60)}' in target_modules, but has no weights for it"
        return None


def _has(layers: Mapping[str, Any], target: str) -> bool:
    return any(_names_layer(target, name) for name in layers)


def _names_layer(target: str, layer: str) -> bool:
    return layer == target or layer.endswith(f".{target}")


def tensor_name(layer: str, half: str) -> str:
    """The name in WEIGHTS of the half "A" or "B" of a layer."""
    return f"base_model.model.{layer}.lora_{half}.weight"


def read_adapter(folder: str, max_rank: int) -> Adapter:
    """Raises ModelError, in one line, for what is not an adapter, or one that cannot be served."""
    path, where = Path(folder).expanduser(), printable(folder)
    if not path.is_dir():
        raise ModelError(f"There is no folder '{where}'; an adapter is a folder with {SETTINGS} and {WEIGHTS}.")
    settings, names = read_json(path, SETTINGS), names_in(path)
    if settings is None:
        raise ModelError(f"'{where}' has no {SETTINGS}, so it is not an adapter's folder.")
    if WEIGHTS not in names:
        instead = (
            "; other formats are not read, because such files can run code" if "adapter_model.bin" in names else ""
        )
        raise ModelError(f"'{where}' has no {WEIGHTS}{instead}; save the adapter with peft's save_pretrained().")
    rank, scale = _read_settings(settings, where, max_rank)
    layers, targets = _layers(path, rank), _names(settings, "target_modules")
    for layer in layers:
        if not _is_targeted(layer, targets, settings):
            raise ModelError(
                f"'{printable(path / WEIGHTS)}' has weights for '{printable(layer)}', which {SETTINGS} does not "
                "target; they do not belong together, so save the adapter again."
            )
    return Adapter(path, rank, scale, layers, targets)


def _names(settings: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """A list of layers' names; empty for text, which is a pattern or "all-linear"."""
    named = settings.get(name)
    return tuple(map(str, named)) if isinstance(named, list) else ()


def _is_targeted(layer: str, targets: Sequence[str], settings: Mapping[str, Any]) -> bool:
    """Whether peft would train this layer, as far as names and numbers of layers say. Patterns are not tried, because
    one may take for ever."""
    if any(_names_layer(name, layer) for name in _names(settings, "exclude_modules")):
        return False
    if not targets or layer in targets:
        return True
    chosen, numbers = settings.get("layers_to_transform"), _LAYER_NUMBER.findall(layer)
    if chosen is not None and not (numbers and int(numbers[-1]) in (chosen if isinstance(chosen, list) else [chosen])):
        return False
    return any(_names_layer(target, layer) for target in targets)


def _read_settings(settings: Mapping[str, Any], where: str, max_rank: int) -> tuple[int, float]:
    """The rank and the scale."""
    kind = settings.get("peft_type")
    if kind != "LORA":
        raise ModelError(f"'{where}' is an adapter of peft_type {printable(str(kind), 40)}; only LORA is supported.")
    for name, unused in _UNSERVED.items():
        if settings.get(name) is not None and settings[name] not in unused:
            raise ModelError(f"'{where}' sets {name} in {SETTINGS}, which is not supported; train it without.")
    rank, alpha, rooted = settings.get("r"), settings.get("lora_alpha"), settings.get("use_rslora", False)
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ModelError(f"'{where}': r in {SETTINGS} must be a whole number of at least 1.")
    if rank > max_rank:
        raise ModelError(f"'{where}' has rank {rank}, but --max-lora-rank is {max_rank}; raise it to {rank}.")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) < 1e6:
        raise ModelError(f"'{where}': lora_alpha in {SETTINGS} must be a number.")
    if not isinstance(rooted, bool):
        raise ModelError(f"'{where}': use_rslora in {SETTINGS} must be true or false.")
    return rank, alpha / (rank**0.5 if rooted else rank)


def _layers(folder: Path, rank: int) -> dict[str, tuple[int, int]]:
    """Inputs and outputs by layer, from the header of the weights."""
    halves: dict[str, dict[str, tuple[int, ...]]] = {}
    opened = open_weights(folder, WEIGHTS, "np")
    for name in opened.keys():  # noqa: SIM118 - not a dict
        found = _TENSOR.fullmatch(name)
        if found is None:
            raise ModelError(
                f"'{printable(folder / WEIGHTS)}' has '{printable(name)}', which is not supported: only lora_A and "
                "lora_B of linear layers are."
            )
        tensor = opened.get_slice(name)
        if (kind := tensor.get_dtype()) not in _FLOATS:
            raise ModelError(
                f"'{printable(folder / WEIGHTS)}' has '{printable(name)}' as {kind}, which is not supported; save it "
                "as F32, F16 or BF16."
            )
        halves.setdefault(found["layer"], {})[found["half"]] = tuple(tensor.get_shape())
    layers = {}
    for layer, shapes in halves.items():
        a, b = (shapes.get(half, ()) for half in "AB")
        if len(a) != 2 or len(b) != 2 or a[0] != rank or b[1] != rank:
            raise ModelError(
                f"'{printable(folder / WEIGHTS)}' needs lora_A [{rank}, inputs] and lora_B [outputs, {rank}] for "
                f"'{printable(layer)}', but has {list(a) or 'none'} and {list(b) or 'none'}; save the adapter again."
            )
        layers[layer] = (a[1], b[0])
    if not layers:
        raise ModelError(f"'{printable(folder / WEIGHTS)}' holds no tensor; save the adapter again.")
    return layers
