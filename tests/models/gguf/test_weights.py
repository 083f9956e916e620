"""The weights of a GGUF file under transformers' names, whole and in shards that no block or head aligns with."""

from __future__ import annotations

import random
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from tessera.errors import ModelError
from tessera.gguf.file import GgufFile
from tessera.gguf.model import GgufModel
from tessera.loader.gguf import GgufWeights
from tessera.platform.quantization import Part
from tessera.quantization.encodings import encoded_scheme
from tests.models.gguf.writer import write_gguf
from tools.parity.family import Family, maker, save_model

SIZES: dict[str, Any] = {
    "hidden_size": 160,
    "intermediate_size": 224,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
}
LLAMA = Family("llama", maker(LlamaConfig, LlamaForCausalLM, **SIZES))
MIXTRAL = Family("mixtral", maker(MixtralConfig, MixtralForCausalLM, num_local_experts=3, **SIZES))
WITH_BIASES = Family("llama-biases", maker(LlamaConfig, LlamaForCausalLM, attention_bias=True, mlp_bias=True, **SIZES))
KINDS = [Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0]


def rounded(model: Any, kind: Type) -> dict[str, torch.Tensor]:
    """The weights as a file of this kind gives them back, by the gguf package."""

    def through(value: torch.Tensor) -> torch.Tensor:
        if value.dim() < 2:
            return value
        rows = value.detach().reshape(-1, value.shape[-1]).numpy()
        return torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(rows, kind), kind)).reshape(value.shape)

    return {name: through(value) for name, value in model.state_dict().items()}


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
@pytest.mark.parametrize("family", [LLAMA, WITH_BIASES, MIXTRAL], ids=["llama", "biases", "mixtral"])
def test_each_weight_is_what_the_writer_gives_back(family, kind, tmp_path):
    model = save_model(family, tmp_path)
    weights = GgufWeights(str(write_gguf(model, tmp_path / "model.gguf", kind)))
    expected = rounded(model, kind)
    seen = set()
    for name in weights.names():
        part = Part(name, weights.model.weights[name].shape)
        layer, found, rest = name.partition("block_sparse_moe.experts.")
        if found:
            expert, which = rest.split(".")[:2]
            stack = "down_proj" if which == "w2" else "gate_up_proj"
            whole = expected[f"{layer}mlp.experts.{stack}"][int(expert)]
            wanted = whole if which == "w2" else whole.chunk(2)[which == "w3"]
        else:
            wanted = expected[name.replace("block_sparse_moe.gate", "mlp.gate")]
        assert torch.equal(weights.read(part), wanted), name
        seen.add(name)
    of_a_layer = {"llama": 9, "llama-biases": 9 + 7, "mixtral": 7 + 3 * 3}
    assert len(seen) == 3 + 2 * of_a_layer[family.name]


@pytest.mark.parametrize("kind", [Type.F32, Type.Q4_1, Type.Q8_0], ids=["F32", "Q4_1", "Q8_0"])
def test_any_rows_and_columns_are_those_of_the_whole(kind, tmp_path):
    weights = GgufWeights(str(write_gguf(save_model(MIXTRAL, tmp_path), tmp_path / "model.gguf", kind)))
    chance = random.Random(7)
    for name in weights.names():
        shape = weights.model.weights[name].shape
        whole = weights.read(Part(name, shape))
        for _ in range(6):
            rows, *columns = (tuple(sorted((chance.randrange(size), chance.randrange(1, size + 1)))) for size in shape)
            if rows[0] == rows[1] or any(first == last for first, last in columns):
                continue
            cut = weights.read(Part(name, shape, rows, *columns))
            assert torch.equal(cut, whole[slice(*rows)][:, slice(*columns[0])] if columns else whole[slice(*rows)])


