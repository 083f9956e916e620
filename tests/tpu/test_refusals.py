"""What the platform does not do is refused, in one line that says what to do."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.errors import PlatformError, RefusedError, RequestError
from tests.engine.platforms.test_tokens_on_every_platform import prompts
from tests.platforms.engine_run import EngineRun
from tests.platforms.packed_models import save_packed


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"quantization": "int4"}, "does not take --quantization int4 .it multiplies int8 weights that have a scale"),
        (
            {"kv_cache_dtype": "fp8"},
            "no attention backend supports layer 0 .paged: keys and values are kept in float32 or",
        ),
        ({"check_kv_cache": True}, "does not take --check-kv-cache; remove the flag"),
    ],
)
def test_flags_that_it_does_not_take(start: Any, flags: dict, said: str) -> None:
    with pytest.raises(PlatformError, match=said):
        start("llama", enforce_eager=True, **flags)


def test_a_feature_that_changes_logits(start: Any) -> None:
    with pytest.raises(RefusedError, match="logits or sampled tokens, as EvenInWorker does; remove it from --features"):
        start("llama", features=["even"], plugins=["tests.platforms.fake_feature"])


def test_models_that_run_through_transformers(start: Any) -> None:
    with pytest.raises(RefusedError, match="cannot trace GPTNeoXForCausalLM, which runs through transformers' code"):
        start("gpt_neox")


def test_attention_with_sinks(start: Any) -> None:
    with pytest.raises(PlatformError, match="no attention backend supports layer 0 .paged: no kernel for sinks"):
        start("gpt_oss")


def test_fields_of_requests(start: Any) -> None:
    with pytest.raises(RequestError, match="prompt_logprobs is not supported on this platform"):
        start("llama", enforce_eager=True).add([1, 2, 3], 4, prompt_logprobs=1)


def test_int8_weights_answer_as_on_the_reference(start: Any, family: Any) -> None:
    questions, answers, sizes = prompts(5, seed=6), [], []
    runs = (
        start("llama", quantization="int8"), EngineRun(family("llama"), "reference", quantization="int8"),
        EngineRun(family("llama"), "reference"),
    )  # fmt: skip
    for run in runs:
        answers.append(run.ask(questions, 16, ignore_eos=True))
        sizes.append(run.engine.info.weight_bytes)
    assert answers[0] == answers[1] != answers[2]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)
    assert sizes[0] < 0.5 * sizes[2]


def test_int8_checkpoints_answer_as_on_the_reference(start: Any, family: Any, tmp_path: Any) -> None:
    packed, _ = save_packed(family("llama"), tmp_path, "w8a8")
    with EngineRun(packed, "reference") as run:
        expected = run.ask(prompts(5, seed=6), 16, ignore_eos=True)
    assert start(packed).ask(prompts(5, seed=6), 16, ignore_eos=True) == expected
