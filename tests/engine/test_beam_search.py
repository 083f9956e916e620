"""Beams are those of transformers: same tokens, same scores."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest
import torch
import transformers

from tessera import LLM, BeamSearchParams
from tessera.config import build_config
from tessera.engine.async_engine import AsyncEngine
from tessera.errors import RequestError
from tessera.server.app import create_app
from tessera.server.settings import ServerSettings
from tests.platforms.tiny_models import save_family
from tests.text_in_process import TextInProcess

PLATFORM = "tessera_cpu.platform:CpuPlatform"
OPTIONS = {"platform": PLATFORM, "dtype": "float32", "kv_cache_memory_bytes": 1 << 22, "threads": 1}
PROMPTS = [[5, 17, 33, 80], [9], [3, 99, 41, 12, 64, 70, 7, 8, 21, 30, 2, 90, 55], [61, 62]]
ENDS = {"one": [41], "many": [4, 22, 31, 47, 58, 66, 73, 85, 93]}
"""Ends of text: one that likely answers reach, and so many that most beams end early."""


@pytest.fixture(scope="module", params=ENDS)
def folder(request, tmp_path_factory) -> Path:
    path = save_family("llama", tmp_path_factory.mktemp(request.param))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": ENDS[request.param]}))
    return path


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(folder, **OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def oracle(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ends = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]

    def beams(prompt, width, max_tokens, penalty, ignore_eos=False):
        """Tokens after the prompt and score of each beam."""
        config = transformers.GenerationConfig(
            num_beams=width, num_return_sequences=width, do_sample=False, early_stopping=False,
            max_new_tokens=max_tokens, length_penalty=penalty, eos_token_id=None if ignore_eos else ends,
            pad_token_id=0, return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        with torch.no_grad():
            found = model.generate(torch.tensor([prompt]), generation_config=config)
        if width == 1:
            tokens = found.sequences[0, len(prompt) :].tolist()
            chosen = [step.log_softmax(-1)[0, token] for step, token in zip(found.scores, tokens, strict=True)]
            return [(tokens, float(sum(chosen)) / len(tokens) ** penalty)]
        result = []
        for tokens, score in zip(found.sequences[:, len(prompt) :].tolist(), found.sequences_scores, strict=True):
            end = next((at for at, token in enumerate(tokens) if token in ends and not ignore_eos), max_tokens - 1)
            result.append((tokens[: end + 1], float(score)))
        return result

    return beams


@pytest.mark.parametrize("width", [1, 2, 4, 5])
@pytest.mark.parametrize("penalty", [1.0, 0.0, 2.0, -1.0])
def test_beams_are_those_of_transformers(llm, oracle, width, penalty):
    params = BeamSearchParams(beam_width=width, max_tokens=10, length_penalty=penalty, include_stop_str_in_output=True)
    outputs = llm.beam_search([{"prompt_token_ids": prompt} for prompt in PROMPTS], params)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        expected = oracle(prompt, width, 10, penalty)
        assert [sequence.tokens for sequence in output.sequences] == [prompt + tokens for tokens, _ in expected]
        assert [sequence.score for sequence in output.sequences] == pytest.approx(
            [score for _, score in expected], abs=1e-4
        )


def test_some_beams_end_early_and_some_do_not(llm):
    params = BeamSearchParams(beam_width=5, max_tokens=10)
    reasons = {
        (sequence.finish_reason, sequence.stop_reason is None)
        for output in llm.beam_search(PROMPTS, params)
        for sequence in output.sequences
    }
    assert ("stop", False) in reasons, "the tests above say nothing of ends"


def test_ends_may_be_ignored(llm, oracle):
    params = BeamSearchParams(beam_width=3, max_tokens=6, ignore_eos=True)
    (output,) = llm.beam_search([PROMPTS[0]], params)
    expected = oracle(PROMPTS[0], 3, 6, 1.0, ignore_eos=True)
    assert [sequence.tokens[4:] for sequence in output.sequences] == [tokens for tokens, _ in expected]
    assert {sequence.finish_reason for sequence in output.sequences} == {"length"}


def test_a_beam_tells_of_its_tokens(llm):
    kept = llm.beam_search(PROMPTS[:1], BeamSearchParams(beam_width=5, max_tokens=10, include_stop_str_in_output=True))
    (output,) = llm.beam_search(PROMPTS[:1], BeamSearchParams(beam_width=5, max_tokens=10))
    for sequence, whole in zip(output.sequences, kept[0].sequences, strict=True):
        own = whole.tokens[len(PROMPTS[0]) :]
        chosen = [alternatives[token].logprob for token, alternatives in zip(own, whole.logprobs, strict=True)]
        assert sum(chosen) == pytest.approx(whole.cum_logprob)
        assert whole.score == pytest.approx(whole.cum_logprob / len(own))
        assert sequence.tokens == (whole.tokens[:-1] if whole.finish_reason == "stop" else whole.tokens)
        assert sequence.text == llm.get_tokenizer().decode(sequence.tokens)


def test_the_server_finds_the_same(folder, llm):
    """Of two prompts at once, with the end of text among the tokens, as of every answer, and not in the text."""
    body = {"model": folder.name, "prompt": PROMPTS[:3:2], "n": 4, "temperature": 0, "max_tokens": 8}
    body |= {"use_beam_search": True, "return_token_ids": True, "logprobs": 1}
    asked = [{}, {"length_penalty": -1.0}, {"ignore_eos": True, "best_of": 5}]

    async def post_each():
        engine = await AsyncEngine.start(
            build_config(model=str(folder), **OPTIONS), text=TextInProcess(llm.get_tokenizer())
        )
        try:
            transport = httpx.ASGITransport(create_app(engine, ServerSettings()))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return [(await client.post("/v1/completions", json={**body, **fields})).json() for fields in asked]
        finally:
            await engine.shutdown()

    for fields, answer in zip(asked, asyncio.run(post_each()), strict=True):
        check_beams(llm, fields, answer)


def check_beams(llm, fields, answer):
    """That the choices of a completion are the beams that the LLM finds."""
    width = fields.get("best_of", 4)
    kept = {name: fields[name] for name in ("length_penalty", "ignore_eos") if name in fields}
    params = BeamSearchParams(beam_width=width, max_tokens=8, **kept)
    whole = BeamSearchParams(beam_width=width, max_tokens=8, include_stop_str_in_output=True, **kept)
    decode, choices = llm.get_tokenizer().decode, iter(answer["choices"])
    for shown, full in zip(llm.beam_search(PROMPTS[:3:2], params), llm.beam_search(PROMPTS[:3:2], whole), strict=True):
        for text, beam in list(zip(shown.sequences, full.sequences, strict=True))[:4]:
            choice, prompt = next(choices), next(one for one in PROMPTS if beam.tokens[: len(one)] == one)
            assert choice["token_ids"] == beam.tokens[len(prompt) :]
            assert decode(prompt) + choice["text"] == text.text
            assert (choice["finish_reason"], choice["stop_reason"]) == (beam.finish_reason, beam.stop_reason)
            logprobs = choice["logprobs"]["token_logprobs"]
            assert sum(logprobs) == pytest.approx(beam.cum_logprob, abs=1e-4)
            assert len(logprobs) == len(choice["token_ids"])
    assert next(choices, None) is None
    assert answer["usage"]["completion_tokens"] == sum(len(choice["token_ids"]) for choice in answer["choices"])


def test_what_does_not_fit_is_refused(llm):
    with pytest.raises(RequestError, match="beam_width must be a whole number from 1 to 63"):
        BeamSearchParams(beam_width=0, max_tokens=1)
    with pytest.raises(RequestError, match="length_penalty"):
        BeamSearchParams(beam_width=1, max_tokens=1, length_penalty=float("nan"))
    with pytest.raises(RequestError, match=r"prompts\[1\]: The prompt is empty"):
        llm.beam_search([[1], {"prompt_token_ids": []}], BeamSearchParams(beam_width=2, max_tokens=2))
    with pytest.raises(RequestError, match="at most 20 are allowed"):
        llm.beam_search([[1]], BeamSearchParams(beam_width=63, max_tokens=2))
