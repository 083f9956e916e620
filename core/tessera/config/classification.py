"""What config.json says of a classifier's labels."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tessera.errors import ModelError, printable

MAX_LABELS = 2**16
_OF_PROBLEMS: Mapping[str, str] = MappingProxyType(
    {
        "regression": "identity",
        "single_label_classification": "softmax",
        "multi_label_classification": "sigmoid",
    }
)
_ACTIVATIONS = ("identity", "sigmoid", "softmax")


def classification(config: Mapping[str, Any], saved: Any = None) -> tuple[tuple[str, ...], str]:
    """The labels, in the order of their numbers, and what makes probabilities of the numbers: "sigmoid", "softmax" or
    "identity". config: of config.json. saved: the activation that sentence-transformers' settings name. Raises
    ModelError."""
    labels = _labels(config)
    return labels, activation_of(saved) or _activation(config, len(labels))


def activation_of(saved: Any) -> str | None:
    """saved: the name of a class of torch. None for what is no name. Raises ModelError."""
    if not isinstance(saved, str):
        return None
    name = saved.rpartition(".")[2].lower()
    if name not in _ACTIVATIONS:
        raise ModelError(
            f"the activation {printable(name, 40)} of the model's files is not supported; {', '.join(_ACTIVATIONS)} "
            "are."
        )
    return name


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    named = config.get("id2label")
    if named is None:
        number = config.get("num_labels", 2)  # as in transformers
        if type(number) is not int or not 1 <= number <= MAX_LABELS:
            raise ModelError(f"num_labels in config.json must be 1 to {MAX_LABELS:,}.")
        return tuple(f"LABEL_{label}" for label in range(number))
    places = {str(number): name for number, name in named.items()} if isinstance(named, Mapping) else {}
    if not 1 <= len(places) <= MAX_LABELS or any(str(number) not in places for number in range(len(places))):
        raise ModelError(f"id2label in config.json must name up to {MAX_LABELS:,} labels, by numbers from 0 on.")
    return tuple(str(places[str(number)]) for number in range(len(places)))


def _activation(config: Mapping[str, Any], labels: int) -> str:
    """As sentence-transformers saved it, as problem_type says, or as the number of labels implies."""
    said = config.get("sentence_transformers")
    saved = said.get("activation_fn") if isinstance(said, Mapping) else None
    named = activation_of(saved or config.get("sbert_ce_default_activation_function"))
    if named is not None:
        return named
    problem = config.get("problem_type")
    if problem is not None:
        if problem not in _OF_PROBLEMS:
            raise ModelError(f"problem_type in config.json must be one of {', '.join(_OF_PROBLEMS)}.")
        return _OF_PROBLEMS[problem]
    return "sigmoid" if labels == 1 else "softmax"
