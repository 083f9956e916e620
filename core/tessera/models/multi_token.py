"""Layers that predict further tokens (multi-token prediction, arXiv:2412.19437, section 2.2), as checkpoints have them
behind the layers of the model: two norms, of a token's state and of the next token's embedding, a product of both, and
a block like the model's. Embedding and head are the model's own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from tessera.errors import ModelError
from tessera.layers.attention import RotaryTable
from tessera.layers.build import Build
from tessera.layers.linear import Linear, WeightShard
from tessera.layers.norm import AddNorm, Norm
from tessera.models.decoder import DecoderConfig, PreNormBlock
from tessera.models.fields import ConfigFields
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch

NEXT_TOKENS = "num_nextn_predict_layers"
"""The field of config.json that says how many such layers there are, in most families."""


_PLAIN = "the checkpoint stores it unquantized, whether or not config.json says so"


class PredictorNames(NamedTuple):
    """What a checkpoint calls the parts that such a layer has beside those of a block."""

    embedding_norm: str
    hidden_norm: str
    projection: str
    # behind the block
    norm: str


@dataclass(frozen=True)
class PredictorConfig:
    """A layer that predicts further tokens."""

    # of a decoder that has its block
    decoder: DecoderConfig
    # the block's, among the layers of that decoder
    number: int
    names: PredictorNames
    # whether it goes on from its state behind the last norm, and not before it, if it predicts one more token
    normed: bool = False

    def __call__(self, build: Build, tables: RotaryTable) -> MultiTokenPredictor:
        """Makes the layer."""
        return MultiTokenPredictor(build, self, tables)


class MultiTokenPredictor:
    """A TokenPredictor. The product of both inputs is divided by its inputs over the ranks, so that each has a partial
    sum, as the block expects. Raises ModelError where the checkpoint lacks the layer's weights."""

    def __init__(self, build: Build, config: PredictorConfig, tables: RotaryTable) -> None:
        decoder, names, first = config.decoder, config.names, len(build.mixers)
        if build.stored is not None and not build.stored.holds(f"{names.hidden_norm}.weight"):
            raise ModelError(
                f"config.json has a layer that predicts further tokens, but the checkpoint lacks its weights "
                f'({names.hidden_norm}.weight); leave speculative_config out, or use the method "ngram".'
            )
        hidden = decoder.hidden
        whole, partial = (Norm(decoder.eps, decoder.norm_offset, whole=complete) for complete in (True, False))
        self.normed = config.normed
        self.embedding_norm = AddNorm(build, names.embedding_norm, hidden, partial)
        self.hidden_norm = AddNorm(build, names.hidden_norm, hidden, whole)
        self.columns = slice(*build.shard(2 * hidden, "twice the hidden size"))
        columns = self.columns.start, self.columns.stop
        source = WeightShard(names.projection, hidden, 2 * hidden, columns=columns)
        self.projection = Linear(build, [source], keep=_PLAIN if _is_plain(build, names.projection) else "")
        self.block = PreNormBlock(build, decoder, config.number, tables)
        self.norm = AddNorm(build, names.norm, hidden, partial)
        self.layers: Collection[int] = range(first, len(build.mixers))

    def attend(self, embedded: Tensor, hidden: Tensor, launch: Launch, caches: Caches) -> Sequence[Tensor]:
        both = torch.cat([self.embedding_norm(embedded, None)[0], self.hidden_norm(hidden, None)[0]], dim=-1)
        return self.block.attend(self.projection(both[:, self.columns].contiguous()), None, launch, caches)

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        normed, total = self.norm(*self.block.transform(states))
        return normed, normed if self.normed else total


def _is_plain(build: Build, name: str) -> bool:
    """Whether a weight is stored as a matrix alone. Quantized checkpoints often have that of the product so, and do not
    list it among what they leave out."""
    stored = () if build.stored is None else build.stored.names()
    return [one for one in stored if one.startswith(f"{name}.")] == [f"{name}.weight"]


def next_token_layer(build: Build, fields: ConfigFields, config: DecoderConfig) -> PredictorConfig | None:
    """The first layer behind those of a decoder, in the form of DeepSeek V3 and GLM-4.5, if one is wanted. It is like
    the last one of the decoder. Raises ModelError where there is none."""
    if not build.predicts:
        return None
    check_count(build, fields.count(NEXT_TOKENS, 0, least=0), NEXT_TOKENS)
    number = len(config.layers)
    prefix = f"{config.names.layers}.{number}"
    names = PredictorNames(f"{prefix}.enorm", f"{prefix}.hnorm", f"{prefix}.eh_proj", f"{prefix}.shared_head.norm")
    return PredictorConfig(replace(config, layers=(*config.layers, config.layers[-1])), number, names)


def check_count(build: Build, number: int, name: str) -> None:
    """Says at start-up which layer makes drafts. number: of such layers, by the field `name` of config.json. Raises
    ModelError where there is none."""
    if not number:
        raise ModelError(
            f"config.json has no layer that predicts further tokens ({name}); leave speculative_config out, or use the "
            'method "ngram".'
        )
    more = "" if number == 1 else f", the first of {number}"
    build.notes.append(f"drafts are made by the model's own layer that predicts further tokens{more}")
