from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.limits import Machine, Weights, allowed, bound, compiled, parameters, probe, weights
from benchmarks.task import Task


def model(folder: Path, shapes: dict[str, list[int]], **config) -> Path:
    header = json.dumps({"__metadata__": {}, **{name: {"shape": shape} for name, shape in shapes.items()}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    said = {"vocab_size": 100, "num_hidden_layers": 2, **config}
    (folder / "config.json").write_text(json.dumps(said), encoding="utf-8")
    return folder


def test_vectors_do_not_count_and_a_tied_embedding_counts_once(tmp_path: Path):
    found = weights(model(tmp_path, {"embed_tokens": [100, 8], "layers.0.q_proj": [8, 8], "norm": [8]}))
    assert found == Weights(total=864, last=800)


def test_an_embedding_beside_a_head_is_only_looked_up(tmp_path: Path):
    found = weights(model(tmp_path, {"embed_tokens": [100, 8], "lm_head": [100, 8], "layers.0.q_proj": [8, 8]}))
    assert found == Weights(total=864, last=800)


def test_experts_count_as_far_as_a_token_takes_them(tmp_path: Path):
    shapes = {"lm_head": [100, 8], "layers.0.experts.0.w1": [16, 8], "layers.0.experts.1.w1": [16, 8]}
    found = weights(model(tmp_path, shapes, num_local_experts=2, num_experts_per_tok=1))
    assert found == Weights(total=928, last=800)


def test_a_prompt_needs_the_last_layer_for_its_last_token_but_for_keys_and_values(tmp_path: Path):
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    shapes = {f"model.layers.{layer}.self_attn.{name}.weight": [8, 8] for layer in (0, 1) for name in names}
    assert weights(model(tmp_path, {"lm_head": [100, 8], **shapes})) == Weights(total=1312, last=928)


def test_one_row_is_bound_by_memory_and_many_by_arithmetic():
    small = Weights(total=1000, last=200)
    machine = Machine(read=20_000.0, multiply=80_000.0)
    assert allowed(small, machine, item=2, batch=1, tokens=10)[1] == pytest.approx(10)
    assert allowed(small, machine, item=4, batch=1, tokens=10)[1] == pytest.approx(5)
    assert allowed(small, machine, item=2, batch=64, tokens=10)[1] == pytest.approx(40)


@pytest.mark.parametrize(
    ("precision", "batch", "decode"), [("plain", 1, 10), ("int8", 1, 20), ("int4", 1, 40), ("int8", 99, 80)]
)
def test_what_was_found_bounds_a_precision(precision: str, batch: int, decode: float, tmp_path: Path):
    folder = str(model(tmp_path, {"lm_head": [100, 10]}))
    task = Task("decode", folder, folder, "bfloat16", 4, 8, [1], 100, 2, 0, precision=precision)
    found = {"read GB/s": 20e-6, "bfloat16 registers GOP/s": 80e-6, "int8 registers GOP/s": 160e-6}
    assert bound(task, batch, found)["decode"] == pytest.approx(decode)
    assert bound(task, batch, {"read GB/s": 20e-6, "float32 registers GOP/s": 1.0}) == {}
    assert bound(task, batch, {}) == {}


def test_clients_have_their_prompts_read_before_they_are_answered(tmp_path: Path):
    folder = str(model(tmp_path, {"lm_head": [100, 10]}))
    task = Task("http", folder, folder, "bfloat16", 4, 8, [1], 100, 2, 0)
    found = bound(task, 1, {"read GB/s": 20e-6, "bfloat16 registers GOP/s": 80e-6})
    assert found["output"] == pytest.approx(8 / (4 / found["prefill"] + 8 / found["decode"]))


def test_prefill_needs_once_a_prompt_what_its_last_token_alone_needs():
    prefill, _ = allowed(Weights(1000, 200), Machine(1e12, 1640.0), item=2, batch=4, tokens=10)
    assert prefill == pytest.approx(10 / (2 * (800 * 10 + 200) / 1640))


def test_all_numbers_of_a_checkpoint_count_as_parameters(tmp_path: Path):
    assert parameters(model(tmp_path, {"embed_tokens": [100, 8], "lm_head": [100, 8], "norm": [8]})) == 1608


def test_what_the_machine_does_is_known_only_with_a_compiler(tmp_path: Path):
    assert probe(None, 1) == {}
    library = compiled(tmp_path)
    if library is not None:
        found = probe(library, 1)
        assert {"read GB/s", "float32 registers GOP/s"} <= set(found)
        assert all(rate > 0 for rate in found.values())
