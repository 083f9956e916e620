"""Adapters in LLM: one for all prompts, one for each, none; the demo's answers change with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera.config.locate import demo_folder
from tessera.errors import RequestError
from tessera.llm import LLM
from tessera.lora import LoRARequest
from tessera.sampling_params import SamplingParams
from tessera.testing.conformance.lora import save_adapter
from tests.platforms.adapters import save_merged

OPTIONS = {"platform": "tessera_cpu.platform:CpuPlatform", "dtype": "float32", "kv_cache_memory_bytes": 1 << 24}
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = ["Once upon a time", "The capital of France is", "Hello"]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[LoRARequest]:
    folder = tmp_path_factory.mktemp("adapters")
    places = [save_adapter(demo_folder(), folder / str(seed), seed=seed, rank=8) for seed in range(2)]
    return [LoRARequest(f"adapter{number}", number + 1, str(place)) for number, place in enumerate(places)]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(enable_lora=True, max_loras=1, max_lora_rank=8, **OPTIONS) as llm:
        yield llm


def texts(llm: LLM, *given, **options) -> list[list[int]]:
    return [answer.outputs[0].token_ids for answer in llm.generate(*given, GREEDY, use_tqdm=False, **options)]


def test_one_for_all_or_one_for_each(llm: LLM, adapters: list[LoRARequest], tmp_path: Path) -> None:
    one, other = adapters
    plain, first, second = (texts(llm, PROMPTS, lora_request=asked) for asked in (None, one, other))
    assert len({str(answers) for answers in (plain, first, second)}) == 3
    assert texts(llm, PROMPTS, lora_request=[one, None, other]) == [first[0], plain[1], second[2]]
    assert texts(llm, PROMPTS[2], lora_request=other) == second[2:]
    llm.enqueue(PROMPTS[:2], GREEDY, lora_request=[other, one])
    waited = llm.wait_for_completion(use_tqdm=False)
    assert [answer.outputs[0].token_ids for answer in waited] == [second[0], first[1]]
    with LLM(save_merged(demo_folder(), Path(one.lora_path), tmp_path / "merged"), **OPTIONS) as merged:
        assert texts(merged, PROMPTS) == first


def test_a_chat_has_one_too(llm: LLM, adapters: list[LoRARequest]) -> None:
    messages = [{"role": "user", "content": "Who are you?"}]
    answers = [
        llm.chat(messages, GREEDY, use_tqdm=False, lora_request=asked)[0].outputs[0].token_ids
        for asked in (None, *adapters)
    ]
    assert len({str(answer) for answer in answers}) == 3


def test_what_is_wrong_is_refused_before_anything_runs(llm: LLM, adapters: list[LoRARequest], tmp_path: Path) -> None:
    before = {metric.name: metric.value for metric in llm.get_metrics()}["prompt_tokens"]
    large = save_adapter(demo_folder(), tmp_path / "large", seed=0, rank=9)
    for asked, said in (
        ([adapters[0]], "Got 3 prompts but 1 lora_request"),
        (["first", None, None], "lora_request must be a LoRARequest"),
        (LoRARequest("missing", 1, str(tmp_path / "missing")), "There is no folder"),
        (LoRARequest("large", 1, str(large)), "has rank 9, but --max-lora-rank is 8"),
    ):
        with pytest.raises(RequestError, match=said):
            llm.generate(PROMPTS, GREEDY, use_tqdm=False, lora_request=asked)
    assert {metric.name: metric.value for metric in llm.get_metrics()}["prompt_tokens"] == before
    with pytest.raises(RequestError, match="lora_int_id must be a whole number of at least 1"):
        LoRARequest("a", 0, "b")
    with pytest.raises(RequestError, match="needs a lora_name and a lora_path"):
        LoRARequest("a", 1, "")


def test_without_the_flag_a_call_with_an_adapter_is_refused(adapters: list[LoRARequest]) -> None:
    with LLM(**OPTIONS) as llm, pytest.raises(RequestError, match="Adapters are off here: start with enable_lora"):
        llm.generate("Hello", GREEDY, lora_request=adapters[0])