def test_what_does_not_fit_is_one_line(tmp_path):
    path = write_gguf(save_model(LLAMA, tmp_path), tmp_path / "model.gguf")
    weights = GgufWeights(str(path))
    with pytest.raises(ModelError, match=r"has no 'model.layers.9.mlp.up_proj.weight', which this architecture needs"):
        weights.read(Part("model.layers.9.mlp.up_proj.weight", (224, 160)))
    with pytest.raises(ModelError, match=r"has shape \(224, 160\) where the settings of the file imply \(160, 224\)"):
        weights.read(Part("model.layers.0.mlp.up_proj.weight", (160, 224)))


def test_what_is_not_served_is_named(tmp_path):
    def refusal(fill):
        writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
        fill(writer)
        writer.add_tensor("token_embd.weight", np.zeros((5, 32), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(ModelError) as refused:
            GgufModel(GgufFile.open(tmp_path / "m.gguf")).config()
        assert "\n" not in refused.value.message
        return refused.value.message

    def whole(writer):
        writer.add_context_length(64)
        writer.add_embedding_length(32)
        writer.add_block_count(1)
        writer.add_feed_forward_length(64)
        writer.add_head_count(2)
        writer.add_layer_norm_rms_eps(1e-5)

    def other(writer):
        writer.arch = "rwkv7"
        writer.kv_data[0]["general.architecture"].value = "rwkv7"

    def of(name, fill):
        def write(writer):
            writer.arch = name
            writer.kv_data[0]["general.architecture"].value = name
            whole(writer)
            fill(writer)

        return write

    def turning(writer):
        writer.add_head_count_kv([2])
        writer.add_ssm_inner_size(64)
        writer.add_ssm_time_step_rank(2)
        writer.add_rope_scaling_finetuned(True)

    def negative(writer):
        whole(writer)
        writer.add_head_count_kv([-1])

    def scaled(writer):
        whole(writer)
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)

    def foreign(writer):
        whole(writer)
        writer.add_tensor("blk.0.ssm_in.weight", np.zeros((4, 32), np.float32))

    assert "m.gguf' is of the architecture 'rwkv7', which is not supported; supported are llama, " in refusal(other)
    assert refusal(lambda writer: None) == "llama.embedding_length of the GGUF file is missing."
    assert refusal(negative) == "llama.attention.head_count_kv of the GGUF file has an invalid value."
    assert "rotary scaling 'longrope' of the GGUF file is not supported" in refusal(scaled)
    assert "has a tensor 'blk.0.ssm_in.weight'" in refusal(foreign)
    assert "is of Bamba" in refusal(of("granitehybrid", turning))
    axes = of("glm4", lambda writer: writer.add_rope_dimension_sections([4, 2, 2, 0]))
    assert "the text model of a GLM that reads images" in refusal(axes)
    beginless = of("mistral3", lambda writer: writer.add_attn_temperature_scale(0.1))
    assert "a temperature of attention, but no YaRN" in refusal(beginless)


@pytest.mark.parametrize("kind", [Type.F32, Type.Q4_0])
def test_numbers_that_are_not_finite_are_refused(tmp_path, kind):
    path = write_gguf(save_model(LLAMA, tmp_path), tmp_path / "model.gguf", kind)
    name = "model.layers.0.mlp.up_proj.weight"
    named = GgufModel(GgufFile.open(path)).text_weights[name]
    with path.open("r+b") as file:
        file.seek(named.tensor.offset)
        file.write(np.array(np.nan, "<f4" if kind == Type.F32 else "<f2").tobytes())
    parts = [Part(name, named.shape)]
    if kind == Type.Q4_0:
        blocks = (named.shape[0], named.shape[1] // named.block.elements, named.block.bytes)
        parts.append(Part(name, blocks, dtype="uint8", encoding=encoded_scheme("q4_0").weight.encoding))
    for part in parts:
        with pytest.raises(ModelError, match=r"holds numbers in 'blk.0.ffn_up.weight' that are not finite"):
            GgufWeights(str(path)).read(part)
