"""A model that runs transformers' code behind the runner's interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tessera.config.checkpoint import scaled
from tessera.errors import ModelError
from tessera.layers.build import Build
from tessera.layers.pooling import embedding_heads
from tessera.models import text_model
from tessera.models.fields import RefusedTypeError
from tessera.models.through_transformers.attention import Lookahead, Step
from tessera.models.through_transformers.names import CheckpointNames
from tessera.models.through_transformers.pooling import PoolingThroughTransformers
from tessera.models.through_transformers.positions import Positions
from tessera.models.through_transformers.rehearsal import rehearse
from tessera.models.through_transformers.skeleton import Anatomy, HeadShape, leave_text, make_skeleton, text_name
from tessera.models.through_transformers.sparse_attention import seen_whole
from tessera.models.through_transformers.surgery import BoundProduct, exchange
from tessera.models.through_transformers.types import ModelType, PoolingType, find_pooling_type, find_type, find_whole
from tessera.ops import LogitsSampleSpec, SampleSpec
from tessera.ops.sampling import bind_finish
from tessera.ops.tensors import torch_dtype
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch
from tessera.platform.model import Hidden, ModelFacts, PoolingHead
from tessera.platform.ops import Packed

_BY_LAYER = "get_per_layer_inputs"
"""The method of Gemma's text models with an embedding of tokens for each layer."""
NOTE = "runs through transformers' code, with this engine's attention and matrix products"


def through_transformers(
    build: Build, checkpoint: Mapping[str, Any], max_model_len: int
) -> ThroughTransformers | PoolingThroughTransformers | None:
    """Returns None for an architecture that transformers does not have as a type that generates, embeds or classifies.
    Raises RefusedTypeError for one that cannot be served through its code."""
    kind = find_type(checkpoint) or find_whole(checkpoint) or find_pooling_type(checkpoint)
    if kind is None:
        if checkpoint.get("auto_map"):
            raise RefusedTypeError("its code is in the model's own folder, and such code is never run")
        return None
    _check_limits(build, kind, checkpoint, max_model_len)
    build.notes.append(f"{kind.architecture} {NOTE}")
    if build.modalities and not kind.whole:
        kind = replace(kind, nested=True)
    elif not build.modalities and (kind.nested or kind.whole):
        build.notes.append(text_model.NOTE)
    if isinstance(kind, PoolingType):
        return PoolingThroughTransformers(build, kind, max_model_len)
    return _causal(build, kind, max_model_len)


def _check_limits(build: Build, kind: ModelType, checkpoint: Mapping[str, Any], max_model_len: int) -> None:
    for group, flag in ((build.group, "--tensor-parallel-size"), (build.pipeline, "--pipeline-parallel-size")):
        if group.size > 1:
            raise RefusedTypeError(f"a model that runs through transformers' code is limited to one device ({flag} 1)")
    text = kind.config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None)
    if isinstance(positions, int) and 0 < positions < max_model_len:
        _, most = scaled(checkpoint, positions)
        if most < max_model_len:
            raise ModelError(
                f"max_model_len is {max_model_len}, but the model has {most} positions; give at most that."
            )
    whole = seen_whole(text)
    if whole is not None and whole < max_model_len:
        raise ModelError(
            f"max_model_len is {max_model_len}, but the model's sparse attention is served only where it sees a text "
            f"whole, up to {whole} tokens; give at most that."
        )


def _causal(build: Build, kind: ModelType, max_model_len: int) -> ThroughTransformers:
    if build.pooler is not None and "classify" in build.pooler.tasks:
        raise RefusedTypeError("a model that runs through transformers' code does not classify by its logits")
    anatomy, names = _parts(build, kind)
    if anatomy.head is not None and anatomy.tied and not build.are_one(names.candidates(anatomy.head.weight)):
        kind.config.tie_word_embeddings = kind.config.get_text_config().tie_word_embeddings = False
        anatomy, names = _parts(build, kind)
    return ThroughTransformers(build, kind.architecture, anatomy, names, max_model_len, _lookahead(build, kind))


def _lookahead(build: Build, kind: ModelType) -> Lookahead:
    """Which layers show an image's tokens each other."""
    if "image" not in build.modalities or getattr(kind.config, "use_bidirectional_attention", None) != "vision":
        return "none"
    return "windows" if kind.model_type == "gemma4_text" else "all"


def _parts(build: Build, kind: ModelType) -> tuple[Anatomy, CheckpointNames]:
    model = make_skeleton(kind, torch_dtype(build.dtype))
    if not kind.whole:
        return Anatomy.from_model(model), CheckpointNames(model, build.dtype, nested=kind.nested)
    text = text_name(model)
    stored = () if build.stored is None else build.stored.names()
    names = CheckpointNames(model, build.dtype, text=f"{text}.", stored=stored)
    leave_text(model)
    return Anatomy.from_model(model, text=text), names


