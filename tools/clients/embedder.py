"""A folder like all-MiniLM-L6-v2's with few, random weights, for clients that embed and rank."""

from __future__ import annotations

import json
import string
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel

CONTEXT = 256
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
KIND = "sentence_transformers.models"


def write_embedder(folder: Path) -> None:
    """BERT whose tokens are single characters, the mean of its states, and a module that makes vectors of length 1."""
    characters = [*string.ascii_lowercase, *string.digits, *string.punctuation]
    tokens = [*SPECIAL, *characters, *(f"##{one}" for one in characters)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))  # noqa: S106 - a token of text
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [("[CLS]", SPECIAL.index("[CLS]")), ("[SEP]", SPECIAL.index("[SEP]"))]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(4)
    config = BertConfig(
        vocab_size=len(tokens), hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=CONTEXT, initializer_range=0.2, architectures=["BertModel"],
    )  # fmt: skip
    config.save_pretrained(folder)
    save_file(BertModel(config).state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    modules = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    said = [{"path": path, "type": f"{KIND}.{name}"} for path, name in modules.items()]
    pooling = {"word_embedding_dimension": config.hidden_size, "pooling_mode_mean_tokens": True}
    _write(folder / "modules.json", said)
    _write(folder / "1_Pooling/config.json", pooling)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": CONTEXT})


def _write(file: Path, content: object) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")
