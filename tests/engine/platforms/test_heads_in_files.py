"""tie_word_embeddings beside what the file holds: the head that transformers uses, said in one line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tessera.engine.plan import plan_here
from tessera.errors import ModelError
from tests.engine.platforms.test_quantization import QUESTIONS, apart, scored
from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import VOCAB, save_family

ROOT = Path(__file__).parents[3]
EMBEDDINGS = {
    "llama": "model.embed_tokens.weight",
    "mistral": "model.embed_tokens.weight",
    "qwen2": "model.embed_tokens.weight",
    "gemma3_text": "model.embed_tokens.weight",
    "falcon": "transformer.word_embeddings.weight",
    "starcoder2": "model.embed_tokens.weight",  # through transformers' code
}
HEAD = "lm_head.weight"
NOTE = "but the checkpoint holds both with different values; the head is read from the checkpoint"
TABLE = VOCAB * 72  # elements
TOLERANCE = 2e-5  # of a log probability, in float32
Folder = Callable[..., Path]


@pytest.fixture(autouse=True)
def children_find_tessera(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "core"), str(ROOT / "platforms/cpu")]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """folder("llama", True, "own"): the flag, and which of the two weights the file holds, with which values."""

    def make(family: str, tied: bool, held: str, shards: int = 1) -> Path:
        path = save_family(family, tmp_path_factory.mktemp("heads"), tie_word_embeddings=False)
        file = path / "model.safetensors"
        weights = load_file(file)
        if held == "equal":
            weights[HEAD] = weights[EMBEDDINGS[family]].clone()
        elif held != "own":
            del weights[HEAD if held == "embedding alone" else EMBEDDINGS[family]]
        file.unlink()
        _save(path, weights, shards)
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": tied}))
        return path

    return make


def _save(path: Path, weights: dict[str, torch.Tensor], shards: int) -> None:
    if shards == 1:
        return save_file(weights, path / "model.safetensors", {"format": "pt"})
    where = {}
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = {key: weights[key] for key in sorted(weights)[number::shards]}
        save_file(part, path / name, {"format": "pt"})
        where |= dict.fromkeys(part, name)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return None


def expected(path: Path) -> list[np.ndarray]:
    """transformers' log probabilities of each question's tokens."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = [model(torch.tensor([question])).logits[0, :-1] for question in QUESTIONS if len(question) > 1]
    return [one.log_softmax(-1).numpy() for one in logits]


def differ(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("held", ["own", "equal", "embedding alone", "head alone"])
@pytest.mark.parametrize("family", EMBEDDINGS)
def test_the_head_is_the_one_that_transformers_uses(family: str, held: str, tied: bool, folder: Folder) -> None:
    path = folder(family, tied, held)
    if not tied and held.endswith("alone"):  # transformers fills what is missing with random numbers
        missing = HEAD if held == "embedding alone" else EMBEDDINGS[family]
        with pytest.raises(ModelError, match=f"the checkpoint has no '{missing}'"):
            scored(path, "cpu")
        return
    with EngineRun(path, "cpu") as run:
        info = run.engine.info
    assert [NOTE in note for note in info.notes].count(True) == (tied and held == "own")
    assert differ(scored(path, "cpu"), expected(path)) < TOLERANCE


@pytest.mark.parametrize("held", ["own", "equal", "embedding alone"])
def test_the_plan_counts_the_head_that_is_read(held: str, folder: Folder) -> None:
    for tied in (True, False) if held != "embedding alone" else (True,):
        with EngineRun(folder("llama", tied, held, shards=3), "reference") as run:
            info, planned = run.engine.info, plan_here(run.engine.config)
        assert (planned.weight_bytes, planned.num_weights) == (info.weight_bytes, info.num_weights)
        assert [NOTE in note for note in planned.notes] == [NOTE in note for note in info.notes]
        once = tied and held != "own"
        with EngineRun(folder("llama", True, "embedding alone"), "reference") as run:
            assert info.num_weights - run.engine.info.num_weights == (0 if once else TABLE)


@pytest.mark.parametrize(
    "flags", [{"tensor_parallel_size": 2}, pytest.param({"pipeline_parallel_size": 2}, marks=pytest.mark.nightly)]
)
def test_every_worker_uses_it(flags: dict[str, int], folder: Folder) -> None:
    """A rank's own rows of the two may be equal."""
    path = folder("llama", True, "own", shards=2)
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        weights = load_file(path / name)
        if HEAD in weights:
            head, file = weights, path / name
        if EMBEDDINGS["llama"] in weights:
            embedding = weights[EMBEDDINGS["llama"]]
    half = -(-VOCAB // 2)
    head[HEAD][:half] = embedding[:half]
    save_file(head, file, {"format": "pt"})
    assert differ(scored(path, "reference", executor=None, **flags), expected(path)) < TOLERANCE


def test_in_the_dtype_of_the_model(folder: Folder) -> None:
    """What differs by less than the dtype can tell is one weight."""
    path = folder("llama", True, "equal")
    weights = load_file(path / "model.safetensors")
    weights[EMBEDDINGS["llama"]] = weights[HEAD].bfloat16().float()
    weights[HEAD] = weights[EMBEDDINGS["llama"]] * (1 + 2**-20)
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    said = {}
    for dtype in ("float32", "bfloat16"):
        with EngineRun(path, "reference", dtype=dtype) as run:
            said[dtype] = any(NOTE in note for note in run.engine.info.notes)
    assert said == {"float32": True, "bfloat16": False}


def test_a_quantized_model_rounds_the_head_of_the_file(folder: Folder) -> None:
    own, tied = (folder("llama", flag, "own") for flag in (False, True))
    given, other = (scored(path, "reference", quantization="int8") for path in (tied, own))
    assert apart(given, other) == 0.0


def test_a_runner_of_the_platforms_own_is_told(folder: Folder) -> None:
    for held, said in (("own", True), ("embedding alone", False)):
        path = folder("llama", True, held)
        with EngineRun(path, "numpy") as run, EngineRun(path, "cpu") as other:
            notes = [note for note in run.engine.info.notes if "holds a head of its own" in note]
            assert run.ask(QUESTIONS, 4) == other.ask(QUESTIONS, 4)
        assert len(notes) == said
