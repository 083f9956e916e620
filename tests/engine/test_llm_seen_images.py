"""LLM with a model whose tokens see images through cross attention: prompts and chats, as transformers answers them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor, MllamaConfig, MllamaForConditionalGeneration

from tessera import LLM, SamplingParams
from tessera.errors import RequestError
from tests.processor_folders import FOLDERS

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {% for part in message['content'] %}"
    "{{ '<|image|>' if part['type'] == 'image' else part['text'] }}{% endfor %};{% endfor %}"
    "{{ 'assistant: ' if add_generation_prompt }}"
)
SIZES = (20, 60, 3), (50, 60, 3), (90, 60, 3)
PICTURES = [Image.fromarray(np.random.default_rng(7).integers(0, 256, size, dtype=np.uint8)) for size in SIZES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model, whose image token comes behind its vocabulary, as in published ones."""
    folder = FOLDERS["mllama"].write(tmp_path_factory.mktemp("mllama"))
    config_file = folder / "tokenizer_config.json"
    named = {"chat_template": TEMPLATE, "bos_token": "<s>"}
    config_file.write_text(json.dumps({**json.loads(config_file.read_text()), **named}))
    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    image_token = next(token["id"] for token in tokens if token["content"] == "<|image|>")
    config = MllamaConfig(
        vision_config={
            "hidden_size": 36,
            "intermediate_size": 44,
            "num_hidden_layers": 2,
            "attention_heads": 3,
            "num_global_layers": 1,
            "intermediate_layers_indices": [1],
            "vision_output_dim": 72,
            "image_size": 28,
            "patch_size": 7,
        },
        text_config={
            "vocab_size": image_token,
            "hidden_size": 48,
            "intermediate_size": 68,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "cross_attention_layers": [1],
            "max_position_embeddings": 512,
            "pad_token_id": None,
        },
        image_token_index=image_token,
    )
    torch.manual_seed(0)
    model = MllamaForConditionalGeneration(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.15) if weight.dim() > 1 else weight.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, dtype="float32", kv_cache_memory_bytes=2**24, max_num_seqs=4) as llm:
        yield llm


def ours(llm: LLM, prompts: list[Any], params: SamplingParams = GREEDY) -> list[list[list[int]]]:
    return [[list(one.token_ids) for one in output.outputs] for output in llm.generate(prompts, params, use_tqdm=False)]


def theirs(folder: Path, text: str, images: list[Image.Image]) -> list[int]:
    """What transformers answers, which puts the token that begins a text into one that has none."""
    processor: Any = AutoProcessor.from_pretrained(folder, backend="pil")
    model = MllamaForConditionalGeneration.from_pretrained(folder).eval()
    inputs = processor(text=[text], images=images or None, return_tensors="pt")
    with torch.inference_mode():
        answer = model.generate(**inputs, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    tokens: list[int] = answer[0, inputs["input_ids"].shape[1] :].tolist()
    return tokens


def test_prompts_are_answered_as_by_transformers(folder: Path, llm: LLM) -> None:
    asked = [
        ("<s>nothing to see", []),
        ("<|image|><s>one", PICTURES[:1]),
        ("<s>two <|image|>here<|image|> and", PICTURES[1:]),
        ("<s>three<|image|><|image|> together <|image|>", PICTURES),
    ]
    prompts = [{"prompt": text, "multi_modal_data": {"image": images}} if images else text for text, images in asked]
    expected = [theirs(folder, text, images) for text, images in asked]
    assert ours(llm, prompts) == [[one] for one in expected]
    twice = SamplingParams(top_k=1, max_tokens=8, ignore_eos=True, n=2)
    assert ours(llm, prompts[2:3], twice) == [[expected[2]] * 2]


def test_what_an_answer_and_its_prompt_say_of_tokens(llm: LLM) -> None:
    """The image's token is never written, and has a logprob in a prompt that is a number."""
    prompt = {"prompt": "a <|image|> b", "multi_modal_data": {"image": PICTURES[:1]}}
    params = SamplingParams(temperature=0.0, max_tokens=4, prompt_logprobs=0, repetition_penalty=1.3)
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    said = [one for entry in output.prompt_logprobs[1:] if entry is not None for one in entry.values()]
    assert all(np.isfinite(one.logprob) for one in said)
    assert min(one.logprob for one in said) < -1e30


def test_chats_and_refusals(llm: LLM) -> None:
    content = [{"type": "image_pil", "image_pil": PICTURES[0]}, {"type": "text", "text": "what"}]
    (output,) = llm.chat([{"role": "user", "content": content}], GREEDY, use_tqdm=False)
    prompt = {"prompt": "user: <|image|>what;assistant: ", "multi_modal_data": {"image": PICTURES[:1]}}
    assert [list(output.outputs[0].token_ids)] == ours(llm, [prompt])[0]
    with pytest.raises(RequestError, match="4 images"):
        ours(llm, [{"prompt": "<|image|>" * 5, "multi_modal_data": {"image": PICTURES[:1] * 5}}])
