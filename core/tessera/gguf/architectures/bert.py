"""BERT and Nomic's, which make vectors of texts."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.gguf.architectures.architecture import GgufArchitecture, Names, Settings
from tessera.gguf.fields import GgufFields
from tessera.gguf.file import GgufFile

_ENDS: Names = {
    "token_embd.weight": "embeddings.word_embeddings.weight",
    "token_types.weight": "embeddings.token_type_embeddings.weight",
    "token_embd_norm.weight": "embeddings.LayerNorm.weight",
    "token_embd_norm.bias": "embeddings.LayerNorm.bias",
}
_BERT: Names = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
_NOMIC: Names = {
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.out_proj",
    "attn_output_norm": "norm1",
    "ffn_up": "mlp.fc11",
    "ffn_gate": "mlp.fc12",
    "ffn_down": "mlp.fc2",
    "layer_output_norm": "norm2",
}


def _bert(fields: GgufFields, file: GgufFile) -> Settings:
    """A file does not say which activation the MLP has: GELU, of all that are converted."""
    types = file.tensors.get("token_types.weight")
    return {
        "layer_norm_eps": fields.number("attention.layer_norm_epsilon"),
        "type_vocab_size": 0 if types is None else types.shape[0] if len(types.shape) > 1 else 1,
        "hidden_act": "gelu",
    }


def _nomic(fields: GgufFields, file: GgufFile) -> Settings:
    return {**_bert(fields, file), "hidden_act": "silu"}


BERT: Mapping[str, GgufArchitecture] = {
    "bert": GgufArchitecture(
        "BertModel",
        "bert",
        _BERT,
        _bert,
        ends={**_ENDS, "position_embd.weight": "embeddings.position_embeddings.weight"},
        layers="encoder.layer",
        embeds=True,
    ),
    "nomic-bert": GgufArchitecture(
        "NomicBertModel",
        "nomic_bert",
        _NOMIC,
        _nomic,
        ends={name: own.replace("embeddings.LayerNorm", "emb_ln") for name, own in _ENDS.items()},
        layers="encoder.layers",
        embeds=True,
    ),
}
"""By general.architecture."""
