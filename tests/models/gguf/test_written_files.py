"""GGUF files that `tessera quantize` writes: the same as those that are written apart from it, and read back as the
models that they were made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import torch
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from tessera.cli.program import run
from tessera.gguf.model import open_model
from tessera.gguf.writing.block_types import KINDS, block_type
from tessera.gguf.writing.settings import WRITTEN
from tessera.loader.gguf import GgufWeights
from tessera.loader.quantized_gguf import write_gguf as written
from tessera.quantization.encoders import encode
from tests.models.gguf.writer import write_gguf
from tools.parity.family import Family, maker, save_model

SIZE = 330  # tokens
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
_LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
_BY_LAYER = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 9000.0},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
_YARN |= {"beta_fast": 24.0, "beta_slow": 2.0}
MAKERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    "llama3": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": _LLAMA3, "max_position_embeddings": 32768}),
    "llama-yarn": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": _YARN, "tie_word_embeddings": True}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
    "mixtral": (MixtralConfig, MixtralForCausalLM, {"sliding_window": None, "num_local_experts": 3}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 18}),
    "qwen3-moe": (
        Qwen3MoeConfig, Qwen3MoeForCausalLM,
        {
            "head_dim": 18, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 44,
            "norm_topk_prob": True,
        },
    ),
    "gemma": (GemmaConfig, GemmaForCausalLM, {"head_dim": 18, "tie_word_embeddings": True}),
    "gemma2": (
        Gemma2Config, Gemma2ForCausalLM,
        {
            "head_dim": 18, "query_pre_attn_scalar": 18, "sliding_window": 9, "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 6.0, "tie_word_embeddings": True,
        },
    ),
    "gemma3": (
        Gemma3TextConfig, Gemma3ForCausalLM,
        {
            "num_hidden_layers": 7, "head_dim": 18, "query_pre_attn_scalar": 18, "sliding_window": 9,
            "sliding_window_pattern": 6, "tie_word_embeddings": True, "rope_parameters": _BY_LAYER,
        },
    ),
    "phi3": (
        Phi3Config, Phi3ForCausalLM,
        {"pad_token_id": 0, "rope_parameters": _LONG, "original_max_position_embeddings": 64, "sliding_window": 12},
    ),
    "granite": (
        GraniteConfig, GraniteForCausalLM,
        {"attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.5},
    ),
    "smollm3": (SmolLM3Config, SmolLM3ForCausalLM, {"pad_token_id": 0}),
    "olmo2": (Olmo2Config, Olmo2ForCausalLM, {}),
}  # fmt: skip
MORE = {"vocab_size", "rope.freq_base_swa", "rope.scaling.attn_factor"}
"""Keys that the other writer leaves out."""


def byte_level(pre: str = "qwen2") -> tokenizers.Tokenizer:
    """A small vocabulary of bytes that cuts texts as Qwen 2 does, or by single digits."""
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    split = words + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    first = {"qwen2": pre_tokenizers.Split(tokenizers.Regex(split), "isolated"), "digits": pre_tokenizers.Digits(True)}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {letter: number for number, letter in enumerate(alphabet)}
    merges = [("t", "h"), ("th", "e"), ("i", "n"), ("Ġ", "a"), ("1", "2")]
    ids |= {left + right: len(ids) + number for number, (left, right) in enumerate(merges)}
    made = tokenizers.Tokenizer(models.BPE(ids, merges))
    made.normalizer = normalizers.NFC() if pre == "qwen2" else None
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre != "qwen2")
    made.pre_tokenizer = pre_tokenizers.Sequence([first[pre], plain])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    made.add_tokens(["<tool>"])
    return made


def pieces() -> tokenizers.Tokenizer:
    """A small vocabulary of SentencePiece's kind, with a token that begins each text."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256)), *"▁abehlort", "th", "▁a", "the"]
    ids = {word: number for number, word in enumerate(words)}
    merges = [("t", "h"), ("▁", "a"), ("th", "e")]
    made = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made


