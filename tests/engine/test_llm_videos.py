"""Videos in the prompts of LLM: a whole model with its processor, against transformers."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig

from tessera import LLM
from tessera.errors import RequestError
from tessera.media.messages import MediaStart
from tessera.media.video import frames_file
from tessera.media.workers import MediaWorkers
from tests.engine.test_llm_images import SCORED, Scored, same, scored
from tests.processor_folders import FOLDERS
from tests.video_files import encoded, frames

PAD = "<|video_pad|>"
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {% for part in message['content'] %}"
    "{{ '<|video_pad|>' if part['type'] == 'video' else part['text'] }}{% endfor %};{% endfor %}"
    "{{ 'assistant: ' if add_generation_prompt }}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Qwen2.5-VL."""
    folder = FOLDERS["qwen2_vl"].write(tmp_path_factory.mktemp("qwen2_5_vl"))
    for name, more in (
        ("tokenizer_config.json", {"chat_template": TEMPLATE}),
        ("preprocessor_config.json", {"processor_class": "Qwen2_5_VLProcessor", "max_pixels": 512}),
    ):
        file = folder / name
        file.write_text(json.dumps({**json.loads(file.read_text()), **more}))
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    tokens = {token["content"]: token["id"] for token in added}
    config = Qwen2_5_VLConfig(
        vision_config=Qwen2_5_VLVisionConfig(
            depth=2, hidden_size=36, out_hidden_size=48, intermediate_size=44, num_heads=3, patch_size=4,
            window_size=16, fullatt_block_indexes=[1], tokens_per_second=2,
        ).to_dict(),
        text_config={
            "vocab_size": max(tokens.values()) + 1, "hidden_size": 48, "intermediate_size": 68, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2]},
        },
        image_token_id=tokens["<|image_pad|>"], video_token_id=tokens[PAD],
        vision_start_token_id=tokens["<|vision_start|>"], vision_end_token_id=tokens["<|vision_end|>"],
        tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.15) if weight.dim() > 1 else weight.uniform_(0.5, 1.5)
        model.get_output_embeddings().weight[[tokens["<|image_pad|>"], tokens[PAD]]] = 0.0
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, dtype="float32", kv_cache_memory_bytes=2**24, max_num_seqs=4) as llm:
        yield llm


def theirs(folder: Path, text: str, file: bytes) -> Scored:
    """What transformers answers."""

    async def processed() -> Any:
        async with MediaWorkers(MediaStart(str(folder), modalities=("video",))) as workers:
            return await workers.process("video", file)

    media = asyncio.run(processed())
    from transformers import AutoTokenizer

    ids = torch.tensor([AutoTokenizer.from_pretrained(folder)(text.replace(PAD, media.replacement))["input_ids"]])
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder).eval()
    inputs = {name: torch.from_numpy(value.copy()) for name, value in media.inputs.items()}
    inputs["mm_token_type_ids"] = (ids == model.config.video_token_id).int() * 2
    with torch.inference_mode():
        answer = model.generate(
            ids, **inputs, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
    logprobs = torch.cat(answer.logits).log_softmax(-1)
    tokens = answer.sequences[0, ids.shape[1] :].tolist()
    return [(token, float(row[token])) for token, row in zip(tokens, logprobs, strict=True)]


def test_each_form_of_a_video_is_seen_as_by_transformers(folder: Path, llm: LLM, tmp_path: Path) -> None:
    file, pixels = encoded(frames(40)), frames(6)
    (tmp_path / "a.mp4").write_bytes(file)
    text = f"See {PAD} and say what you see in it, and when."
    known = {"file": theirs(folder, text, file), "frames": theirs(folder, text, frames_file(pixels, 3.0))}
    assert not same(*known.values())
    for form, want in (
        (file, "file"),
        (str(tmp_path / "a.mp4"), "file"),
        ((pixels, 3.0), "frames"),
        ([(pixels, 3)], "frames"),
    ):
        prompt = {"prompt": text, "multi_modal_data": {"video": form}}
        assert same(scored(llm.generate(prompt, SCORED, use_tqdm=False)[0]), known[want])
    part = {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{base64.b64encode(file).decode()}"}}
    messages = [{"role": "user", "content": [part, {"type": "text", "text": "What is it?"}]}]
    chat = scored(llm.chat(messages, SCORED, use_tqdm=False)[0])
    assert same(chat, theirs(folder, f"user: {PAD}What is it?;assistant: ", file))


@pytest.mark.parametrize(
    ("video", "said"),
    [(np.zeros((4, 4, 3), np.uint8), "[frames, height, width, 3]"), (b"none", "of a kind that is not read")],
)
def test_what_cannot_be_seen_is_refused_in_a_line(llm: LLM, video: Any, said: str) -> None:
    with pytest.raises(RequestError) as refused:
        llm.generate({"prompt": PAD, "multi_modal_data": {"video": video}}, SCORED, use_tqdm=False)
    assert said in refused.value.message