class ThroughTransformers:
    """Exempt from the rule that a model only calls ops: norms, routers and other small parts are torch's.

    added: as DeepstackDecoder's. features: which tokens of the next pass stand for features [T, 1], and these [T,
    hidden], where the code takes tokens; None for none."""

    added: Sequence[Tensor] = ()
    features: tuple[Tensor, Tensor] | None = None

    def __init__(
        self,
        build: Build,
        architecture: str,
        anatomy: Anatomy,
        names: CheckpointNames,
        max_model_len: int,
        lookahead: Lookahead,
    ) -> None:
        self.step, self.positions = Step(), Positions(anatomy.model)
        found = rehearse(anatomy, self.positions)
        self.first_position, self.takes_tokens = found.first_position, found.by_tokens
        product, self._embed = exchange(build, anatomy, names, found, self.step, lookahead)
        assert product is not None, "a model that generates has a head"
        self.head, self.transform = SharedHead(build, product, found.head), found.transform
        self.base: Any = anatomy.model.get_submodule(found.base)
        self.pooling: Mapping[str, PoolingHead] = embedding_heads(build) if self.transform is None else {}
        self.facts = ModelFacts(
            architecture=architecture,
            vocab_size=product.n,
            hidden_size=product.products.spec.k,
            num_layers=len(found.attention),
            max_positions=max_model_len,
            dtype=build.dtype,
            caches=build.caches,
            notes=tuple(build.notes),
            generates=build.generates,
            functional=False,
        )

    def add_behind(self, layers: Sequence[int]) -> None:
        """As DeepstackDecoder.add_behind(), of any layers but the last; -1: ahead of all. Raises RefusedTypeError."""
        blocks = getattr(self.base, "layers", ())
        if any(number + 1 >= len(blocks) for number in layers):
            raise RefusedTypeError("its text model does not take features behind those of its layers")
        for index, number in enumerate(layers):
            blocks[number + 1].register_forward_pre_hook(partial(self._add, index))

    def _add(self, index: int, _module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        return (inputs[0] + self.added[index], *inputs[1:]) if self.added else None

    def embed(self, tokens: Tensor) -> Tensor:
        result: Tensor = self._embed(tokens)
        return result

    def forward(self, x: Tensor, launch: Launch, caches: Caches, residual: Tensor | None = None) -> Hidden:
        self.step.begin(launch, caches)
        positions = self.positions.arguments(launch.positions.long() + self.first_position)
        states = self.base(**self._inputs(x), **positions, use_cache=False)[0][0]
        return Hidden(launch.select_logits(states))

    @property
    def embeds_by_layer(self) -> bool:
        """Whether it has an embedding of tokens for each of its layers."""
        return hasattr(self.base, _BY_LAYER)

    def _inputs(self, x: Tensor) -> dict[str, Tensor]:
        if not self.takes_tokens:
            return {"inputs_embeds": x[None]}
        if self.features is None:
            return {"input_ids": x[None]}
        there, features = self.features
        tokens = x.masked_fill(there[:, 0], self.base.config.pad_token_id)[None]
        embedding = self.base.get_input_embeddings()(tokens)
        by_layer = getattr(self.base, _BY_LAYER)(tokens)
        return {"inputs_embeds": torch.where(there, features, embedding), "per_layer_inputs": by_layer}

    def finish(self, hidden: Hidden) -> Tensor:
        if self.transform is None:
            return hidden.last
        rows: Tensor = self.transform(hidden.last[None])[0]
        return rows

    def logits(self, rows: Tensor) -> Tensor:
        return self.head(rows)


class SharedHead:
    """[S, k] -> logits [S, vocab]. sampling_spec: the same, fused with sampling into one composite."""

    def __init__(self, build: Build, product: BoundProduct, shape: HeadShape) -> None:
        self.product, self.linear, self.shape = product, product.products.single, shape
        self.finish = bind_finish(self.sampling_spec(SampleSpec(product.n)), build.ops)

    @property
    def weight(self) -> Packed:
        (weight,) = self.product.products.weights
        return weight

    def sampling_spec(self, sample: SampleSpec) -> LogitsSampleSpec:
        return LogitsSampleSpec(self.linear, sample, None, self.shape.cap, self.shape.scale)

    def __call__(self, rows: Tensor) -> Tensor:
        result: Tensor = self.finish(self.product(rows))
        return result