def save_tokenizer(folder: Any, made: tokenizers.Tokenizer, **named: str) -> None:
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({**named, "chat_template": "{{ messages }}"}))


def saved(name: str, folder: Any) -> Any:
    config, model, differs = MAKERS[name]
    made = save_model(Family(name, maker(config, model, **{"vocab_size": SIZE, **differs})), folder)
    save_tokenizer(folder, byte_level(), eos_token="<|im_end|>")
    return made


def config_of(folder: Any) -> Any:
    return json.loads((folder / "config.json").read_text())


def write(folder: Any, path: Any, kind: str = "F32") -> Any:
    return written(str(folder), config_of(folder), str(folder), path, kind, lambda done, total: None)


def values(reader: GGUFReader) -> dict[str, Any]:
    return {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}


def test_every_class_is_tried() -> None:
    assert {model.__name__ for _, model, _ in MAKERS.values()} == set(WRITTEN)


@pytest.mark.parametrize("name", MAKERS)
def test_a_file_is_that_of_another_writer(name: str, tmp_path: Any) -> None:
    model = saved(name, tmp_path)
    write(tmp_path, tmp_path / "own.gguf")
    first, second = (GGUFReader(path) for path in (tmp_path / "own.gguf", write_gguf(model, tmp_path / "other.gguf")))
    said, expected = values(first), values(second)
    for key, value in expected.items():
        same = pytest.approx(value) if isinstance(value, float) else value
        assert said.get(key) == same, key
    more = {
        key.partition(".")[2] for key in said.keys() - expected.keys() if not key.startswith(("tokenizer.", "general."))
    }
    assert more <= MORE, name
    theirs = {tensor.name: tensor.data for tensor in second.tensors}
    assert {tensor.name for tensor in first.tensors} == set(theirs)
    for tensor in first.tensors:
        assert np.array_equal(np.asarray(tensor.data), np.asarray(theirs[tensor.name])), tensor.name


def test_matrices_are_rounded_as_their_kind_says(tmp_path: Any) -> None:
    config, model, _ = MAKERS["llama"]
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 9, "vocab_size": SIZE}
    made = save_model(Family("wide", maker(config, model, **sizes, num_attention_heads=4)), tmp_path)
    save_tokenizer(tmp_path, byte_level())
    result = write(tmp_path, tmp_path / "m.gguf", "Q4_K_M")
    tensors = open_model(tmp_path / "m.gguf").file.tensors
    types = {name: tensor.type.name for name, tensor in tensors.items()}
    downs = [types[f"blk.{layer}.ffn_down.weight"] for layer in range(9)]
    assert downs == ["Q6_K" if layer in (0, 3, 6, 7, 8) else "Q4_K" for layer in range(9)]
    assert (types["output.weight"], types["token_embd.weight"], types["blk.1.attn_q.weight"]) == (
        "Q8_0",
        "Q5_0",
        "Q5_0",
    )
    assert types["output_norm.weight"] == types["blk.0.attn_norm.weight"] == "F32"
    weights = GgufWeights(str(tmp_path / "m.gguf"))
    down = made.state_dict()["model.layers.1.mlp.down_proj.weight"]
    block = tensors["blk.1.ffn_down.weight"].type
    expected = block.dequantize(encode("q4_k", down).reshape(-1, block.bytes).numpy()).reshape(down.shape)
    assert torch.equal(
        weights.whole("model.layers.1.mlp.down_proj.weight").float(), torch.from_numpy(expected).bfloat16().float()
    )
    assert result.with_ends
    assert result.bits == 8 * (tmp_path / "m.gguf").stat().st_size / result.count


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_are_llama_cpps(kind: str) -> None:
    """Their numbers, and types of blocks that the library knows."""
    assert gguf.LlamaFileType(KINDS[kind].number).name.endswith(f"_{kind}")
    for name in ("output.weight", "token_embd.weight", "blk.3.attn_v.weight", "blk.0.ffn_down_exps.weight"):
        for width in (512, 64, 20):
            chosen = block_type(KINDS[kind], name, (8, width), 32, tied=False)
            assert width % gguf.GGML_QUANT_SIZES[Type[chosen]][0] == 0


