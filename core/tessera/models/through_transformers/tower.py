"""The towers of a model that reads images, videos or sounds: transformers' code makes features of one, with this
engine's matrix products."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import CONFIG_MAPPING, PreTrainedModel

from tessera.config.modalities import TOWERS
from tessera.layers.build import Build
from tessera.models.fields import Checkpoint, RefusedTypeError
from tessera.models.through_transformers.names import CheckpointNames
from tessera.models.through_transformers.norms import bind_norms
from tessera.models.through_transformers.partial_encoding import WorkMeter
from tessera.models.through_transformers.rotary import bind_rotary
from tessera.models.through_transformers.skeleton import compute_buffers, is_product, text_name
from tessera.models.through_transformers.sounds import sound_features
from tessera.models.through_transformers.surgery import BoundConvolution, BoundPatches, BoundProduct, keep_weights
from tessera.models.through_transformers.types import config_fields, first_line
from tessera.ops.tensors import torch_dtype

_BEHIND: Mapping[str, str] = MappingProxyType({"Llama4ForConditionalGeneration": "multi_modal_projector"})
"""Where a model's forward takes its last states further than get_image_features(): the module behind them."""

_OTHERS = ("vqmodel", "generation_embeddings", "generation_aligner", "generation_head")
"""Parts that make no features."""
_PROJECTION = "text_projection"
"""What is behind a text model apart from the tower."""
_OF_SOUNDS = ("audio_tower", "embed_audio")
"""Parts that make features of sounds alone."""
_TOKENIZES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"Emu3ForConditionalGeneration": ("decoder", "post_quant_conv")}
)
"""Types whose features are the embeddings of tokens that stand for an image's parts, and what they do not need for
that."""
_OF_VIDEOS = "video_tower"
"""A part that makes them of videos alone."""
COMPRESSION = "video_compression_mask"
"""The name of what says which of a video's features its tokens stand for, among its inputs."""


_CONVOLUTIONS: tuple[Any, ...] = (BoundConvolution, BoundPatches)


class Tower:
    """Makes features of images, videos or sounds. hidden_size: of the text model, or of vectors where that is apart,
    which is the features'. levels: how many features a token has. depths: the layers of the text model behind which the
    last ones of them are added, -1 for ahead of all; a first one that has none takes the place of the token's
    embedding."""

    def __init__(self, build: Build, checkpoint: Checkpoint) -> None:
        """Raises RefusedTypeError for a type whose features cannot be had in this way."""
        self.dtype, self.target = torch_dtype(build.dtype), build.device.target
        whole = _skeleton(checkpoint, self.dtype)
        if "audio" in build.modalities and getattr(whole.config, "has_lora_adapter", False):
            raise RefusedTypeError(
                "sounds change the weights of its text model (has_lora_adapter), which is served alone with "
                "--limit-mm-per-prompt '{\"audio\": 0}'"
            )
        if getattr(getattr(whole.config, "vision_config", None), "tokenize_function", "") == "gumbel_argmax":
            raise RefusedTypeError("its features are drawn at random (gumbel_argmax)")
        apart = TOWERS[str(checkpoint["architectures"][0])].apart
        self.hidden_size = _width(build) if apart else int(whole.config.get_text_config().hidden_size)
        self.depths, self._by_depth = _depths(whole.config)
        self.levels = len(self.depths) + (not self._by_depth)
        self._of_sound = sound_features(str(checkpoint["architectures"][0]))
        text = text_name(whole)
        stored = () if build.stored is None else build.stored.names()
        names = CheckpointNames(whole, build.dtype, text=f"{text}.", stored=stored)
        self.model = whole.base_model
        architecture = str(checkpoint["architectures"][0])
        named = {module: name for name, module in whole.named_modules()}
        unused = [named.get(whole.get_output_embeddings(), ""), *_unused(whole, architecture, text)]
        others = () if "audio" in build.modalities else _OF_SOUNDS
        if apart:
            unused.append(_PROJECTION)
            whole._parameters.clear()  # what scales the products of vectors
        _remove(whole, unused, others if "video" in build.modalities else (*others, _OF_VIDEOS))
        behind = _BEHIND.get(architecture)
        self._behind = None if behind is None else whole.get_submodule(behind)
        compute_buffers(whole)
        exchange(build, names, whole)
        self.meter = WorkMeter(whole)

    def encode(self, modality: str, inputs: Mapping[str, Tensor]) -> Tensor:
        """What the processor made of an image, a video or a sound, by name -> its features [n, levels * hidden_size],
        in the order of the tokens that stand for them."""
        moved = {name: self._moved(value) for name, value in inputs.items()}
        if modality == "audio":
            heard = _joined(self._of_sound(self.model, moved))
            return pad(heard, (0, (self.levels - 1) * self.hidden_size))  # at other depths nothing is added
        if modality == "video":
            made, kept = self._videos(moved), moved.get(COMPRESSION)
        else:
            tokens = moved.pop("image_tokens", None)
            made, kept = self.model.get_image_features(**moved, return_dict=True), None
            if tokens is not None:
                return self._with_indicators(made, tokens)
        if self._by_depth:
            return torch.cat([_joined(level) for _, level in made.deepstack_features], dim=-1)
        features = made.pooler_output if self._behind is None else self._behind(made.last_hidden_state)
        others = made.deepstack_features if self.depths else ()
        whole = torch.cat([_joined(level) for level in (features, *others)], dim=-1)
        return whole if kept is None else whole[kept]

    def _videos(self, inputs: Mapping[str, Tensor]) -> Any:
        """What the method does not name says which features are kept, and which positions tokens have. Without one,
        a video is an image for each frame."""
        if not hasattr(self.model, "get_video_features"):
            return self.model.get_image_features(**inputs, return_dict=True)
        known = inspect.signature(self.model.get_video_features).parameters
        own = {name: value for name, value in inputs.items() if name in known}
        return self.model.get_video_features(**own, return_dict=True)

    def _with_indicators(self, output: Any, tokens: Tensor) -> Tensor:
        """Of Ovis2: in the order of all tokens with features, [n] int64, some of which stand for rows of the tower's
        table."""
        rows = {token: row for row, token in enumerate(self.model.visual_indicator_token_ids)}
        features = _joined(output.pooler_output)
        result = features.new_empty(len(tokens), features.shape[-1])
        indicators = torch.isin(tokens, torch.tensor([*rows], device=tokens.device))
        result[~indicators] = features
        chosen = [rows[token] for token in tokens[indicators].tolist()]
        result[indicators] = output.visual_indicator_features[chosen]
        return result

    def _moved(self, value: Tensor) -> Tensor:
        return value.to(self.target, self.dtype if value.is_floating_point() else None)


