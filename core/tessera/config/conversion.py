"""--convert classify: a language model that classifies, by a head in its checkpoint or by the logits of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tessera.config.checkpoint import Checkpoint
from tessera.config.classification import classification
from tessera.config.model_folder import token_ids
from tessera.config.pooler import PoolerConfig, TokenScore
from tessera.config.reward import with_steps
from tessera.config.sentence_transformers import saved_activation
from tessera.errors import ConfigError, ModelError

_FLAG = "pooler_config"
_TOKENS = "returned_token_ids"
_NAMED = "classifier_from_token"
_DIFFERENCE, _EACH = "from_2_way_softmax", "no_post_processing"
"""What config.json says of the tokens of _NAMED, with vLLM's names: a score is the second's logit less the first's, or
each gives the number of a label."""
MAX_TOKENS = 1024


def converted_pooler(checkpoint: Checkpoint, flag: Mapping[str, Any] | None) -> PoolerConfig:
    """flag: --pooler-config, with vLLM's names. Raises ConfigError and ModelError."""
    said, named = dict(flag or {}), checkpoint.config.get(_NAMED)
    tokens = said.pop(_TOKENS, None)
    if tokens is not None:
        return with_steps(_of_labels(checkpoint, _checked(tokens, checkpoint)), checkpoint, said, None, steps=False)
    if named is None:
        labels, activation = classification(checkpoint.config, saved_activation(checkpoint.folder))
        both = PoolerConfig(("classify", "token_classify"), "last", labels=labels, activation=activation)
        return with_steps(replace(both, converted=True), checkpoint, said, None, steps=False)
    tokens, method = _named(named, checkpoint), checkpoint.config.get("method", _EACH)
    if method == _DIFFERENCE and len(tokens) == 2:
        if said:
            raise ConfigError(f"{_FLAG} is not supported with {_NAMED} of config.json; remove it.", param=_FLAG)
        no, yes = tokens
        note = f"scores texts by the logits of the tokens {yes} and {no}, as config.json says"
        score = TokenScore(yes, no)
        return PoolerConfig(
            ("classify",), "last", labels=("LABEL_0",), activation="sigmoid", token_score=score, notes=(note,)
        )
    if method != _EACH:
        raise ModelError(f"method in config.json must be {_DIFFERENCE}, with two tokens, or {_EACH}.")
    return with_steps(_of_labels(checkpoint, tokens), checkpoint, said, None, steps=False)


def _of_labels(checkpoint: Checkpoint, tokens: Sequence[int]) -> PoolerConfig:
    said = {**checkpoint.config, "num_labels": len(tokens), "id2label": None}
    labels, activation = classification(said, saved_activation(checkpoint.folder))
    note = f"classifies by the logits of the tokens {', '.join(map(str, tokens))}"
    return PoolerConfig(
        ("classify", "token_classify"),
        "last",
        labels=labels,
        activation=activation,
        label_tokens=tuple(tokens),
        notes=(note,),
    )


def _checked(tokens: Any, checkpoint: Checkpoint) -> Sequence[int]:
    fits = isinstance(tokens, list) and 1 <= len(tokens) <= MAX_TOKENS
    if not fits or any(type(token) is not int or not 0 <= token < checkpoint.vocab_size for token in tokens):
        raise ConfigError(
            f"{_FLAG}: {_TOKENS} must be a list of 1 to {MAX_TOKENS:,} tokens of the model's {checkpoint.vocab_size}.",
            param=_FLAG,
        )
    result: list[int] = tokens
    return result


def _named(named: Any, checkpoint: Checkpoint) -> Sequence[int]:
    """The ids of the tokens that config.json names by their texts."""
    fits = isinstance(named, list) and 1 <= len(named) <= MAX_TOKENS and all(isinstance(name, str) for name in named)
    ids = token_ids(checkpoint.folder, named) if fits else []
    if not ids or any(token is None or token >= checkpoint.vocab_size for token in ids):
        raise ModelError(f"{_NAMED} in config.json must be a list of tokens of the model's tokenizer.json.")
    return [token for token in ids if token is not None]
