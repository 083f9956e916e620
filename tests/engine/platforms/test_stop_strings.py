"""Stop strings through the front door: seen a step late where two are in flight, the same text everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera.llm import LLM
from tessera.sampling_params import SamplingParams
from tests.engine.platforms.test_tokens_on_every_platform import prompts
from tests.platforms.engine_run import PLATFORMS
from tests.platforms.tiny_models import text_of

QUESTIONS = [text_of(question) for question in prompts(5, longest=30, seed=16)]


def generate(llama: Path, place: tuple[str, int], params: list[SamplingParams]) -> list[tuple]:
    platform, depth = place
    with LLM(
        llama,
        platform=PLATFORMS[platform],
        dtype="float32",
        steps_in_flight=depth,
        max_num_seqs=4,
        kv_cache_memory_bytes=1 << 21,
    ) as llm:
        outputs = llm.generate(QUESTIONS, params, use_tqdm=False)
    return [(o.text, o.token_ids, o.finish_reason, o.stop_reason) for output in outputs for o in output.outputs]


@pytest.fixture(scope="module")
def whole(llama: Path) -> list[tuple]:
    params = [SamplingParams(temperature=1, seed=i, max_tokens=24, ignore_eos=True) for i in range(len(QUESTIONS))]
    return generate(llama, ("reference", 1), params)


@pytest.mark.parametrize("include", [False, True])
def test_an_answer_ends_before_its_stop_string(
    llama: Path, place: tuple[str, int], whole: list[tuple], include: bool
) -> None:
    texts = [text for text, *_ in whole]
    assert [text_of(tokens) for _, tokens, *_ in whole] == texts
    stops = [text[4 + i : 6 + i] for i, text in enumerate(texts)]
    params = [
        SamplingParams(
            temperature=1,
            seed=i,
            max_tokens=24,
            ignore_eos=True,
            stop=["\x00", stop],
            include_stop_str_in_output=include,
        )
        for i, stop in enumerate(stops)
    ]
    ends = [text.index(stop) + (2 if include else 0) for text, stop in zip(texts, stops, strict=True)]
    found = generate(llama, place, params)
    assert [text for text, *_ in found] == [text[:end] for text, end in zip(texts, ends, strict=True)]
    assert [(reason, stop) for *_, reason, stop in found] == [("stop", stop) for stop in stops]


def test_several_answers_to_a_prompt(llama: Path, place: tuple[str, int]) -> None:
    params = [SamplingParams(n=3, temperature=1, seed=7, max_tokens=9)] * len(QUESTIONS)
    found = generate(llama, place, params)
    assert len({text for text, *_ in found[:3]}) > 1
    assert found == generate(llama, ("reference", 1), params)