class TiledTower(Tower):
    """Makes what tokens see of an image through cross attention, of each of its tiles (Llama 3.2 Vision)."""

    def encode(self, modality: str, inputs: Mapping[str, Tensor]) -> Tensor:
        """As of Tower: [tiles * positions of a tile, hidden_size]."""
        states = self.model.vision_model(**{name: self._moved(value) for name, value in inputs.items()})
        projected: Tensor = self.model.multi_modal_projector(states.last_hidden_state)
        return projected.flatten(0, -2)


def _depths(config: Any) -> tuple[Sequence[int], bool]:
    """Tower.depths, and whether that is all that a token has: Granite 4's fields name the layers ahead of which
    features are added. Raises RefusedTypeError."""
    named = getattr(config, "deepstack_layer_map", None)
    if named is not None:
        layers = [*(layer for _, layer in named), *config.spatial_target_layers]
        if len({*layers}) < len(layers):
            raise RefusedTypeError("it adds features twice ahead of the same layer")
        return [layer - 1 for layer in layers], True
    vision = getattr(config, "vision_config", None)
    return range(len(getattr(vision, "deepstack_visual_indexes", None) or ())), False


def _width(build: Build) -> int:
    """Of the vectors of a dual encoder."""
    assert build.pooler is not None, "it does nothing else"
    return build.pooler.dimensions


def _joined(features: Tensor | Sequence[Tensor]) -> Tensor:
    """Those of all parts: [n, hidden_size]."""
    parts = [features] if isinstance(features, Tensor) else features
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])


def _skeleton(checkpoint: Checkpoint, dtype: torch.dtype) -> PreTrainedModel:
    """The whole model without weights."""
    architecture = str(checkpoint["architectures"][0])
    known: Any = getattr(transformers, TOWERS[architecture].model or architecture, None)
    if known is None:
        raise RefusedTypeError("the installed transformers has no model of this name")
    named = str(checkpoint.get("model_type", known.config_class.model_type))
    try:
        config = CONFIG_MAPPING[named].from_dict(config_fields(checkpoint))
        with torch.device("meta"):
            model: PreTrainedModel = known._from_config(config, dtype=dtype)
    except Exception as error:  # transformers' code may raise anything for what it does not support
        raise RefusedTypeError(f"its module cannot be made from config.json ({first_line(error)})") from error
    return model.eval().requires_grad_(False)


def _unused(whole: PreTrainedModel, architecture: str, text: str) -> list[str]:
    """The names of parts without which features are made."""
    others = _TOKENIZES.get(architecture)
    if others is None:
        return [text, *(name for name, _ in whole.named_modules() if name.rpartition(".")[2] in _OTHERS)]
    embedding = whole.get_input_embeddings()
    below = [f"{text}.{name}" for name, child in whole.get_submodule(text).named_children() if child is not embedding]
    return [*below, *(name for name, _ in whole.named_modules() if name.rpartition(".vqmodel.")[2] in others)]


def _remove(whole: nn.Module, names: Sequence[str], keys: Sequence[str]) -> None:
    """Removes the modules of these names, and those of which the last part of the name is one of keys."""
    for name, _ in reversed(list(whole.named_modules())):
        owner, _, key = name.rpartition(".")
        if name and (name in names or key in keys):
            whole.get_submodule(owner).register_module(key, None)


def exchange(build: Build, names: CheckpointNames, model: nn.Module) -> None:
    """Puts this engine's products, norms and rotary embeddings in, products for convolutions too that are such, and
    registers the other weights."""
    for name, module in list(model.named_modules()):
        kind = (
            BoundProduct if is_product(module) else next((one for one in _CONVOLUTIONS if one.computes(module)), None)
        )
        if kind is not None and module.weight.dtype == torch_dtype(build.dtype):
            owner, _, key = name.rpartition(".")
            setattr(model.get_submodule(owner), key, kind(build, names, module))
    bind_norms(build, names, model)
    bind_rotary(build, model)
    for name, module in model.named_modules():
        keep_weights(build, names, name, module)
