"""Images in the prompts of LLM: whole models with their processors, against transformers."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor, CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from tessera import LLM, SamplingParams
from tessera.errors import RequestError
from tests.processor_folders import FOLDERS

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
SCORED = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=1)
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {% for part in message['content'] %}"
    "{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %};{% endfor %}"
    "{{ 'assistant: ' if add_generation_prompt }}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small LLaVA."""
    folder = FOLDERS["llava"].write(tmp_path_factory.mktemp("llava"))
    config_file = folder / "tokenizer_config.json"
    config_file.write_text(json.dumps({**json.loads(config_file.read_text()), "chat_template": TEMPLATE}))
    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    image_token = next(token["id"] for token in tokens if token["content"] == "<image>")
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(
            hidden_size=36,
            intermediate_size=44,
            num_hidden_layers=3,
            num_attention_heads=3,
            image_size=28,
            patch_size=7,
        ),
        text_config=LlamaConfig(
            vocab_size=image_token + 3,
            hidden_size=48,
            intermediate_size=68,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            pad_token_id=None,
        ),
        image_token_id=image_token,
    )
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.15) if weight.dim() > 1 else weight.uniform_(0.5, 1.5)
        model.get_output_embeddings().weight[image_token] = 0.0
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, dtype="float32", kv_cache_memory_bytes=2**24, max_num_seqs=4, convert="embed") as llm:
        yield llm


