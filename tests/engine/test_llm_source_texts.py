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
OTHERS = {80: "fra_Latn", 81: "__fr__", 82: "<s>"}
"""Special tokens: two languages, and the first of a text."""
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
    _name_languages(folder)
    return folder


def _name_languages(folder: Path) -> None:
    path = folder / "tokenizer.json"
    said = json.loads(path.read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = {LANGUAGE: "eng_Latn", **OTHERS}
    said["added_tokens"] = [{"id": token, "content": text, "special": True, **flags} for token, text in special.items()]
    vocabulary = said["model"]["vocab"]
    named = {token: text for text, token in vocabulary.items()} | special
    said["model"]["vocab"] = {text: token for token, text in named.items()}
    path.write_text(json.dumps(said))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), dtype="float32", kv_cache_memory_bytes=2**22, max_num_seqs=4) as llm:
        yield llm


def expected(folder: Path, prompt: list[int], language: int = LANGUAGE) -> list[int]:
    """What generate() writes behind the language."""
    model = MBartForConditionalGeneration.from_pretrained(folder).eval()
    made = model.generate(
        torch.tensor([prompt]), num_beams=1, do_sample=False, max_new_tokens=ANSWER + 1, max_length=None,
        bad_words_ids=[[NEVER]], forced_bos_token_id=language,
    )  # fmt: skip
    begin, answer = made[0, :2].tolist(), made[0, 2:].tolist()
    assert begin == [START, language]
    return answer


def test_answers_are_transformers_own(llm: LLM, folder: Path) -> None:
    assert BART["vocab_size"] <= VOCAB
    params = llm.get_default_sampling_params()
    assert params.temperature == 0.0
    params.max_tokens = ANSWER
    outputs = llm.generate([text_of(prompt) for prompt in PROMPTS], params)
    assert [output.prompt_token_ids for output in outputs] == PROMPTS
    assert [output.outputs[0].token_ids for output in outputs] == [expected(folder, prompt) for prompt in PROMPTS]


def test_a_request_names_its_language(llm: LLM, folder: Path) -> None:
    names = "fra_Latn", "fr", "eng_Latn"
    params = [SamplingParams(temperature=0, max_tokens=ANSWER, target_language=name) for name in names]
    outputs = llm.generate([PROMPTS[0]] * len(params), params)
    answers = [expected(folder, PROMPTS[0], language) for language in (80, 81, LANGUAGE)]
    assert [output.outputs[0].token_ids for output in outputs] == answers
    assert answers[0] != answers[2]
    beams = BeamSearchParams(beam_width=2, max_tokens=2, target_language="fra_Latn")
    (output,) = llm.beam_search([PROMPTS[0]], beams)
    assert all(beam.tokens[:2] == [START, 80] for beam in output.sequences)


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
        ([3], SamplingParams(target_language="fra"), "'fra' is no language of this model; .* such as 'eng_Latn'"),
        ([3], SamplingParams(target_language="<s>"), "'<s>' is no language of this model"),
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
