"""Runs texts through a model once, and rounds the weights of each layer by what it sees of them, before it computes
with them: what `tessera quantize --scheme gptq` does. So each layer is rounded for what the rounded layers before it
make. The model is transformers', whose modules say what they are called with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from tessera.errors import ModelError, printable
from tessera.quantization.compressed_weights import CompressedForm, decoded
from tessera.quantization.gptq import InputOrder, calibrated, ordered

Rounded = Mapping[str, Mapping[str, Tensor]]
"""What is stored of weights, by weight and by the end of the stored tensor's name."""


def rounded_by_texts(
    folder: str,
    texts: Sequence[Sequence[int]],
    chosen: Collection[str],
    form: CompressedForm,
    on_progress: Callable[[int, int], None],
) -> Rounded:
    """folder: of the model. texts: token ids, equally many in each. chosen: names of weights to round; those that no
    layer multiplies with are left out of the result. on_progress: receives layers done, and all. Raises ModelError for
    a model whose layers are not found."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True).eval()
    names = {
        module: f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and f"{name}.weight" in chosen
    }
    dtypes = {module: module.weight.dtype for module in names}  # of scales, as they are stored
    model.float()
    layers, results = _layers(model, folder), dict[str, Mapping[str, Tensor]]()

    def calibrate(layer: nn.Module, args: tuple[Any, ...], others: Mapping[str, Any]) -> None:
        linear = [module for module in layer.modules() if isinstance(module, nn.Linear) and module in names]
        with _moments(linear) as moments:
            layer.forward(*args, **others)
        orders: dict[int, InputOrder] = {}
        for module, seen in moments.items():
            inputs = orders[id(seen)] = orders.get(id(seen)) or ordered(seen)
            results[names[module]] = parts = calibrated(module.weight.to(dtypes[module]), inputs, form)
            module.weight.copy_(decoded(parts, form))
        on_progress(done[layer], len(done))

    done = {layer: number for number, layer in enumerate(layers, 1)}
    for layer in layers:
        layer.register_forward_pre_hook(calibrate, with_kwargs=True)
    with torch.inference_mode():
        for weight in model.parameters():
            weight.requires_grad_(False)  # they are changed in place
        model.base_model(torch.tensor(texts), use_cache=False)
    return results


def _layers(model: Any, folder: str) -> nn.ModuleList:
    """The decoder's layers."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == model.config.get_text_config().num_hidden_layers:
            return module
    raise ModelError(f"the layers of '{printable(folder)}' are not found, so it cannot be calibrated.")


@contextmanager
def _moments(linear: Sequence[nn.Linear]) -> Iterator[dict[nn.Linear, Tensor]]:
    """Adds up the outer products of what modules are called with. Those that are called with one tensor, such as what
    makes queries, keys and values, share a result."""
    moments: dict[nn.Linear, Tensor] = {}
    newest: list[tuple[Tensor, Tensor]] = []

    def add(module: nn.Linear, args: tuple[Tensor, ...]) -> None:
        if not newest or newest[0][0] is not args[0]:
            rows = args[0].flatten(0, -2).float()
            newest[:] = [(args[0], rows.T @ rows)]
        product = newest[0][1]
        moments[module] = moments[module] + product if module in moments else product

    hooks = [module.register_forward_pre_hook(add) for module in linear]
    try:
        yield moments
    finally:
        for one in hooks:
            one.remove()
