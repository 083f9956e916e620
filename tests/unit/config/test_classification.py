"""What config.json says of labels, and of what makes probabilities of their numbers."""

from __future__ import annotations

import pytest

from tessera.config.classification import classification
from tessera.errors import ModelError

IDENTITY = "torch.nn.modules.linear.Identity"
SIGMOID = "torch.nn.modules.activation.Sigmoid"


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        ({}, ("LABEL_0", "LABEL_1")),  # transformers' default
        ({"num_labels": 1}, ("LABEL_0",)),
        ({"id2label": {"0": "no", "1": "yes"}}, ("no", "yes")),
        ({"id2label": {"2": "c", "0": "a", "1": "b"}, "num_labels": 7}, ("a", "b", "c")),
        ({"id2label": {str(n): f"l{n}" for n in range(12)}}, tuple(f"l{n}" for n in range(12))),
    ],
)
def test_labels_in_the_order_of_their_numbers(config, labels):
    assert classification(config)[0] == labels


@pytest.mark.parametrize(
    ("config", "activation"),
    [
        ({}, "softmax"),
        ({"num_labels": 1}, "sigmoid"),
        ({"num_labels": 1, "problem_type": "regression"}, "identity"),
        ({"problem_type": "single_label_classification"}, "softmax"),
        ({"problem_type": "multi_label_classification"}, "sigmoid"),
        ({"num_labels": 1, "sbert_ce_default_activation_function": IDENTITY}, "identity"),
        ({"sbert_ce_default_activation_function": SIGMOID, "problem_type": "regression"}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": IDENTITY, "version": "4.0"}, "num_labels": 1}, "identity"),
        ({"sentence_transformers": {"version": "4.0"}, "num_labels": 1}, "sigmoid"),
        ({"num_labels": 1, "problem_type": None}, "sigmoid"),
    ],
)
def test_what_makes_probabilities(config, activation):
    assert classification(config)[1] == activation


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({"num_labels": 0}, "num_labels in config.json must be 1 to 65,536"),
        ({"num_labels": True}, "num_labels"),
        ({"num_labels": "3"}, "num_labels"),
        ({"id2label": {}}, "id2label in config.json must name up to 65,536 labels"),
        ({"id2label": {"1": "a"}}, "by numbers from 0 on"),
        ({"id2label": ["a"]}, "id2label"),
        ({"problem_type": "ranking"}, "problem_type in config.json must be one of regression,"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.ReLU"}, "activation relu"),
    ],
)
def test_what_is_refused(config, fault):
    with pytest.raises(ModelError, match=fault) as raised:
        classification(config)
    assert "\n" not in str(raised.value)
