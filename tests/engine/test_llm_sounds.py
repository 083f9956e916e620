"""Sounds in the prompts of LLM: a whole model with its processor, against transformers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
import torch
from transformers import (
    AutoProcessor,
    Qwen2AudioConfig,
    Qwen2AudioEncoderConfig,
    Qwen2AudioForConditionalGeneration,
    Qwen2Config,
)

from tessera import LLM, SamplingParams
from tessera.arrays import Array
from tessera.errors import RequestError
from tessera.media.sound import wav_file
from tests.engine.test_llm_images import SCORED, Scored, same, scored
from tests.processor_folders import SOUND_FOLDERS

RATE = 16_000
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {% for part in message['content'] %}"
    "{{ '<|AUDIO|>' if part['type'] == 'audio' else part['text'] }}{% endfor %};{% endfor %}"
    "{{ 'assistant: ' if add_generation_prompt }}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Qwen2-Audio, which hears two seconds."""
    folder = SOUND_FOLDERS["qwen2_audio"].write(tmp_path_factory.mktemp("qwen2_audio"))
    config_file = folder / "tokenizer_config.json"
    config_file.write_text(json.dumps({**json.loads(config_file.read_text()), "chat_template": TEMPLATE}))
    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    audio_token = next(token["id"] for token in tokens if token["content"] == "<|AUDIO|>")
    config = Qwen2AudioConfig(
        audio_config=Qwen2AudioEncoderConfig(
            num_mel_bins=16,
            d_model=36,
            encoder_ffn_dim=44,
            encoder_layers=2,
            encoder_attention_heads=3,
            max_source_positions=100,
        ).to_dict(),
        text_config=Qwen2Config(
            vocab_size=audio_token + 5,
            hidden_size=48,
            intermediate_size=68,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
        ).to_dict(),
        audio_token_index=audio_token,
    )
    torch.manual_seed(0)
    model = Qwen2AudioForConditionalGeneration(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.15) if weight.dim() > 1 else weight.uniform_(0.5, 1.5)
        model.get_output_embeddings().weight[audio_token] = 0.0
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, dtype="float32", kv_cache_memory_bytes=2**24, max_num_seqs=4) as llm:
        yield llm


def noise(seed: int, seconds: float, rate: int = RATE) -> Array:
    return (np.random.default_rng(seed).standard_normal(int(seconds * rate)) / 10).astype(np.float32)


SOUNDS = [noise(1, 0.7), noise(2, 1.9), noise(3, 0.25)]


def theirs(folder: Path, text: str, sounds: list[Array]) -> Scored:
    """What transformers answers."""
    processor: Any = AutoProcessor.from_pretrained(folder)
    model = Qwen2AudioForConditionalGeneration.from_pretrained(folder).eval()
    inputs = processor(text=[text], audio=sounds, sampling_rate=RATE, return_tensors="pt")
    with torch.inference_mode():
        answer = model.generate(
            **inputs, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
    tokens = answer.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    logprobs = torch.cat(answer.logits).log_softmax(-1)
    return [(token, float(row[token])) for token, row in zip(tokens, logprobs, strict=True)]


def ours(llm: LLM, text: str, sounds: Any) -> Scored:
    return scored(llm.generate({"prompt": text, "multi_modal_data": {"audio": sounds}}, SCORED, use_tqdm=False)[0])


def test_prompts_with_sounds_are_answered_as_by_transformers(folder: Path, llm: LLM) -> None:
    first, second, third = SOUNDS
    answers = []
    for text, sounds in (
        ("Hear <|AUDIO|> and say.", [first]),
        ("Hear <|AUDIO|> and say.", [second]),
        ("<|AUDIO|><|AUDIO|> or <|AUDIO|>", [second, third, first]),
    ):
        answers.append(ours(llm, text, sounds))
        assert same(answers[-1], theirs(folder, text, sounds))
    assert not same(*answers[:2])


def test_each_form_of_a_sound_is_the_same_sound(folder: Path, llm: LLM, tmp_path: Path) -> None:
    text, sound = "Hear <|AUDIO|> and say.", SOUNDS[0]
    file = wav_file(sound, RATE)
    (tmp_path / "a.wav").write_bytes(file)
    want = ours(llm, text, sound)
    for form in (
        (sound, RATE),
        [(sound, RATE)],
        file,
        str(tmp_path / "a.wav"),
        sound.tolist(),
        torch.from_numpy(sound),
    ):
        assert same(ours(llm, text, form), want)
    fast = noise(9, 1.0, 48_000)
    assert same(ours(llm, text, (fast, 48_000)), theirs(folder, text, [soxr.resample(fast, 48_000, RATE)]))
    want = theirs(folder, "user: <|AUDIO|>What?;assistant: ", [sound])
    data = base64.b64encode(file).decode()
    for part in (
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{data}"}},
        {"type": "audio", "audio": (sound, RATE)},
    ):
        messages = [{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}]
        assert same(scored(llm.chat(messages, SCORED, use_tqdm=False)[0]), want)


@pytest.mark.parametrize(
    ("text", "data", "said"),
    [
        ("no place", {"audio": SOUNDS[0]}, "1 sounds, and its prompt has places for 0"),
        ("<|AUDIO|>", {"audio": b"no sound"}, "of a kind that is not read"),
        ("<|AUDIO|>", {"audio": (SOUNDS[0], 10**9)}, "4000 to 192000 samples a second"),
        ("<|AUDIO|>", {"audio": SOUNDS[0].reshape(2, -1)}, "one dimension"),
        ("<|AUDIO|>", {"audio": np.arange(99)}, "array of floats"),
        ("<|AUDIO|>", {"audio": noise(4, 2.1)}, "has 2.1 seconds, and this model takes 2"),
        ("<|AUDIO|>" * 17, {"audio": [SOUNDS[2]] * 17}, "at most 16 sounds"),
        ("<|AUDIO|>", {"image": b""}, "No images are taken here"),
    ],
    ids=["no placeholder", "no sound", "rate", "channels", "integers", "too long", "too many", "image"],
)
def test_what_cannot_be_heard_is_refused_in_a_line(llm: LLM, text: str, data: Any, said: str) -> None:
    with pytest.raises(RequestError) as refused:
        llm.generate({"prompt": text, "multi_modal_data": data}, SCORED, use_tqdm=False)
    assert said in refused.value.message
    assert "\n" not in refused.value.message


def test_without_sounds_the_text_model_is_served_alone(folder: Path) -> None:
    with LLM(folder, dtype="float32", kv_cache_memory_bytes=2**24, limit_mm_per_prompt={"audio": 0}) as llm:
        with pytest.raises(RequestError, match="No sounds are taken here"):
            ours(llm, "<|AUDIO|>", SOUNDS[0])
        assert len(llm.generate("plain", SamplingParams(max_tokens=3, ignore_eos=True))[0].outputs[0].token_ids) == 3