@pytest.mark.parametrize(
    ("made", "pre"), [(byte_level("qwen2"), "qwen2"), (byte_level("digits"), "starcoder"), (pieces(), "default")]
)
def test_the_tokenizer_is_the_models(made: tokenizers.Tokenizer, pre: str, tmp_path: Any) -> None:
    saved("qwen2", tmp_path)
    named = {"bos_token": "<s>", "unk_token": "<unk>"} if pre == "default" else {"eos_token": "<|im_end|>"}
    save_tokenizer(tmp_path, made, **named)
    write(tmp_path, tmp_path / "m.gguf")
    model = open_model(tmp_path / "m.gguf")
    assert model.file.metadata["tokenizer.ggml.pre"] == pre
    assert model.file.metadata["tokenizer.chat_template"] == "{{ messages }}"
    assert len(model.file.metadata["tokenizer.ggml.tokens"]) == SIZE
    read = tokenizers.Tokenizer.from_str((model.read("tokenizer.json") or b"").decode())
    for text in ("the 1212 in a\n\n the  <|im_end|>b <tool>", "Ünïcode the 漢字", ""):
        assert read.encode(text).ids == made.encode(text).ids


def test_what_a_file_cannot_say_is_refused(tmp_path: Any, capsys: Any) -> None:
    def refusal(name: str, change: Any = lambda folder: None, **differs: Any) -> str:
        folder = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        saved(name, folder)
        (folder / "config.json").write_text(json.dumps({**config_of(folder), **differs}))
        change(folder)
        command = ["quantize", str(folder), str(tmp_path / "out.gguf"), "--scheme", "gguf:Q8_0", "--windows", "0"]
        assert run([*command, "--platform", "cpu"]) == 3
        (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("error: ")]
        assert not [one for one in tmp_path.iterdir() if "out" in one.name]
        return line

    def other_cuts(folder: Any) -> None:
        made = byte_level()
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split("e", "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        save_tokenizer(folder, made)

    assert "cannot say sliding_window = 9" in refusal("mistral", sliding_window=9)
    assert "cannot say hidden_act = gelu" in refusal("qwen2", hidden_act="gelu")
    assert "no name in GGUF stands for the way in which it cuts text" in refusal("qwen2", other_cuts)
    assert "OlmoForCausalLM is not written as a GGUF file; written are Gemma2ForCausalLM, " in refusal(
        "llama", architectures=["OlmoForCausalLM"], model_type="olmo"
    )


def test_names_that_do_not_fit_are_refused(tmp_path: Any, capsys: Any) -> None:
    saved("llama", tmp_path)
    for out, flags, line in (
        ("out", ["--scheme", "gguf:Q4_K_M"], "--scheme gguf:Q4_K_M writes one file, so OUT must end in .gguf."),
        ("out.gguf", ["--scheme", "int8"], "--scheme int8 writes a folder; for a GGUF file, give --scheme gguf:Q4_K_M"),
        ("out.gguf", ["--scheme", "gguf:Q8_0", "--zero-points"], "--zero-points is for --scheme int4; gguf:Q8_0 has"),
    ):
        assert run(["quantize", str(tmp_path), str(tmp_path / out), *flags, "--platform", "cpu"]) == 2
        assert line in capsys.readouterr().err


def test_the_page_names_what_is_written() -> None:
    page = (Path(__file__).parents[3] / "docs" / "quantization.md").read_text().partition("### As a GGUF file")[2]
    section = page.partition("\n## ")[0]
    assert all(f"`{name}`" in section for name in (*WRITTEN, *KINDS))
