"""Tiny random models of each family that answers with numbers, and what transformers makes of texts. No dimension is a
multiple of 16, as in tools/parity/family.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import transformers
from torch import Tensor

from tools.parity.family import Family, save_model

POSITIONS = 96
SIZES: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": 101,
        "hidden_size": 72,
        "intermediate_size": 84,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "max_position_embeddings": POSITIONS,
        "bos_token_id": None,
        "eos_token_id": None,
    }
)
LABELS = 3
LENGTHS = (29, 1, 16, 60, 5, 33, 2, 45)
PAD = 1
"""A token of no text: positions of RoBERTa pass over it."""


@dataclass(frozen=True)
class EncoderFamily:
    """name: of its classes in transformers, without the head. base: the class without a head. differs: from SIZES; None
    leaves a field out. undivided: why two ranks cannot share its layers."""

    name: str
    base: str = "Model"
    differs: Mapping[str, Any] = field(default_factory=dict)
    undivided: str = ""

    def save(self, head: str, folder: Path) -> Any:
        """A model with a head, such as "ForSequenceClassification", or "Model" without one."""
        return save_model(Family(self.name, lambda: self.make(head)), folder)

    def make(self, head: str) -> Any:
        model_class = getattr(transformers, f"{self.name}{self.base if head == 'Model' else head}")
        said = {**SIZES, "num_labels": LABELS, "pad_token_id": PAD, **self.differs}
        kept = {name: value for name, value in said.items() if value is not ...}
        return model_class(model_class.config_class(**kept, attn_implementation="eager"))


_ROTARY = {"max_position_embeddings": POSITIONS}
_MODERN = {"local_attention": 14, "global_attn_every_n_layers": 3, "cls_token_id": None, "sep_token_id": None}
_DISTIL = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"), ...),
    "dim": 72,
    "hidden_dim": 84,
    "n_layers": 3,
    "n_heads": 6,
}
_DECODER = {"num_key_value_heads": 2}

ENCODERS: Mapping[str, EncoderFamily] = {
    "bert": EncoderFamily("Bert"),
    "roberta": EncoderFamily("Roberta", differs={"max_position_embeddings": POSITIONS + 2}),
    "xlm-roberta": EncoderFamily(
        "XLMRoberta", differs={"max_position_embeddings": POSITIONS + 2, "type_vocab_size": 1}
    ),
    "camembert": EncoderFamily("Camembert", differs={"max_position_embeddings": POSITIONS + 2}),
    "electra": EncoderFamily("Electra", differs={"embedding_size": 40}),
    "electra-whole": EncoderFamily("Electra", differs={"embedding_size": 72, "hidden_act": "gelu_new"}),
    "distilbert": EncoderFamily("DistilBert", differs=_DISTIL),
    "mpnet": EncoderFamily("MPNet", differs={"max_position_embeddings": POSITIONS + 2}),
    "albert": EncoderFamily(
        "Albert", differs={"embedding_size": 40, "num_hidden_groups": 2, "inner_group_num": 2, "num_hidden_layers": 4}
    ),
    "modernbert": EncoderFamily("ModernBert", differs=_MODERN),
    "modernbert-mean": EncoderFamily(
        "ModernBert",
        differs={
            **_MODERN,
            "norm_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "classifier_bias": True,
            "classifier_pooling": "mean",
        },
    ),
    "nomic": EncoderFamily("NomicBert"),
    "gte": EncoderFamily("Gte"),
    "gte-types": EncoderFamily("Gte", differs={"type_vocab_size": 0}),
    "jina-v3": EncoderFamily("JinaEmbeddingsV3"),
    "eurobert": EncoderFamily("EuroBert", differs=_DECODER),
    "eurobert-bos": EncoderFamily("EuroBert", differs={**_DECODER, "classifier_pooling": "bos"}),
    "eurobert-mean": EncoderFamily("EuroBert", differs={**_DECODER, "classifier_pooling": "mean"}),
    "gemma3": EncoderFamily(
        "Gemma3Text",
        differs={
            **_DECODER,
            "head_dim": 12,
            "query_pre_attn_scalar": 12,
            "use_bidirectional_attention": True,
            "sliding_window": 14,
            "sliding_window_pattern": 3,
        },
    ),
}
"""Models whose tokens see the whole text."""

_T5 = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"), ...),
    "max_position_embeddings": ...,
    "d_model": 72,
    "d_kv": 14,
    "d_ff": 84,
    "num_layers": 3,
    "num_heads": 6,
    "relative_attention_num_buckets": 12,
    "relative_attention_max_distance": 29,
    "n_positions": POSITIONS,
}

WITHOUT_HEADS: Mapping[str, EncoderFamily] = {
    "t5": EncoderFamily("T5", "EncoderModel", differs=_T5),
    "mt5": EncoderFamily("MT5", "EncoderModel", differs=_T5),
    "umt5": EncoderFamily("UMT5", "EncoderModel", differs=_T5),
}
"""Models whose tokens see the whole text, of which transformers has no class with a head."""

DECODERS: Mapping[str, EncoderFamily] = {
    "llama": EncoderFamily("Llama", differs=_DECODER),
    "mistral": EncoderFamily("Mistral", differs={**_DECODER, "sliding_window": 14}),
    "mixtral": EncoderFamily("Mixtral", differs={**_DECODER, "num_local_experts": 5}),
    "qwen2": EncoderFamily("Qwen2", differs=_DECODER),
    "qwen3": EncoderFamily("Qwen3", differs={**_DECODER, "head_dim": 12}),
    "qwen3-moe": EncoderFamily(
        "Qwen3Moe",
        differs={**_DECODER, "head_dim": 12, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 36},
    ),
    "gemma": EncoderFamily("Gemma", differs={**_DECODER, "head_dim": 12}),
    "gemma2": EncoderFamily("Gemma2", differs={**_DECODER, "head_dim": 12, "query_pre_attn_scalar": 12}),
    "gemma3-causal": EncoderFamily("Gemma3Text", differs={**_DECODER, "head_dim": 12, "query_pre_attn_scalar": 12}),
    "phi3": EncoderFamily("Phi3", differs=_DECODER),
    "smollm3": EncoderFamily("SmolLM3", differs=_DECODER),
    "olmo2": EncoderFamily("Olmo2", differs=_DECODER),
}
"""Models whose tokens see those before them."""


_PADDED = {"max_position_embeddings": POSITIONS + 2}
_WINDOWS = {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}

THROUGH_TRANSFORMERS: Mapping[str, EncoderFamily] = {
    "data2vec": EncoderFamily("Data2VecText", differs=_PADDED),
    "ernie": EncoderFamily("Ernie", differs={"use_task_id": True}),
    "roberta-prelayernorm": EncoderFamily("RobertaPreLayerNorm", differs=_PADDED),
    "megatron-bert": EncoderFamily("MegatronBert"),
    "rembert": EncoderFamily("RemBert"),
    "roc-bert": EncoderFamily("RoCBert"),
    "roformer": EncoderFamily("RoFormer"),
    "ultrabert": EncoderFamily("Ultrabert", differs={**_DECODER, **_WINDOWS}),
    "xlm-roberta-xl": EncoderFamily("XLMRobertaXL", differs=_PADDED),
    "xmod": EncoderFamily("Xmod", differs={**_PADDED, "languages": ("en_XX", "de_DE"), "default_language": "de_DE"}),
}
"""Models whose tokens see the whole text, and which run through transformers' code."""

THROUGH_TRANSFORMERS_DECODERS: Mapping[str, EncoderFamily] = {
    "gpt-neox": EncoderFamily("GPTNeoX"),
    "starcoder2": EncoderFamily("Starcoder2", differs={**_DECODER, "sliding_window": 14}),
}
"""Models whose tokens see those before them, and which run through transformers' code."""


def texts(count: int = len(LENGTHS)) -> list[list[int]]:
    """Random tokens, without PAD."""
    draw = torch.Generator().manual_seed(5)
    return [torch.randint(PAD + 1, 101, (length,), generator=draw).tolist() for length in LENGTHS[:count]]


Ask = Callable[..., list[Tensor]]


@torch.inference_mode()
def hidden_states(model: Any, prompts: Sequence[Sequence[int]], **inputs: Any) -> list[Tensor]:
    """[tokens, hidden] float32 of each text, one at a time."""
    return [model(torch.tensor([prompt]), **inputs).last_hidden_state[0] for prompt in prompts]


@torch.inference_mode()
def logits(model: Any, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
    """[labels] float32 of each text, or [tokens, labels], one at a time."""
    return [model(torch.tensor([prompt])).logits[0] for prompt in prompts]
