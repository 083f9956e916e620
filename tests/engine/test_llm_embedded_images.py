"""LLM with models that embed texts and images, each by itself: whole models with their processors, against
transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from torch.nn.functional import normalize
from transformers import AutoProcessor, PreTrainedTokenizerFast

from tessera import LLM
from tessera.config.pooler import PoolerConfig
from tessera.engine.pooling import instructed
from tessera.errors import RequestError
from tests.engine.test_llm_images import picture
from tests.processor_folders import FOLDERS, ProcessorFolder
from tools.parity.family import Family, save_model

TEXTS = ["a red Roof", "the sea at night, with a ship"]
PICTURES = [picture(1, 40, 60), picture(2, 90, 31), picture(3, 28, 28)]
SIZES: Mapping[str, Any] = {
    "hidden_size": 36,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
}
WIDTH = 20
LENGTH = 40
"""Tokens of a text of a dual encoder at most."""
SQUARE = {"height": 28, "width": 28}
MEAN_STD = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.25]}


def dual(name: str, image_processor: Mapping[str, Any]) -> ProcessorFolder:
    says = {"image_processor_type": f"{name}ImageProcessor", **MEAN_STD, **image_processor}
    return ProcessorFolder("</s>", "</s>", says, {"processor_class": f"{name}Processor"})


def clip(tokens: Mapping[str, int]) -> Any:
    text = {**SIZES, "num_attention_heads": 6, "vocab_size": len(tokens) + 1, "max_position_embeddings": LENGTH}
    ends = {"bos_token_id": tokens["<s>"], "eos_token_id": tokens["</s>"], "pad_token_id": tokens["</s>"]}
    vision = {**SIZES, "hidden_size": 24, "image_size": 28, "patch_size": 7}
    config = transformers.CLIPConfig(text_config={**text, **ends}, vision_config=vision, projection_dim=WIDTH)
    return transformers.CLIPModel(config)


def siglip(tokens: Mapping[str, int]) -> Any:
    text = {**SIZES, "vocab_size": len(tokens) + 1, "max_position_embeddings": LENGTH, "projection_size": 24}
    ends = {"bos_token_id": tokens["<s>"], "eos_token_id": tokens["</s>"], "pad_token_id": tokens["</s>"]}
    vision = {**SIZES, "hidden_size": 24, "image_size": 28, "patch_size": 7}
    return transformers.SiglipModel(transformers.SiglipConfig(text_config={**text, **ends}, vision_config=vision))


def siglip2(tokens: Mapping[str, int]) -> Any:
    text = {**SIZES, "vocab_size": len(tokens) + 1, "max_position_embeddings": LENGTH, "projection_size": 24}
    ends = {"bos_token_id": tokens["<s>"], "eos_token_id": tokens["</s>"], "pad_token_id": tokens["</s>"]}
    vision = {**SIZES, "hidden_size": 24, "patch_size": 16, "num_patches": 16}
    return transformers.Siglip2Model(transformers.Siglip2Config(text_config={**text, **ends}, vision_config=vision))


QWEN2_VL = FOLDERS["qwen2_vl"]
PROMPT = "<|vision_start|><|image_pad|><|vision_end|>Describe the image.</s>"
COLQWEN2 = replace(
    QWEN2_VL,
    image_processor={**QWEN2_VL.image_processor, "processor_class": "ColQwen2Processor"},
    processor={"visual_prompt_prefix": PROMPT, "query_prefix": "Find: "},
)


def colqwen2(tokens: Mapping[str, int]) -> Any:
    marks = {"image": "image_pad", "video": "video_pad", "vision_start": "vision_start", "vision_end": "vision_end"}
    vlm = transformers.Qwen2VLConfig(
        text_config={
            **SIZES, "vocab_size": len(tokens) + 1, "num_key_value_heads": 1, "max_position_embeddings": 256,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 3, 2]},
            "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
        },
        vision_config={
            "depth": 2, "num_heads": 3, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2,
            "embed_dim": 36, "hidden_size": 36, "mlp_ratio": 2,
        },
        **{f"{name}_token_id": tokens[f"<|{text}|>"] for name, text in marks.items()},
    )  # fmt: skip
    return transformers.ColQwen2ForRetrieval(transformers.ColQwen2Config(vlm_config=vlm, embedding_dim=WIDTH))


COLPALI = replace(FOLDERS["paligemma"], processor={"processor_class": "ColPaliProcessor", "query_prefix": "Find: "})


def colpali(tokens: Mapping[str, int]) -> Any:
    vlm = transformers.PaliGemmaConfig(
        text_config={
            **SIZES, "model_type": "gemma", "vocab_size": len(tokens) + 1, "num_key_value_heads": 1, "head_dim": 14,
            "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
        },
        vision_config={
            **SIZES, "model_type": "siglip_vision_model", "image_size": 28, "patch_size": 14, "vision_use_head": False,
        },
        projection_dim=36,
        image_token_id=tokens["<image>"],
    )  # fmt: skip
    return transformers.ColPaliForRetrieval(transformers.ColPaliConfig(vlm_config=vlm, embedding_dim=WIDTH))


COLMODERNVBERT = replace(
    FOLDERS["idefics3"],
    processor={
        "processor_class": "ColModernVBertProcessor",
        "image_seq_len": 4,
        "visual_prompt_prefix": "User:<image>Describe the image.<end_of_utterance>",
    },
)


def colmodernvbert(tokens: Mapping[str, int]) -> Any:
    vlm = transformers.ModernVBertConfig(
        text_config={
            **SIZES, "model_type": "modernbert", "vocab_size": len(tokens) + 1, "max_position_embeddings": 512,
            "local_attention": 14, "bos_token_id": None, "eos_token_id": None, "pad_token_id": tokens["</s>"],
            "cls_token_id": None, "sep_token_id": None,
        },
        vision_config={**SIZES, "model_type": "siglip_vision_model", "image_size": 28, "patch_size": 7},
        image_token_id=tokens["<image>"],
        pixel_shuffle_factor=2,
    )  # fmt: skip
    return transformers.ColModernVBertForRetrieval(
        transformers.ColModernVBertConfig(vlm_config=vlm, embedding_dim=WIDTH)
    )


@dataclass(frozen=True)
class Kind:
    processor: ProcessorFolder
    # Of the tokens of its tokenizer.
    make: Callable[[Mapping[str, int]], Any]
    # What its tokenizer puts around a text, $A.
    around: str = "<s> $A </s>"
    # Whether each token has a vector.
    by_token: bool = False


KINDS: Mapping[str, Kind] = {
    "clip": Kind(dual("CLIP", {"size": {"shortest_edge": 28}, "crop_size": SQUARE}), clip),
    "siglip": Kind(dual("Siglip", {"size": SQUARE}), siglip),
    "siglip2": Kind(dual("Siglip2", {}), siglip2),
    "colpali": Kind(COLPALI, colpali, around="<s> $A", by_token=True),
    "colqwen2": Kind(COLQWEN2, colqwen2, around="$A", by_token=True),
    "colmodernvbert": Kind(COLMODERNVBERT, colmodernvbert, around="$A", by_token=True),
}


def write(kind: Kind, folder: Path) -> Any:
    """Returns the model."""
    kind.processor.write(folder)
    file = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokens = tokenizer.get_vocab()
    ends = [(text, tokens[text]) for text in ("<s>", "</s>")]
    tokenizer.post_processor = TemplateProcessing(single=kind.around, special_tokens=ends)
    tokenizer.save(str(file))
    settings = folder / "tokenizer_config.json"
    says = {**json.loads(settings.read_text()), "model_max_length": LENGTH, "bos_token": "<s>"}
    settings.write_text(json.dumps(says))
    return save_model(Family("", lambda: kind.make(tokens)), folder)


@torch.inference_mode()
def theirs(model: Any, folder: Path, kind: Kind, *, text: str = "", image: Image.Image | None = None) -> Tensor:
    """What transformers makes of a text or an image, of length 1."""
    processor: Any = AutoProcessor.from_pretrained(folder, backend="pil")
    if model.config.model_type == "siglip2":  # whose own class of tokenizers knows no bytes
        processor.tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        text = text.lower()
    if kind.by_token:
        page = image is not None
        return model(**(processor.process_images([image]) if page else processor.process_queries([text]))).embeddings[0]
    how = {"padding": "max_length", "max_length": LENGTH} if "siglip" in model.config.model_type else {}
    inputs = processor(text=[text] if image is None else None, images=image, return_tensors="pt", **how)
    if image is None:
        return normalize(model.get_text_features(input_ids=inputs["input_ids"]).pooler_output[0], dim=-1)
    return normalize(model.get_image_features(**inputs).pooler_output[0], dim=-1)


@pytest.mark.parametrize("name", KINDS)
def test_texts_and_images_have_transformers_vectors(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    model = write(kind, tmp_path)
    texts = [theirs(model, tmp_path, kind, text=text) for text in TEXTS]
    images = [theirs(model, tmp_path, kind, image=image) for image in PICTURES]
    prompts: list[Any] = [{"prompt": "", "multi_modal_data": {"image": image}} for image in PICTURES]
    with LLM(tmp_path, dtype="float32", kv_cache_memory_bytes=2**24, max_num_seqs=4) as llm:
        task = "token_embed" if kind.by_token else "embed"
        outputs = llm.encode([*TEXTS, *prompts], pooling_task=task, use_tqdm=False)
        for output, want in zip(outputs, [*texts, *images], strict=True):
            np.testing.assert_allclose(output.outputs.data, want.numpy(), atol=1e-5)
        scores = llm.score(TEXTS[0], prompts, use_tqdm=False)
        for score, image in zip(scores, images, strict=True):
            products = texts[0] @ (image.T if kind.by_token else image)
            want = products.max(dim=-1).values.sum() if kind.by_token else products
            assert score.outputs.score == pytest.approx(float(want), abs=1e-4)
        if not kind.by_token:
            both = {"prompt": "a roof", "multi_modal_data": {"image": PICTURES[0]}}
            with pytest.raises(RequestError, match="a text or an image, and none beside another"):
                llm.embed(both, use_tqdm=False)


def test_a_text_is_canonical_as_siglip_s_tokenizer_makes_it() -> None:
    """SiglipTokenizer.canonicalize_text() of transformers, which needs a library that is not installed."""
    canonical = PoolerConfig(("embed",), "last", canonical=True)
    assert instructed("  The  Sea, at night: a_SHIP! ", canonical) == "the sea at night aship"
