"""A head that is the embedding: one weight is kept for both where it can be looked up in, and the numbers are the
same."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tessera.engine.plan import plan_here
from tests.engine.platforms.test_quantization import apart, scored
from tests.platforms.cpu_kernels import needs_kernels
from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import VOCAB, save_family

ROOT = Path(__file__).parents[3]
TABLE = VOCAB * 72  # elements
SCHEMES = (None, "int8", "int4")
Model = Callable[[str, bool], Path]


@pytest.fixture(autouse=True)
def children_find_tessera(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "core"), str(ROOT / "platforms/cpu")]))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """model("llama", True): of a family, tied or not."""
    made: dict[tuple[str, bool], Path] = {}

    def make(family: str, tied: bool) -> Path:
        if (family, tied) not in made:
            made[family, tied] = save_family(family, tmp_path_factory.mktemp("tied"), tie_word_embeddings=tied)
        return made[family, tied]

    return make


@needs_kernels
@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("family", ["llama", "gemma2", "falcon"])
def test_native_kernels_give_the_numbers_of_the_definition(family: str, name: str | None, model: Model) -> None:
    """As far from the plain model in float32 as the definition is, which looks up in the same parts."""
    flags = {"quantization": name, "dtype": "bfloat16"}
    tied = model(family, True)
    plain, expected = scored(tied, "reference"), scored(tied, "reference", **flags)
    found = scored(tied, "cpu", **flags)
    assert 0.8 < apart(found, plain) / apart(expected, plain) < 1.25


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_platforms_look_up_in_the_same_numbers(name: str, model: Model) -> None:
    tied = model("llama", True)
    plain, expected = scored(tied, "reference"), scored(tied, "reference", quantization=name)
    changed = apart(plain, expected)
    assert apart(scored(tied, "strict", quantization=name), expected) < 0.1 * changed
    assert apart(scored(tied, "cpu", quantization=name), expected) < 0.4 * changed


# Schemes on two ranks are each day's in test_quantization.py.
@pytest.mark.parametrize("name", [*(pytest.param(name, marks=pytest.mark.nightly) for name in ("int8", "int4")), None])
def test_two_ranks_look_up_what_one_does(name: str | None, model: Model) -> None:
    flags = {"quantization": name, "dtype": "bfloat16"}
    tied = model("llama", True)
    alone, plain = scored(tied, "cpu", **flags), scored(tied, "cpu")
    two = scored(tied, "cpu", executor=None, tensor_parallel_size=2, **flags)
    assert apart(two, plain) < 1.5 * apart(alone, plain)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize(
    ("platform", "dtype"),
    [
        pytest.param("cpu", "bfloat16", marks=needs_kernels),
        pytest.param("cpu", "float32", marks=needs_kernels),
        ("reference", "float32"),
        ("strict", "float32"),
    ],
)
def test_both_are_kept_once(platform: str, dtype: str, name: str | None, model: Model) -> None:
    """The plan says so too."""
    kept = []
    for tied in (True, False):
        with EngineRun(model("llama", tied), platform, quantization=name, dtype=dtype) as run:
            info, planned = run.engine.info, plan_here(run.engine.config)
        assert (planned.weight_bytes, planned.num_weights) == (info.weight_bytes, info.num_weights)
        assert planned.choices == info.choices
        kept.append((info.weight_bytes, info.num_weights))
    (one, numbers), (two, more) = kept
    assert more - numbers == TABLE
    assert two - one == TABLE * (2 if dtype == "bfloat16" else 4)


@needs_kernels
def test_the_explanation_says_who_looks_up(model: Model) -> None:
    found = {}
    for tied in (True, False):
        with EngineRun(model("llama", tied), "cpu", quantization="int8", dtype="bfloat16") as run:
            found[tied] = run.engine.info.choices
    chosen = {
        tied: {one.what: one.chosen for one in choices if "embedding" in one.what} for tied, choices in found.items()
    }
    assert chosen == {True: {"packed_embedding": "kernel PackedEmbedding"}, False: {"embedding": "kernel Embedding"}}
    left = {tied: [one.place for one in choices if "embed_tokens" in one.place] for tied, choices in found.items()}
    assert left == {True: [], False: ["weight of model.embed_tokens"]}


def test_what_only_products_can_read_keeps_a_table_beside_it(model: Model) -> None:
    """oneDNN's packing, where it packs."""
    with EngineRun(model("llama", True), "cpu", dtype="float16") as run:
        chosen = {one.what for one in run.engine.info.choices if "embedding" in one.what}
    assert chosen == {"embedding"}