def picture(seed: int, *size: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


PICTURES = [picture(1, 40, 60), picture(2, 90, 31), picture(3, 28, 28)]


Scored = list[tuple[int, float]]
"""Tokens of an answer with their log probabilities: a small model may draw the same tokens whatever it sees."""


def ours(llm: LLM, prompt: Any) -> Scored:
    return scored(llm.generate(prompt, SCORED, use_tqdm=False)[0])


def scored(output: Any) -> Scored:
    (answer,) = output.outputs
    assert answer.logprobs is not None
    return [(token, best[token].logprob) for token, best in zip(answer.token_ids, answer.logprobs, strict=True)]


def same(one: Scored, other: Scored) -> bool:
    return [token for token, _ in one] == [token for token, _ in other] and np.allclose(
        [logprob for _, logprob in one], [logprob for _, logprob in other], atol=1e-4
    )


def theirs(folder: Path, text: str, images: list[Image.Image]) -> Scored:
    """What transformers answers."""
    processor: Any = AutoProcessor.from_pretrained(folder, backend="pil")
    model = LlavaForConditionalGeneration.from_pretrained(folder).eval()
    inputs = processor(text=[text], images=images, return_tensors="pt")
    with torch.inference_mode():
        answer = model.generate(
            **inputs, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
    tokens = answer.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    logprobs = torch.cat(answer.logits).log_softmax(-1)
    return [(token, float(row[token])) for token, row in zip(tokens, logprobs, strict=True)]


def test_prompts_with_images_are_answered_as_by_transformers(folder: Path, llm: LLM) -> None:
    first, second, third = PICTURES
    prompts = [
        ("See <image> and say.", [first]),
        ("See <image> and say.", [second]),
        ("<image><image> or <image>", [second, third, first]),
        ("<image><image> or <image>", [third, second, first]),
    ]
    outputs = llm.generate(
        [{"prompt": text, "multi_modal_data": {"image": images}} for text, images in prompts], SCORED, use_tqdm=False
    )
    answers = list(map(scored, outputs))
    for answer, (text, images) in zip(answers, prompts, strict=True):
        assert same(answer, theirs(folder, text, images))
    assert not same(*answers[:2])
    assert not same(*answers[2:])


def test_the_same_image_is_a_prefix_hit_and_another_is_none(llm: LLM) -> None:
    text = "Look long at this: <image> "
    first = {"prompt": text + "one", "multi_modal_data": {"image": PICTURES[0]}}
    again = {"prompt": text + "two", "multi_modal_data": {"image": PICTURES[0]}}
    other = {"prompt": text + "one", "multi_modal_data": {"image": PICTURES[1]}}
    llm.reset_prefix_cache()
    plain, hit, miss = (llm.generate(prompt, SCORED, use_tqdm=False)[0] for prompt in (first, again, other))
    assert plain.num_cached_tokens == 0
    assert hit.num_cached_tokens >= 32
    assert miss.num_cached_tokens <= len(text)
    assert miss.outputs[0].cumulative_logprob != pytest.approx(plain.outputs[0].cumulative_logprob, rel=1e-4)


def test_chats_take_images_as_data_urls_and_as_objects(folder: Path, llm: LLM) -> None:
    file = io.BytesIO()
    PICTURES[0].save(file, format="PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    parts = ({"type": "image_url", "image_url": {"url": url}}, {"type": "image_pil", "image_pil": PICTURES[0]})
    want = theirs(folder, "user: <image>What?;assistant: ", [PICTURES[0]])
    for part in parts:
        messages = [{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}]
        assert same(scored(llm.chat(messages, SCORED, use_tqdm=False)[0]), want)


def test_prompts_with_images_are_embedded_as_by_transformers(folder: Path, llm: LLM) -> None:
    processor: Any = AutoProcessor.from_pretrained(folder, backend="pil")
    model = LlavaForConditionalGeneration.from_pretrained(folder).eval().model
    text = "<image> or <image>"
    prompts: list[Any] = [{"prompt": text, "multi_modal_data": {"image": PICTURES[at : at + 2]}} for at in range(2)]
    for at, output in enumerate(llm.embed([*prompts, "plain"], use_tqdm=False)[:2]):
        inputs = processor(text=[text], images=PICTURES[at : at + 2], return_tensors="pt")
        with torch.inference_mode():
            want = torch.nn.functional.normalize(model(**inputs).last_hidden_state[0, -1], dim=-1)
        assert output.prompt_token_ids == inputs["input_ids"][0].tolist()
        np.testing.assert_allclose(output.outputs.embedding, want.numpy(), atol=1e-5)


def test_tessera_chat_shows_an_image(folder: Path, llm: LLM, tmp_path: Path) -> None:
    PICTURES[0].save(tmp_path / "picture.png")
    flags = ["--image", str(tmp_path / "picture.png"), "--temperature", "0", "--max-tokens", "8", "-q", "What?"]
    command = [sys.executable, "-m", "tessera.cli", "chat", str(folder), "--dtype", "float32", *flags]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    parts = [{"type": "image_pil", "image_pil": PICTURES[0]}, {"type": "text", "text": "What?"}]
    params = SamplingParams(temperature=0.0, max_tokens=8)
    (answer,) = llm.chat([{"role": "user", "content": parts}], params, use_tqdm=False)[0].outputs
    assert said.removesuffix("\n") == answer.text.removesuffix("\n")


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (
            {"prompt": "no place", "multi_modal_data": {"image": PICTURES[0]}},
            "1 images, and its prompt has places for 0",
        ),
        ({"prompt": "<image>", "multi_modal_data": {"video": b"1"}}, "No videos are taken here"),
        ({"prompt": "<image>", "multi_modal_data": {"smell": 1}}, 'takes {"image"'),
        ({"prompt": "<image>", "multi_modal_data": {"image": b"no picture"}}, "image"),
        ({"prompt": "<image>" * 17, "multi_modal_data": {"image": [PICTURES[0]] * 17}}, "at most 16 images"),
        ({"prompt_token_ids": [1], "multi_modal_data": {"image": PICTURES[0]}}, 'needs its text, "prompt"'),
    ],
    ids=["no placeholder", "video", "no modality", "no image", "too many", "token ids"],
)
def test_what_cannot_be_read_is_refused_in_a_line(llm: LLM, prompt: Any, said: str) -> None:
    with pytest.raises(RequestError) as refused:
        llm.generate(prompt, GREEDY, use_tqdm=False)
    assert said in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("division", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_a_divided_model_reads_the_same(folder: Path, llm: LLM, division: str) -> None:
    prompt = {"prompt": "<image><image> or <image>", "multi_modal_data": {"image": PICTURES}}
    want = ours(llm, prompt)
    with LLM(folder, dtype="float32", kv_cache_memory_bytes=2**24, max_num_seqs=4, **{division: 2}) as divided:
        assert same(ours(divided, prompt), want)


def test_a_plan_counts_the_tower(folder: Path) -> None:
    command = [sys.executable, "-m", "tessera.cli", "plan", str(folder), "--platform", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "weights" in done.stdout


def test_without_images_the_text_model_is_served_alone(folder: Path) -> None:
    with LLM(folder, dtype="float32", kv_cache_memory_bytes=2**24, limit_mm_per_prompt={"image": 0}) as llm:
        with pytest.raises(RequestError, match="No images are taken here"):
            llm.generate({"prompt": "<image>", "multi_modal_data": {"image": PICTURES[0]}}, GREEDY)
        assert len(llm.generate("plain", GREEDY, use_tqdm=False)[0].outputs[0].token_ids) == 8
