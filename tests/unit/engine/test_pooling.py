"""What a request may choose of the numbers that a model made."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.config import ModelConfig
from tessera.config.pooler import PoolerConfig
from tessera.engine.pooling import activated, check_pooling, of_steps
from tessera.errors import RequestError
from tessera.pooling_params import PoolingParams

EMBEDDER = PoolerConfig(("embed", "token_embed"), "mean", dimensions=5, matryoshka=(2, 3))
VALUES = np.array([3.0, -4.0, 0.0, 12.0, 1e-3], np.float32)


def classifier(activation):
    return PoolerConfig(("classify",), "cls", labels=("a", "b", "c"), activation=activation)


def test_vectors_are_cut_and_then_normalized():
    cut = activated(VALUES, PoolingParams(dimensions=2), EMBEDDER)
    np.testing.assert_allclose(cut, [0.6, -0.8], rtol=1e-6)
    whole = activated(np.stack([VALUES, 0 * VALUES]), PoolingParams("token_embed"), EMBEDDER)
    np.testing.assert_allclose(np.linalg.norm(whole, axis=-1), [1, 0], rtol=1e-6)
    plain = activated(VALUES, PoolingParams(use_activation=False, dimensions=3), EMBEDDER)
    assert plain.tolist() == VALUES[:3].tolist()
    assert cut.dtype == whole.dtype == plain.dtype == np.float32


@pytest.mark.parametrize(
    ("activation", "values", "expected"),
    [
        ("sigmoid", [0.0, 80.0, -80.0], [0.5, 1.0, 1.8e-35]),
        ("softmax", [0.0, np.log(2.0), 0.0], [0.25, 0.5, 0.25]),
        ("softmax", [500.0, 0.0, 0.0], [1.0, 0.0, 0.0]),
        ("identity", [-3.0, 0.5, 7.0], [-3.0, 0.5, 7.0]),
    ],
)
def test_probabilities_of_labels(activation, values, expected):
    numbers = np.array(values, np.float32)
    found = activated(numbers, PoolingParams("classify"), classifier(activation))
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-30)
    assert found.dtype == np.float32
    assert activated(numbers, PoolingParams("classify", use_activation=False), classifier(activation)) is numbers


@pytest.mark.parametrize(
    ("pooler", "params", "message"),
    [
        (
            None,
            PoolingParams(),
            "does not embed texts; it can generate text. To make it embed texts too, start it with",
        ),
        (None, PoolingParams("classify"), r"does not classify texts; it can generate text\.$"),
        (EMBEDDER, PoolingParams("classify"), "does not classify texts; it can embed texts and embed tokens"),
        (EMBEDDER, PoolingParams(dimensions=6), "dimensions is 6, but this model's vectors have 5"),
        (EMBEDDER, PoolingParams(dimensions=4), "vectors were made for 2, 3, 5; choose one of them"),
        (classifier("softmax"), PoolingParams("classify", dimensions=2), "dimensions are of vectors"),
    ],
)
def test_what_a_model_lacks_is_said(pooler, params, message):
    with pytest.raises(RequestError, match=message):
        check_pooling(params, ModelConfig("", "m", {}, 9, 9, pooler=pooler, generates=pooler is None))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "translate"}, "task must be one of embed, classify"),
        ({"dimensions": 0}, "dimensions must be 1 to 65536, got 0"),
        ({"dimensions": 65537}, "got 65537"),
    ],
)
def test_bounds(fields, message):
    with pytest.raises(RequestError, match=message):
        PoolingParams(**fields)


def test_numbers_of_steps():
    judge = PoolerConfig(("token_classify",), "last", labels=("a", "b"), step_token=7)
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    params = PoolingParams("token_classify")
    assert of_steps(values, [7, 7, 1, 7], params, judge).tolist() == [[0, 1], [4, 5]]
    assert of_steps(values, [1, 2, 3], params, judge).shape == (0, 2)
    assert of_steps(values, [1, 2, 3], params, EMBEDDER) is values
