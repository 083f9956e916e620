"""Writes a model's folder anew with quantized weights, one weight at a time: what `tessera quantize` does."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from torch import Tensor

from tessera.config.model_folder import MAX_TEMPLATE_BYTES, MAX_TOKENIZER_BYTES, names_in, read_bytes
from tessera.errors import ModelError, printable
from tessera.loader.safetensors_file import SafetensorsFile, room_for
from tessera.loader.source import CheckpointWeights, open_checkpoint
from tessera.quantization.compressed_weights import CompressedForm, compressed

WEIGHTS = "model.safetensors"
COPIED = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
HEAD = "lm_head"
TEMPLATE = "chat_template.jinja"
GROUPS = (128, 64, 32)
"""Inputs that share a scale: the first that divides the inputs of every weight, unless a size is named."""
_KEPT_WHOLE = (HEAD, "embed_tokens", "word_embeddings", "gate", "router")
"""The last words of modules that are not quantized: the embedding, the head, and what chooses experts."""
_PARTS = 4  # that a weight may be stored in


Calibrate = Callable[[Collection[str], CompressedForm], Mapping[str, Mapping[str, Tensor]]]
"""Rounds weights of these names into this form: what is stored of each, by the end of its name."""


@dataclass(frozen=True)
class QuantizedWeights:
    """What was written."""

    # Of all weights in the file.
    nbytes: int
    # In the model, before.
    count: int
    # How many of them are quantized.
    quantized: int
    # Inputs that share a scale; 0 for the whole row.
    group: int
    # Names of matrices that are not quantized because groups do not divide them.
    undivided: Sequence[str]
    # Whether the embedding and the head are among those that may be quantized.
    with_ends: bool

    @property
    def bits(self) -> float:
        """Of the file, for each weight of the model."""
        return 8 * self.nbytes / self.count


def write_folder(
    source: str,
    config: Mapping[str, Any],
    folder: str,
    form: CompressedForm,
    on_progress: Callable[[int, int], None],
    calibrate: Calibrate = lambda chosen, form: {},
) -> QuantizedWeights:
    """Writes config.json, the tokenizer and the weights into an empty folder. source: a model's folder or GGUF file.
    config: of it. form: with group -1, the group is chosen from GROUPS. on_progress: receives weights done, and all.
    calibrate: rounds weights by what the model computes; those that it leaves out are rounded to the nearest. Raises
    ModelError, and OSError where the folder cannot be written."""
    weights, target = open_checkpoint(source), Path(folder)
    names = sorted(weights.names())
    shapes = {name: weights.shape(name) for name in names}
    linear = [name for name in names if _is_linear(name, shapes[name])]
    if any(len(shape) > 2 for shape in shapes.values()):
        raise ModelError(f"'{printable(source)}' has experts' weights in stacks, which are not quantized yet.")
    form = _grouped(form, [shapes[name][1] for name in linear])
    chosen = {name for name in linear if form.fits(shapes[name])}
    others = (name.removesuffix(".weight") for name in names if name not in chosen and len(shapes[name]) == 2)
    ignored = sorted({HEAD, *others})  # a head that is tied is a Linear layer too, though the files have none
    written, calibrated = 0, calibrate(chosen, form)
    with SafetensorsFile(target / WEIGHTS, room_for(dict.fromkeys(names, _PARTS))) as file:
        for number, name in enumerate(names, 1):
            parts = calibrated.get(name)
            if parts is None:
                parts = _parts(weights, name, form if name in chosen else None)
            module = name.removesuffix(".weight")
            written += sum(file.add(f"{module}.{part}" if part else name, tensor) for part, tensor in parts.items())
            on_progress(number, len(names))
    _write_settings(Path(source), target, {**config, "quantization_config": form.config(ignored)})
    sizes = {name: prod(shapes[name]) for name in names}
    return QuantizedWeights(
        written, sum(sizes.values()), sum(sizes[name] for name in chosen), form.group,
        [name for name in linear if name not in chosen], with_ends=False,
    )  # fmt: skip


def _parts(weights: CheckpointWeights, name: str, form: CompressedForm | None) -> Mapping[str, Tensor]:
    """What is stored of a weight, by the end of its name; by "" if it stays as it is."""
    weight = weights.whole(name)
    if form is None:
        return {"": weight}
    if not weight.isfinite().all():
        raise ModelError(f"'{printable(name)}' holds numbers that are not finite, so it cannot be quantized.")
    return compressed(weight, form)


def _write_settings(source: Path, target: Path, config: Mapping[str, Any]) -> None:
    """config.json, and the tokenizer's files as they are."""
    (target / "config.json").write_text(f"{json.dumps(config, indent=2)}\n", encoding="utf-8")
    available = names_in(source)
    for name in COPIED:
        if name in available and (content := read_bytes(source, name, MAX_TOKENIZER_BYTES)) is not None:
            (target / name).write_bytes(content)
    if TEMPLATE in available and (content := read_bytes(source, TEMPLATE, MAX_TEMPLATE_BYTES)) is not None:
        (target / TEMPLATE).write_bytes(content)


def _is_linear(name: str, shape: Sequence[int]) -> bool:
    module, _, end = name.rpartition(".")
    return end == "weight" and len(shape) == 2 and module.rpartition(".")[2] not in _KEPT_WHOLE


def _grouped(form: CompressedForm, widths: Sequence[int]) -> CompressedForm:
    if form.group >= 0:
        return form
    size = next((size for size in GROUPS if all(width % size == 0 for width in widths)), GROUPS[-1])
    return CompressedForm(form.kind, form.bits, size, form.zero_points, form.activations)
