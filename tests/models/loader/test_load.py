"""Weights reach their parameters: whole or by shards, joined, each once."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tessera.engine.engine import Engine
from tessera.errors import ModelError
from tessera.loader import checkpoint as loading
from tessera.loader.checkpoint import Safetensors
from tessera.loader.random_weights import ALONE, PERIOD, Dummy
from tessera.ops.tensors import torch_dtype
from tessera.platform.quantization import Part
from tests.models.loader.folders import config_only, dummy_config, split

FAMILIES = {
    "llama": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "mixtral": ("mixtral", {"num_local_experts": 3}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "phi3": ("phi3", {}),
    "gemma3": ("gemma3", {}),
    "olmo2": ("olmo2", {"attention_bias": True}),
    "qwen3_moe": ("qwen3_moe", {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 12}),
    "glm4_moe": (
        "glm4_moe",
        {
            "head_dim": 8,
            "n_routed_experts": 3,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 12,
            "n_shared_experts": 2,
            "use_qk_norm": True,
            "attention_bias": True,
        },
    ),
    "falcon-7b": ("falcon", {"hidden_size": 24, "bias": True}),
    "falcon-40b": ("falcon", {"hidden_size": 24, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "bloom": ("bloom", {}),
    "mpt": ("mpt", {}),
    "falcon-rotary": ("falcon", {"hidden_size": 24, "multi_query": False, "parallel_attn": False}),
}

READS_MAPS = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")


class Counting:
    """A source, and how often it was asked for what."""

    def __init__(self, source):
        self.source, self.dtype, self.decodes, self.reads = source, source.dtype, source.decodes, Counter()

    def read(self, part):
        self.reads[part] += 1
        return self.source.read(part)

    def release(self):
        self.source.release()


def placed(ranks):
    """The tensors of a checkpoint put together again from the parameters of all ranks. Values of several ranks at one
    place must be equal; nothing may be left out."""
    whole = {}
    for rank in ranks:
        at = Counter()
        for parameter, name, index, part in rank.parts:
            value = parameter.packed[name][index] if parameter.stacked else parameter.packed[name]
            key = (id(parameter), name, index)
            shard = value[at[key] : at[key] + part.shape[0]]
            at[key] += part.shape[0]
            put(whole.setdefault(part.name, torch.full(part.whole, torch.nan)), shard, part)
    return whole


def put(into, shard, part):
    assert tuple(shard.shape) == part.shape
    start, stop = part.rows or (0, part.whole[0])
    there = min(stop, part.whole[0]) - min(start, part.whole[0])
    assert not shard[there:].any(), "what is beyond the tensor is zero"
    place = into[min(start, part.whole[0]) :][:there]
    if part.columns is not None:
        place = place[:, slice(*part.columns)]
    assert (place.isnan() | (place == shard[:there])).all()
    place.copy_(shard[:there])


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", FAMILIES)
def test_shards_put_together_are_the_checkpoint(built, checkpoint, name, size):
    family, differs = FAMILIES[name]
    folder, tensors = checkpoint(family, **differs)
    ranks = [built(family, rank, size, **differs).load(Safetensors(str(folder))) for rank in range(size)]
    whole = placed(ranks)
    assert whole.keys() == tensors.keys()
    for tensor, value in whole.items():
        assert torch.equal(value, tensors[tensor]), tensor


def test_layers_that_predict_further_tokens_are_not_read(built, checkpoint):
    """A checkpoint of GLM-4.5 has one more than num_hidden_layers."""
    family, differs = FAMILIES["glm4_moe"]
    folder, tensors = checkpoint(family, **differs)
    further = {f"model.layers.2.{name}.weight": torch.ones(3, 4) for name in ("eh_proj", "mlp.gate", "enorm")}
    split(folder, [{**tensors, **further}])
    source = Counting(Safetensors(str(folder)))
    assert placed([built(family, **differs).load(source)]).keys() == tensors.keys()
    assert not {part.name for part in source.reads} & further.keys()


def test_experts_are_scored_in_float32_whatever_the_models_dtype(built, checkpoint):
    family, differs = FAMILIES["glm4_moe"]
    folder, tensors = checkpoint(family, **differs)
    loaded = built(family, **differs).load(Safetensors(str(folder)), dtype="bfloat16")
    moe = loaded.model.blocks[1].mlp
    assert torch.equal(moe.router.weights[0]["weight"], tensors["model.layers.1.mlp.gate.weight"])
    assert torch.equal(moe.bias.tensor, tensors["model.layers.1.mlp.gate.e_score_correction_bias"])
    assert moe.down.packed["weight"].dtype == torch.bfloat16


def test_the_last_rank_pads_the_vocabulary(built, checkpoint):
    folder, tensors = checkpoint()
    last = built(rank=3, size=4).load(Safetensors(str(folder)))  # 29 rows: 8, 8, 8 and 5
    rows = last.model.embedding.parameter.tensor
    assert rows.shape == (8, 20)
    assert torch.equal(rows[:5], tensors["model.embed_tokens.weight"][24:])
    assert not rows[5:].any()


def test_a_rank_whose_vocabulary_is_all_padding(built, checkpoint):
    folder, _ = checkpoint(vocab_size=5)
    last = built(rank=3, size=4, vocab_size=5).load(Safetensors(str(folder)))  # 2, 2, 1 and none
    assert last.model.embedding.parameter.tensor.tolist() == [[0.0] * 20] * 2


def test_only_the_first_rank_adds_a_bias_to_a_partial_sum(built):
    first, second = (built(rank=rank, size=2, attention_bias=True) for rank in range(2))
    name = "model.layers.0.self_attn.o_proj.bias"
    assert name in {part.name for _, _, _, part in first.parts}
    assert name not in {part.name for _, _, _, part in second.parts}


@pytest.mark.parametrize(
    ("differs", "message"),
    [
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "the number of attention heads (5) is not divisible by"),
        ({"intermediate_size": 27}, "the inner size of the MLP (27) is not divisible by"),
        ({"num_attention_heads": 6, "num_key_value_heads": 3}, "the number of key/value heads (3) is not divisible by"),
    ],
)
def test_what_cannot_be_sharded(built, differs, message):
    with pytest.raises(ModelError) as raised:
        built(rank=0, size=2, **differs)
    assert message in str(raised.value)


# ---- tied heads ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2])
def test_a_tied_head_is_read_once_and_shared(built, checkpoint, size):
    folder, tensors = checkpoint(tie_word_embeddings=True)
    assert "lm_head.weight" not in tensors
    source = Counting(Safetensors(str(folder)))
    loaded = built(rank=size - 1, size=size, tie_word_embeddings=True).load(source)
    embedding, head = loaded.model.embedding.parameter.tensor, loaded.model.head.weight["weight"]
    assert embedding.data_ptr() == head.data_ptr()
    assert set(source.reads.values()) == {1}
    distinct = {
        parameter.packed[name].data_ptr(): parameter.packed[name].nbytes for parameter, name, _, _ in loaded.parts
    }
    assert loaded.arena.nbytes == sum(distinct.values())


def test_an_untied_head_is_another(built, checkpoint):
    folder, tensors = checkpoint()
    loaded = built().load(Safetensors(str(folder)))
    assert torch.equal(loaded.model.head.weight["weight"], tensors["lm_head.weight"])
    assert loaded.model.embedding.parameter.tensor.data_ptr() != loaded.model.head.weight["weight"].data_ptr()


@pytest.mark.parametrize(
    ("stored", "differs"),
    [
        ({}, False),
        ({"lm_head.weight": torch.ones(29, 20)}, False),
        ({"lm_head.weight": torch.ones(29, 20, dtype=torch.float16)}, False),
        ({"lm_head.bias": torch.zeros(29)}, False),
        ({"lm_head.weight": torch.cat((torch.ones(28, 20), torch.zeros(1, 20)))}, True),
        ({"lm_head.weight": torch.ones(28, 20)}, True),
        ({"lm_head.weight": torch.ones(29, 20, dtype=torch.int8), "lm_head.weight_scale": torch.ones(29, 1)}, True),
        ({"lm_head.weight_packed": torch.ones(29, 5, dtype=torch.int32)}, True),
    ],
)
def test_a_head_in_the_file_differs_from_the_embedding(tmp_path, monkeypatch, stored, differs):
    monkeypatch.setattr(loading, "COMPARED", 100)
    save_file({"model.embed_tokens.weight": torch.ones(29, 20), **stored}, tmp_path / "model.safetensors")
    source = Safetensors(str(tmp_path))
    assert source.differ(["model.embed_tokens.weight", "lm_head.weight"], "float32") is differs
    assert not source.differ(["lm_head.weight"], "float32")


# ---- dtypes, files, progress -----------------------------------------------------------------------------------------


def test_weights_are_converted(built, checkpoint):
    folder, tensors = checkpoint()
    loaded = built().load(Safetensors(str(folder)), dtype="bfloat16")
    assert torch.equal(loaded.model.head.weight["weight"], tensors["lm_head.weight"].bfloat16())


def test_the_dtype_is_that_of_matrices(checkpoint):
    folder, tensors = checkpoint()
    split(folder, [{name: t.half() if t.dim() > 1 else t for name, t in tensors.items()}])
    assert Safetensors(str(folder)).dtype == "float16"


def test_several_files_are_one_checkpoint(built, checkpoint):
    folder, tensors = checkpoint()
    split(folder, [dict(list(tensors.items())[number::3]) for number in range(3)])
    assert len(list(folder.glob("*.safetensors"))) == 3
    source = Safetensors(str(folder))
    assert sorted(source.names()) == sorted(tensors)
    assert all(torch.equal(source.whole(name), tensor) for name, tensor in tensors.items())
    assert placed([built().load(source)]).keys() == tensors.keys()


@pytest.mark.parametrize("shards", [1, 3])
def test_files_beside_the_models_own_change_nothing(built, checkpoint, shards):
    folder, tensors = checkpoint()
    if shards > 1:
        split(folder, [dict(list(tensors.items())[number::shards]) for number in range(shards)])
    stray = {tensor: torch.zeros_like(value) for tensor, value in tensors.items()}
    for name in ("a", "run2", "zz-00001-of-00001"):
        save_file(stray, folder / f"{name}.safetensors")
    source = Safetensors(str(folder))
    whole = placed([built().load(source)])
    assert all(torch.equal(whole[name], tensor) for name, tensor in tensors.items())
    (note,) = source.notes
    assert note.endswith("; a.safetensors and run2.safetensors and zz-00001-of-00001.safetensors are not read")


def mapped(folder):
    """Whether a file of it is."""
    return any(str(folder) in line for line in Path("/proc/self/maps").read_text().splitlines())


@READS_MAPS
def test_files_are_mapped_while_what_was_read_of_them_is_used(checkpoint, monkeypatch):
    folder, tensors = checkpoint()
    norm, table = "model.norm.weight", "model.embed_tokens.weight"
    monkeypatch.setattr(loading, "SMALL", tensors[table].nbytes)
    source = Safetensors(str(folder))
    assert mapped(folder)
    small, large = source.whole(norm), source.whole(table)
    source.release()
    assert mapped(folder), "a view of it is used"
    del large
    assert not mapped(folder), "what is small was copied"
    assert torch.equal(small, tensors[norm])


@READS_MAPS
@pytest.mark.parametrize("name", ["model.norm.weight", "model.embed_tokens.weight"])
def test_files_are_mapped_anew_after_enough_was_read(checkpoint, monkeypatch, name):
    folder, tensors = checkpoint()
    monkeypatch.setattr(loading, "SMALL", tensors["model.embed_tokens.weight"].nbytes)
    monkeypatch.setattr(loading, "MAPPED", 2 * tensors[name].nbytes)
    source = Safetensors(str(folder))
    for still in (True, False, True):
        assert torch.equal(source.whole(name), tensors[name])
        assert mapped(folder) is still


@READS_MAPS
def test_no_file_stays_mapped_for_a_loaded_models_small_weights(built, checkpoint):
    folder, _ = checkpoint()
    source = Safetensors(str(folder))
    loaded = built().load(source)
    assert not mapped(folder)
    assert placed([loaded]).keys() == placed([built().load(source)]).keys(), "a second load opens the files again"


def test_progress_counts_the_slots(built, checkpoint):
    folder, _ = checkpoint()
    loaded = built().load(Safetensors(str(folder)))
    total = len(loaded.build.parameters)
    assert [(step.done, step.total) for step in loaded.progress] == [(n + 1, total) for n in range(total)]


# ---- random weights --------------------------------------------------------------------------------------------------


def test_random_weights_need_config_json_alone(tmp_path, built):
    folder = config_only(tmp_path)
    assert [file.name for file in folder.iterdir()] == ["config.json"]
    engine = Engine(dummy_config(folder))
    engine.close()
    expected = built().load(Dummy(0), dtype=engine.info.dtype).arena.nbytes
    assert engine.info.weight_bytes == expected


def test_joined_projections_are_read_by_heads(built, checkpoint):
    """Of the second of two ranks: two heads of q, one of k and one of v, whatever the checkpoint puts between them."""
    for family, differs, rows in (
        ("phi3", {}, [12, 24, 30, 36, 42, 48]),
        ("falcon", {"hidden_size": 24, "new_decoder_architecture": True, "num_kv_heads": 2}, [24, 36, 36, 42, 42, 48]),
        ("falcon", {"hidden_size": 24}, [12, 24, 24, 30, 30, 36]),
        ("falcon", {"hidden_size": 24, "multi_query": False}, [36, 42, 54, 60, 42, 48, 60, 66, 48, 54, 66, 72]),
    ):
        folder, tensors = checkpoint(family, **differs)
        (whole,) = [tensors[n] for n in tensors if ".0." in n and n.endswith(("qkv_proj.weight", "key_value.weight"))]
        linear = built(family, 1, 2, **differs).load(Safetensors(str(folder))).model.blocks[0].attention.input.linear
        expected = [whole[start:stop] for start, stop in zip(rows[::2], rows[1::2], strict=True)]
        assert torch.equal(linear.weights[0]["weight"], torch.cat(expected))


@pytest.mark.parametrize("family", ["llama", "qwen2", "mixtral", "phi3"])
def test_random_weights_repeat(built, family):
    first, second, other = (built(family).load(Dummy(seed)) for seed in (5, 5, 2**64 - 1))
    pairs = zip(first.parts, second.parts, other.parts, strict=True)
    for (one, name, _, part), (same, *_), (different, *_) in pairs:
        assert torch.equal(one.packed[name], same.packed[name])
        if part.fill is None:
            assert not torch.equal(one.packed[name], different.packed[name])


def test_random_weights_differ_from_each_other():
    names = ("layers.12.weight", "layers.21.weight")  # the same letters
    first, second = (Dummy(0).read(Part(name, (4, 6))) for name in names)
    upper, lower = (Dummy(0).read(Part(names[0], (8, 6), rows=rows)) for rows in ((0, 4), (4, 8)))
    left, right = (Dummy(0).read(Part(names[0], (4, 12), columns=columns)) for columns in ((0, 6), (6, 12)))
    assert not torch.equal(first, second)
    assert not torch.equal(upper, lower)
    assert not torch.equal(left, right)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int8", "int32"])
def test_large_random_weights_repeat_one_draw(dtype):
    """Each from a place of its own; all that a small one has to be holds for them too."""
    shape = 1024, ALONE // 1024
    part, other = (Part(name, shape, dtype=dtype) for name in "ab")
    weight = Dummy(1).read(part)
    assert (weight.shape, weight.dtype) == (shape, torch_dtype(dtype))
    assert same_bits(weight, Dummy(1).read(part))
    assert not same_bits(weight, Dummy(2).read(part))
    assert not same_bits(weight, Dummy(1).read(other))
    values = weight.to(torch.float64) / weight.to(torch.float64).abs().max()
    assert values.mean().abs() < 0.01
    assert values.std() == pytest.approx(3**-0.5, abs=0.01)  # of a uniform distribution


def test_no_row_of_a_large_random_weight_is_another():
    part = Part("a", (PERIOD // 1024 + 100, 1024))
    rows = Dummy(0).read(part)
    assert len({row.tobytes() for row in rows.view(torch.int16).numpy()}) == len(rows)
    assert float(rows.abs().max()) == pytest.approx(1024**-0.5, rel=0.01)


def test_random_norms_change_nothing(built):
    assert built().load(Dummy(0)).model.norm.parameter.tensor.tolist() == [1.0] * 20


def same_bits(one, other):
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))
