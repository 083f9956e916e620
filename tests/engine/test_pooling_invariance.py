"""--batch-invariant and models that answer with numbers: the same bits alone and beside strangers, on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from tessera import LLM

LENGTHS = (29, 1, 16, 45, 5, 33)
SIZES = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
MODULES = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"))


def save(name: str, folder: Path) -> None:
    """A model of sentence-transformers: the mean of its states, through a Dense module."""
    torch.manual_seed(3)
    getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**SIZES)).save_pretrained(folder)
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in MODULES]
    (folder / "modules.json").write_text(json.dumps(modules))
    dense = {"in_features": 64, "out_features": 40, "activation_function": "torch.nn.modules.linear.Identity"}
    for path, content in (("1_Pooling", {"pooling_mode_mean_tokens": True}), ("2_Dense", dense)):
        (folder / path).mkdir()
        (folder / path / "config.json").write_text(json.dumps(content))
    weights = {"linear.weight": torch.randn(40, 64), "linear.bias": torch.randn(40)}
    save_file(weights, folder / "2_Dense/model.safetensors")


@pytest.mark.parametrize("name", ["Bert", "Llama"])
def test_a_mean_has_the_same_bits_alone_and_beside_strangers(name: str, tmp_path: Path) -> None:
    save(name, tmp_path)
    numbers = np.random.default_rng(5)
    texts = [numbers.integers(1, 101, size=length).tolist() for length in LENGTHS]
    # Llama's prompts are split into chunks, and each differently beside others.
    options = {"max_num_batched_tokens": 128 if name == "Bert" else 37, "kv_cache_memory_bytes": 1 << 20}
    with LLM(
        str(tmp_path), platform="tessera_cpu.platform:CpuPlatform", dtype="bfloat16", batch_invariant=True,
        runner="pooling", skip_tokenizer_init=True, max_num_seqs=4, **options,
    ) as llm:  # fmt: skip

        def vectors(prompts: list[list[int]]) -> list[list[float]]:
            return [list(output.outputs.embedding) for output in llm.embed(prompts, use_tqdm=False)]

        alone = [vectors([text])[0] for text in texts]
        assert vectors(texts) == alone
        assert vectors(texts[::-1]) == alone[::-1]
