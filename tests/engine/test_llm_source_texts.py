"""Texts that an encoder reads, in the prompts of LLM: whole models, against transformers' generate()."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import MBartForConditionalGeneration

from tessera import LLM, BeamSearchParams, SamplingParams
from tessera.errors import ModelError, RequestError
from tests.platforms.tiny_models import VOCAB, save_tokenizer, text_of
from tools.parity.encoder_decoders import BART, ENCODER_DECODERS
from tools.parity.family import save_model

START, LANGUAGE, NEVER, END = 2, 9, 30, 5
ANSWER = 20
PROMPTS = [[4, 8, 15, 16, 23, 42], [7], [*range(10, 75)]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An mBART, whose answers begin with a language."""
    folder = tmp_path_factory.mktemp("mbart")
    save_model(ENCODER_DECODERS["mbart-seq2seq"], folder)
    said = {"decoder_start_token_id": START, "forced_bos_token_id": LANGUAGE, "eos_token_id": END}
    generation = {**said, "bad_words_ids": [[NEVER], [3, 4]], "num_beams": 5, "max_length": 80}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), dtype="float32", kv_cache_memory_bytes=2**22, max_num_seqs=4) as llm:
        yield llm


def expected(folder: Path, prompt: list[int]) -> list[int]:
    """What generate() writes behind the language."""
    model = MBartForConditionalGeneration.from_pretrained(folder).eval()
    made = model.generate(
        torch.tensor([prompt]), num_beams=1, do_sample=False, max_new_tokens=ANSWER + 1, max_length=None,
        bad_words_ids=[[NEVER]],
    )  # fmt: skip
    begin, answer = made[0, :2].tolist(), made[0, 2:].tolist()
    assert begin == [START, LANGUAGE]
    return answer


def test_answers_are_transformers_own(llm: LLM, folder: Path) -> None:
    assert BART["vocab_size"] <= VOCAB
    params = llm.get_default_sampling_params()
    assert params.temperature == 0.0
    params.max_tokens = ANSWER
    outputs = llm.generate([text_of(prompt) for prompt in PROMPTS], params)
    assert [output.prompt_token_ids for output in outputs] == PROMPTS
    assert [output.outputs[0].token_ids for output in outputs] == [expected(folder, prompt) for prompt in PROMPTS]


def test_beams_are_transformers_own(llm: LLM, folder: Path) -> None:
    prompt, width = PROMPTS[0], 3
    model = MBartForConditionalGeneration.from_pretrained(folder).eval()
    made = model.generate(
        torch.tensor([prompt]), num_beams=width, num_return_sequences=width, do_sample=False, max_new_tokens=7,
        max_length=None, bad_words_ids=[[NEVER]], length_penalty=1.0, early_stopping=False,
    )  # fmt: skip
    (output,) = llm.beam_search([text_of(prompt)], BeamSearchParams(beam_width=width, max_tokens=6))
    assert [beam.tokens for beam in output.sequences] == made.tolist()


def test_what_is_refused_is_one_line(llm: LLM, folder: Path) -> None:
    for prompt, params, said in (
        ([3] * 97, SamplingParams(), "takes texts of up to 96 tokens, and this one has 97"),
        ([3], SamplingParams(prompt_logprobs=1), "This model's encoder reads the prompt"),
    ):
        with pytest.raises(RequestError, match=said):
            llm.generate([prompt], params)
    (cut,) = llm.generate([[3] * 99], SamplingParams(max_tokens=2, truncate_prompt_tokens=-1))
    assert len(cut.prompt_token_ids) == 96


def test_a_folder_that_does_not_say_how_answers_begin_is_refused(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "decoder_start_token_id": None}))
    with pytest.raises(ModelError, match="decoder_start_token_id in generation_config.json or config.json must be"):
        LLM(str(tmp_path), load_format="dummy", skip_tokenizer_init=True)
