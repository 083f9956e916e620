"""Weights of a GGUF file that stay in their blocks: they mean what decoding gives, and answers are the same."""

from __future__ import annotations

import random
from dataclasses import replace
from math import prod
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from transformers import (
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from tessera.cli.program import run as run_program
from tessera.engine.plan import plan_here
from tessera.loader.gguf import GgufWeights
from tessera.ops.quantize import meaning
from tessera.platform import StoredWeight
from tessera.platform.quantization import Part
from tessera.testing.conformance.lora import save_adapter
from tests.engine.platforms.test_quantization import VOCAB, apart, scored
from tests.models.gguf.writer import write_gguf
from tests.platforms import blockless
from tests.platforms.cpu_kernels import needs_kernels
from tests.platforms.engine_run import EngineRun
from tests.platforms.threads import THREADS
from tools.parity.family import Family, maker, save_model

SIZES: dict[str, Any] = {
    "hidden_size": 160,
    "intermediate_size": 224,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
}
LLAMA = Family("llama", maker(LlamaConfig, LlamaForCausalLM, **SIZES, vocab_size=VOCAB))
MIXTRAL = Family("mixtral", maker(MixtralConfig, MixtralForCausalLM, num_local_experts=3, **SIZES, vocab_size=VOCAB))
TIED = Family("llama", maker(LlamaConfig, LlamaForCausalLM, **SIZES, vocab_size=VOCAB, tie_word_embeddings=True))
GEMMA4 = Family(
    "gemma4",
    maker(
        Gemma4TextConfig, Gemma4ForCausalLM, **SIZES, vocab_size=VOCAB, vocab_size_per_layer_input=VOCAB,
        hidden_size_per_layer_input=32, layer_types=["sliding_attention", "full_attention"], sliding_window=7,
        head_dim=32, global_head_dim=64, enable_moe_block=True, num_experts=3, top_k_experts=2,
        moe_intermediate_size=96, tie_word_embeddings=True, experts_implementation="eager",
    ),
)  # fmt: skip
"""Through transformers, whose checkpoints have all experts in one tensor."""
MIXED = {"attn_v": Type.Q8_0, "ffn_up": Type.BF16, "attn_k": Type.Q5_1}
"""By the name of a tensor, beside Q4_0."""


@pytest.mark.parametrize("kind", [Type.Q4_1, Type.Q8_0], ids=["Q4_1", "Q8_0"])
def test_any_rows_and_whole_blocks_mean_what_decoding_gives(kind, tmp_path):
    weights = GgufWeights(str(write_gguf(save_model(LLAMA, tmp_path), tmp_path / "model.gguf", kind)))
    chance, seen = random.Random(3), 0
    for name, named in weights.model.weights.items():
        if len(named.shape) != 2:
            continue
        n, k = named.shape
        for rows, columns in (
            (None, None),
            (tuple(sorted(chance.sample(range(n + 1), 2))), None),
            (None, (32, k)),
            ((1, n), (32, 64)),
        ):
            part = Part(name, named.shape, rows, columns)
            stored = weights.form.stored(part, "Linear", "bfloat16")
            assert isinstance(stored, StoredWeight)
            blocks = weights.read(stored.parts["weight"])
            assert tuple(blocks.shape) == stored.parts["weight"].shape
            assert torch.equal(meaning({"weight": blocks}, stored.scheme), weights.read(part))
            assert stored.parts["weight"].numbers == part.numbers
            assert stored.decoded == part
            seen += 1
    assert seen == 4 * (2 + 2 * 7)


def test_what_cannot_stay_in_blocks_says_why(tmp_path):
    model = save_model(LLAMA, tmp_path)
    form = GgufWeights(str(write_gguf(model, tmp_path / "model.gguf", Type.Q4_0, MIXED))).form
    down = Part("model.layers.0.mlp.down_proj.weight", (160, 224))
    assert form.stored(replace(down, columns=(0, 112)), "Linear", "bfloat16") == (
        "it is stored in Q4_0, and the shard cuts blocks of 32 inputs"
    )
    assert isinstance(form.stored(replace(down, columns=(32, 128)), "Linear", "bfloat16"), StoredWeight)
    up = Part("model.layers.0.mlp.up_proj.weight", (224, 160))
    assert form.stored(up, "Linear", "bfloat16") == "it is stored in BF16"
    assert form.stored(Part("model.norm.weight", (160,)), "Linear", "bfloat16") == "it is no matrix of the file"


@pytest.mark.parametrize("family", [LLAMA, TIED, MIXTRAL, GEMMA4], ids=["llama", "tied", "mixtral", "gemma4"])
@pytest.mark.parametrize("other", [{}, MIXED], ids=["alike", "mixed"])
def test_answers_are_those_of_decoded_weights(family, other, tmp_path):
    """The strict platform multiplies with blocks, the reference with what was decoded; both in float32. Decoding in a
    step reads the weight on the host, so nobody watches for that here."""
    path = write_gguf(save_model(family, tmp_path), tmp_path / "model.gguf", Type.Q4_0, other)
    found, expected = scored(path, "strict", executor=None), scored(path, "reference")
    assert max(float(np.abs(one - two).max()) for one, two in zip(found, expected, strict=True)) < 1e-4


def test_the_plan_says_what_stays_in_its_blocks_and_why_the_rest_does_not(tmp_path):
    path = write_gguf(save_model(LLAMA, tmp_path), tmp_path / "model.gguf", Type.Q4_0, MIXED)

    def said(platform):
        with EngineRun(path, platform) as run:
            choices = plan_here(run.engine.config).choices
            stored = run.engine.info.weight_bytes
        weights = [one for one in choices if one.what == "quantization" and one.place.startswith("weights of")]
        return {one.chosen: (one.place.removeprefix("weights of "), one.others) for one in weights}, stored

    blocks, in_blocks = said("strict")
    assert blocks == {
        "q4_0, in blocks of 32": ("9 products", ()),
        "q4_0, in blocks of 32, to look rows up in": ("1 product", ()),
        "q5_1, in blocks of 32": ("2 products", ()),
        "q8_0, in blocks of 32": ("2 products", ()),
    }
    decoded, whole = said("reference")
    assert decoded == {
        "q4_0, decoded to float32": ("9 products", (("as stored", "no kernel"),)),
        "q5_1, decoded to float32": ("2 products", (("as stored", "no kernel"),)),
        "q8_0, decoded to float32": ("2 products", (("as stored", "no kernel"),)),
    }
    tensors = GgufWeights(str(path)).model.file.tensors.values()
    assert in_blocks == sum(one.num_bytes if one.type.elements > 1 else 4 * prod(one.shape) for one in tensors)
    assert in_blocks < whole / 3


def test_experts_that_run_through_transformers_are_matrices_of_the_file(tmp_path):
    path = write_gguf(save_model(GEMMA4, tmp_path), tmp_path / "model.gguf", Type.Q4_0)
    with EngineRun(path, "strict") as run:
        choices = [one for one in plan_here(run.engine.config).choices if one.place.startswith("weights of")]
    assert {one.chosen: one.others for one in choices} == {
        "q4_0, in blocks of 32": (),
        "q4_0, decoded to float32": (("as stored", "experts are the reference's"),),
    }


def test_the_command_plan_counts_blocks_as_they_are_stored(tmp_path, capsys):
    path = write_gguf(save_model(LLAMA, tmp_path), tmp_path / "model.gguf", Type.Q4_0, MIXED)
    with EngineRun(path, "strict") as run:
        stored = run.engine.info.weight_bytes
        platform = run.engine.config.platform
    assert run_program(["plan", str(path), "--platform", platform, "--dtype", "float32", "--json"]) == 0
    (planned,) = msgspec.json.decode(capsys.readouterr().out)
    assert planned["weight_bytes"] == stored


@needs_kernels
@pytest.mark.parametrize("family", [LLAMA, MIXTRAL], ids=["llama", "mixtral"])
def test_the_cpu_multiplies_with_blocks_as_with_decoded_weights(family, tmp_path):
    """In bfloat16, and with activations in int8: near, and not equal."""
    path = write_gguf(save_model(family, tmp_path), tmp_path / "model.gguf", Type.Q4_0, MIXED)
    found, expected = scored(path, "cpu", dtype="bfloat16"), scored(path, "reference")
    differences = np.concatenate([np.abs(one - two).ravel() for one, two in zip(found, expected, strict=True)])
    assert differences.mean() > 1e-4
    assert np.median(differences) < 0.05  # not the mean: a token may go to another expert
    with EngineRun(path, "cpu", dtype="bfloat16") as run:
        choices = plan_here(run.engine.config).choices
    assert any(one.chosen.startswith("q4_0, in blocks") for one in choices)
    assert not any("decoded" in one.chosen for one in choices)


@needs_kernels
def test_blocks_are_converted_to_what_a_platform_has_when_asked(tmp_path):
    path = write_gguf(save_model(LLAMA, tmp_path), tmp_path / "model.gguf", Type.Q4_0, MIXED)
    found = scored(path, blockless.PATH, dtype="bfloat16", convert_weights=True)
    differences = [np.abs(one - two).mean() for one, two in zip(found, scored(path, "reference"), strict=True)]
    assert 1e-4 < np.mean(differences) < 0.1
    with EngineRun(path, blockless.PATH, dtype="bfloat16", convert_weights=True) as run:
        chosen = {one.chosen for one in plan_here(run.engine.config).choices}
        converted = run.engine.info.weight_bytes
    rows = "int8, one scale per row; activations int8, one scale per token"
    assert {f"{kind}, converted to {rows}" for kind in ("q4_0", "q5_1", "q8_0")} <= chosen
    with EngineRun(path, blockless.PATH, dtype="bfloat16") as run:
        assert any(one.chosen == "q4_0, decoded to bfloat16" for one in plan_here(run.engine.config).choices)
        assert converted < run.engine.info.weight_bytes


@needs_kernels
@pytest.mark.parametrize("inner", [192, 160])
def test_two_ranks_answer_as_one(inner, tmp_path):
    """Shards of 96 inputs are whole blocks; those of 80 are not, and are decoded."""
    sizes = {"hidden_size": 128, "intermediate_size": inner, "num_attention_heads": 4, "num_key_value_heads": 2}
    family = Family("llama", maker(LlamaConfig, LlamaForCausalLM, **sizes, vocab_size=VOCAB))
    path = write_gguf(save_model(family, tmp_path), tmp_path / "model.gguf", Type.Q4_0)
    one, two = (
        scored(path, "cpu", dtype="bfloat16"),
        scored(path, "cpu", dtype="bfloat16", executor=None, tensor_parallel_size=2),
    )
    assert 0 < apart(one, two) < 2 * apart(one, scored(path, "reference")) < 0.1


@needs_kernels
def test_two_ranks_with_whole_experts_multiply_with_their_blocks(tmp_path):
    """2 and 1 of 3 experts. Of their 224 inputs, 112 would be three and a half blocks."""
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 224}
    settings = {**SIZES, **sizes, "num_local_experts": 3, "vocab_size": VOCAB}
    family = Family("mixtral", maker(MixtralConfig, MixtralForCausalLM, **settings))
    path = write_gguf(save_model(family, tmp_path), tmp_path / "model.gguf", Type.Q4_0)
    flags = {"tensor_parallel_size": 2, "enable_expert_parallel": True, "executor": THREADS}
    one, two = scored(path, "cpu", dtype="bfloat16"), scored(path, "cpu", dtype="bfloat16", **flags)
    assert 0 < apart(one, two) < 2 * apart(one, scored(path, "reference")) < 0.1
    with EngineRun(path, "cpu", dtype="bfloat16", **flags) as run:
        chosen = [one.chosen for one in plan_here(run.engine.config).choices if "q4_0" in one.chosen]
    assert chosen
    assert not any("decoded" in one for one in chosen)


def test_an_adapter_is_added_to_what_blocks_give(tmp_path):
    path = write_gguf(save_model(LLAMA, tmp_path), tmp_path / "model.gguf", Type.Q4_0, MIXED)
    adapter = str(save_adapter(tmp_path, tmp_path / "adapter", seed=0))

    def answers(platform):
        with EngineRun(path, platform, features=["lora"], enable_lora=True, executor=None) as run:
            keys = [run.add([3, 1, 4, 1, 5], 12, adapter=name) for name in ("", adapter)]
            run.finish()
            return [run.answers[key] for key in keys]

    found = answers("strict")
    assert found == answers("reference")
    assert found[0] != found[1]
