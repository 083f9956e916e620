"""Reward models, which judge answers: what the name of their class says, and --pooler-config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tessera.config.checkpoint import Checkpoint
from tessera.config.classification import classification
from tessera.config.pooler import PoolerConfig
from tessera.config.sentence_transformers import saved_activation
from tessera.errors import ConfigError

REWARD = "ForRewardModel"
"""A number for each token; that of the last is the text's."""
PROCESS_REWARD = "ForProcessRewardModel"
"""Two labels for each step of a solution, behind which a token of its own stands."""
_STEP_TOKENS: Mapping[str, int] = MappingProxyType({"Qwen2ForProcessRewardModel": 151651})
"""Where --pooler-config names none, as in vLLM: <extra_0>."""
_FLAG = "pooler_config"
_STEP, _ALL = "STEP", "ALL"
_TYPES = ("pooling_type", "tok_pooling_type")


def reward_pooler(checkpoint: Checkpoint, architecture: str, flag: Mapping[str, Any] | None) -> PoolerConfig:
    """flag: --pooler-config, with vLLM's names. Raises ConfigError."""
    steps = architecture.endswith(PROCESS_REWARD)
    said = {**checkpoint.config, "num_labels": 2 if steps else 1, "id2label": None}
    labels, activation = classification(said, saved_activation(checkpoint.folder))
    pooler = PoolerConfig(
        ("token_classify",) if steps else ("token_classify", "classify"), "last", labels=labels, activation=activation
    )
    return with_steps(pooler, checkpoint, flag or {}, _STEP_TOKENS.get(architecture), steps=steps)


def with_steps(
    pooler: PoolerConfig, checkpoint: Checkpoint, flag: Mapping[str, Any], usual: int | None, *, steps: bool
) -> PoolerConfig:
    """Which tokens' numbers are answered. usual: the token behind a step, if the flag names none. steps: whether those
    of steps alone are, if the flag does not say. Raises ConfigError."""
    for key in flag.keys() - {*_TYPES, "step_tag_id"}:
        takes = "pooling_type STEP or ALL, and step_tag_id"
        raise ConfigError(f"{_FLAG} does not support the key '{key}' for this model; it takes {takes}.", param=_FLAG)
    kind = next((str(flag[name]).upper() for name in _TYPES if flag.get(name) is not None), None)
    if kind not in (None, _STEP, _ALL):
        raise ConfigError(f"{_FLAG}: pooling_type of this model must be STEP or ALL.", param=_FLAG)
    token = flag.get("step_tag_id")
    if kind == _ALL or (kind is None and token is None and not steps):
        return pooler
    token = usual if token is None else token
    if type(token) is not int or not 0 <= token < checkpoint.vocab_size:
        raise ConfigError(
            f"{_FLAG} must name the token behind each step, of the model's {checkpoint.vocab_size} (step_tag_id).",
            param=_FLAG,
        )
    note = f"numbers are those of the token {token}, behind each step; --pooler-config changes it"
    return replace(pooler, step_token=token, notes=(*pooler.notes, note))
