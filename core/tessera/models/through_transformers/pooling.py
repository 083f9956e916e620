"""A model without a head that generates, which runs transformers' code below its head: it embeds or classifies."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from tessera.layers.build import Build
from tessera.layers.pooling import embedding_heads
from tessera.models.encoder import TYPE_BOUNDARY
from tessera.models.fields import RefusedTypeError
from tessera.models.through_transformers.attention import Step
from tessera.models.through_transformers.head import bind_classifier, read_classifier
from tessera.models.through_transformers.names import CheckpointNames
from tessera.models.through_transformers.positions import Positions
from tessera.models.through_transformers.rehearsal import Rehearsed, rehearse
from tessera.models.through_transformers.skeleton import Anatomy, make_skeleton
from tessera.models.through_transformers.surgery import exchange
from tessera.models.through_transformers.types import PoolingType
from tessera.ops.tensors import torch_dtype
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch
from tessera.platform.model import Hidden, ModelFacts, PoolingHead, SamplingHead


class PoolingThroughTransformers:
    """As ThroughTransformers. Its tokens see their whole text, or those before them."""

    def __init__(self, build: Build, kind: PoolingType, max_model_len: int) -> None:
        whole = make_skeleton(kind, torch_dtype(build.dtype))
        names = CheckpointNames(whole, build.dtype)
        form = read_classifier(whole, names) if kind.classifies else None
        anatomy = Anatomy.from_model(below_head(whole), generates=False)
        self.step, self.positions = Step(), Positions(anatomy.model)
        rehearsed = rehearse(anatomy, self.positions)
        _check_first_token(build, rehearsed)
        self.first_position = rehearsed.first_position
        self.body, self.has_types = anatomy.model, _has_types(anatomy.model)
        if self.has_types:
            build.columns.append(TYPE_BOUNDARY)
        _, self._embed = exchange(build, anatomy, names, rehearsed, self.step)
        self.pooling: Mapping[str, PoolingHead] = embedding_heads(build)
        if form is not None and build.pooler is not None:
            head = bind_classifier(build, form)
            task = "token_classify" if form.pooling == "all" else "classify"
            self.pooling = {**self.pooling, task: head}
        self.facts = ModelFacts(
            architecture=kind.architecture,
            vocab_size=anatomy.embedding.num_embeddings,
            hidden_size=rehearsed.width,
            num_layers=len(rehearsed.attention),
            max_positions=max_model_len,
            dtype=build.dtype,
            caches=build.caches,
            chunkable=not rehearsed.looks_ahead,
            prefix_cacheable=not rehearsed.looks_ahead,
            notes=tuple(build.notes),
            generates=False,
            functional=False,
        )

    @property
    def head(self) -> SamplingHead:
        raise AssertionError("it generates nothing")

    def embed(self, tokens: Tensor) -> Tensor:
        result: Tensor = self._embed(tokens)
        return result

    def forward(self, x: Tensor, launch: Launch, caches: Caches, residual: Tensor | None = None) -> Hidden:
        self.step.begin(launch, caches)
        positions = launch.positions.long()
        inputs = {"inputs_embeds": x[None], **self.positions.arguments(positions + self.first_position)}
        if self.has_types:
            inputs["token_type_ids"] = (positions >= launch.columns[TYPE_BOUNDARY.name]).long()[None]
        states = self.body(**inputs)[0][0]
        return Hidden(launch.select_logits(states))

    def finish(self, hidden: Hidden) -> Tensor:
        return hidden.last

    def logits(self, rows: Tensor) -> Tensor:
        raise AssertionError("it generates nothing")


def below_head(whole: PreTrainedModel) -> PreTrainedModel:
    """Without the pooler too, which is part of a head."""
    body: Any = whole.base_model
    if isinstance(getattr(body, "pooler", None), nn.Module):
        body.pooler = None
    return body


def _check_first_token(build: Build, rehearsed: Rehearsed) -> None:
    """The first token of a causal model has seen nothing of the text."""
    pooler = build.pooler
    if pooler is not None and "embed" in pooler.tasks and pooler.pooling == "cls" and not rehearsed.looks_ahead:
        raise RefusedTypeError(
            "its tokens see only those before them, so the first one's state is no vector of a text; give "
            """--pooler-config '{"pooling_type": "LAST"}'"""
        )


def _has_types(body: Any) -> bool:
    """Whether tokens of the second text of a pair have another embedding."""
    takes = inspect.signature(type(body).forward).parameters
    return "token_type_ids" in takes and (getattr(body.config, "type_vocab_size", 0) or 0) > 1
