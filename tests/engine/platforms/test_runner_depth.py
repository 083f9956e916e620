"""A platform that brings its own model runner, as it is generated: NumPy, no torch device, the same tokens."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera import LLM, SamplingParams
from tessera.errors import PlatformError, RequestError
from tessera.testing.conformance.lora import save_adapter
from tests.engine.platforms.conftest import Alone
from tests.engine.platforms.test_speculation import DRAFTS, speculating, verified
from tests.engine.platforms.test_tokens_on_every_platform import FILTERED, SAMPLED, prompts
from tests.platforms.adapters import save_merged
from tests.platforms.engine_run import EngineRun
from tests.platforms.generated import numpy_package, numpy_platform
from tests.platforms.own_runners import PATH as OWN
from tests.platforms.packed_models import save_packed
from tests.platforms.tiny_models import save_family, text_of
from tools.checks.sources import imports

PENALIZED = {**SAMPLED, "presence_penalty": 1.5, "repetition_penalty": 1.4}


def test_it_imports_the_contracts_and_numpy_and_nothing_else() -> None:
    sources = [ast.parse(path.read_text(encoding="utf-8")) for path in numpy_package().rglob("*.py")]
    targets = {entry.target for source in sources for entry in imports(source) if not entry.type_checking}
    packages = {target.partition(".")[0] for target in targets} - set(sys.stdlib_module_names)
    assert packages == {"numpy", "tessera", "tessera_numpy"}
    assert all(target.startswith("tessera.platform") for target in targets if target.startswith("tessera."))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("params", [{}, SAMPLED, FILTERED], ids=["greedy", "sampled", "filtered"])
def test_tokens_are_those_of_every_platform(llama: Path, alone: Alone, depth: int, params: dict) -> None:
    questions = prompts(11)
    with EngineRun(llama, "numpy", depth=depth) as run:
        answers = run.ask(questions, 14, ignore_eos=True, **params)
    assert answers == [
        alone(question, 14, seed=seed, ignore_eos=True, **params) for seed, question in enumerate(questions)
    ]


def test_its_blocks_are_shared_forked_chunked_and_taken_away(llama: Path, alone: Alone) -> None:
    shared = prompts(1, seed=8)[0] * 3
    questions = [shared + rest for rest in prompts(4, longest=9, seed=9)]
    pool = {"max_model_len": 256, "kv_cache_memory_bytes": 290 * 384, "max_num_batched_tokens": 24}
    with EngineRun(llama, "numpy", depth=2, **pool) as run:
        leader = run.add(questions[0], 40, seed=0, ignore_eos=True, **SAMPLED)
        keys = [leader] + [
            run.add(question, 40, seed=i, leader=leader if i == 1 else -1, ignore_eos=True, **SAMPLED)
            for i, question in enumerate([questions[0], *questions[1:]], start=1)
        ]
        run.finish()
        counters = run.engine.stats.counters
    assert [run.answers[key] for key in keys] == [
        alone(question, 40, seed=i, ignore_eos=True, **SAMPLED)
        for i, question in enumerate([questions[0], questions[0], *questions[1:]])
    ]
    assert counters.forked_tokens > 0
    assert counters.cached_prompt_tokens > 0
    assert counters.preemptions > 0


@pytest.mark.parametrize("depth", [1, 2])
def test_its_rows_are_masked_as_on_every_platform(llama: Path, depth: int) -> None:
    found = []
    for platform in ("numpy", "reference"):
        options = {"features": ["structured_outputs"], "tokenizer": str(llama), "depth": depth}
        with EngineRun(llama, platform, **options) as run:
            keys = [
                run.add(question, 12, seed=seed, structured_outputs={"regex": "[a-f]+[0-9]"} if seed % 2 else None)
                for seed, question in enumerate(prompts(5))
            ]
            run.finish()
            found.append([run.answers[key] for key in keys])
    assert found[0] == found[1]
    for answer in found[0][1::2]:
        assert re.fullmatch("[a-f]+[0-9]?", text_of(answer))


def test_log_probabilities_are_those_of_every_platform(llama: Path) -> None:
    found = []
    for platform in ("numpy", "reference"):
        with EngineRun(llama, platform) as run:
            keys = [
                run.add(question, 5, seed=seed, logprobs=wanted, logit_bias={7: 3.0})
                for seed, (question, wanted) in enumerate(zip(prompts(3), (0, None, 4), strict=True))
            ]
            run.finish()
            found.append([run.logprobs[key] for key in keys])
    own, reference = found
    assert [len(rows) for rows in own] == [len(rows) for rows in reference] == [5, 0, 5]
    for mine, theirs in zip(
        (row for rows in own for row in rows), (row for rows in reference for row in rows), strict=True
    ):
        assert mine.ids.tolist() == theirs.ids.tolist()
        assert mine.ranks.tolist() == theirs.ranks.tolist()
        np.testing.assert_allclose(mine.logprobs, theirs.logprobs, atol=1e-4)


# ---- what it takes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("params", [{}, SAMPLED, PENALIZED], ids=["greedy", "sampled", "penalized"])
def test_drafts_change_no_token(llama: Path, alone: Alone, depth: int, params: dict) -> None:
    questions = prompts(6, seed=3)
    expected = [alone(question, 20, seed=seed, ignore_eos=True, **params) for seed, question in enumerate(questions)]
    whole = [[*question, *answer] for question, answer in zip(questions, expected, strict=True)]
    with speculating(EngineRun(llama, "numpy", depth=depth, speculative_config=DRAFTS), whole) as run:
        assert run.ask(questions, 20, ignore_eos=True, **params) == expected
        verified(run)


def test_log_probabilities_and_masks_of_drafts_are_those_of_their_tokens(llama: Path) -> None:
    found, questions, pattern = [], prompts(3, seed=4), {"regex": "[a-f]+[0-9]+"}
    for flags in ({}, {"speculative_config": DRAFTS}):
        options = {"features": ["structured_outputs"], "tokenizer": str(llama), **flags}
        with EngineRun(llama, "numpy", **options) as run:
            if flags:
                pairs = zip(questions, found[0][0], strict=True)
                speculating(run, [[*question, *tokens] for question, tokens in pairs])
            masked = [None, pattern, None]
            keys = [
                run.add(question, 14, seed=seed, logprobs=seed, ignore_eos=True, structured_outputs=mask)
                for seed, (question, mask) in enumerate(zip(questions, masked, strict=True))
            ]
            run.finish()
            found.append(([run.answers[key] for key in keys], [run.logprobs[key] for key in keys]))
            if flags:
                verified(run)
    (plain, expected), (drafted, logprobs) = found
    assert drafted == plain
    for mine, theirs in zip(logprobs, expected, strict=True):
        for name in ("ids", "logprobs", "ranks"):
            own, others = (np.concatenate([getattr(row, name) for row in rows]) for rows in (mine, theirs))
            np.testing.assert_allclose(own, others, atol=1e-4)


def test_weights_are_rounded_at_load_as_on_every_platform(llama: Path) -> None:
    answers, sizes = {}, {}
    for platform in ("numpy", "reference"):
        for quantization in (None, "int8"):
            with EngineRun(llama, platform, quantization=quantization) as run:
                answers[platform, quantization] = run.ask(prompts(5, seed=6), 16, ignore_eos=True)
                sizes[platform, quantization] = run.engine.info.weight_bytes
                assert run.engine.info.notes == []
    assert answers["numpy", "int8"] == answers["reference", "int8"] != answers["numpy", None]
    assert sizes["numpy", "int8"] == sizes["reference", "int8"] < 0.5 * sizes["numpy", None]


def test_a_scheme_that_its_platform_declines_is_decoded_or_one_line(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match="'numpy' does not take --quantization int4 \\(it multiplies int8 weights"):
        EngineRun(llama, "numpy", quantization="int4")
    found = []
    for folder in save_packed(llama, tmp_path, "w4a16"):
        with EngineRun(folder, "numpy") as run:
            found.append(run.ask(prompts(5, seed=6), 16, ignore_eos=True))
    assert found[0] == found[1]


def test_a_quantized_checkpoint_is_read_part_by_part(llama: Path, tmp_path: Path) -> None:
    packed, _ = save_packed(llama, tmp_path, "w8a8")
    found = []
    for platform in ("numpy", "reference"):
        with EngineRun(packed, platform) as run:
            found.append(run.ask(prompts(5, seed=6), 16, ignore_eos=True))
    assert found[0] == found[1]


def test_what_stays_unquantized_is_said(llama: Path) -> None:
    folder = llama.parent / "odd"
    save_family("llama", folder, intermediate_size=44)
    with EngineRun(folder / "llama", f"{OWN}:TakesInt4", quantization="int4") as run:
        (note,) = run.engine.info.notes
    assert note.startswith(
        "--quantization int4 leaves 2 weights as they are (the first is model.layers.0.mlp.down_proj)"
    )


def test_adapters_reach_a_runner_that_takes_them(llama: Path, tmp_path: Path) -> None:
    adapter = save_adapter(llama, tmp_path / "adapter", seed=1)
    merged = save_merged(llama, adapter, tmp_path / "merged")
    questions = prompts(4, seed=2)
    expected = []
    for model in (llama, merged):
        with EngineRun(model, "reference") as run:
            expected.append(run.ask(questions, 12, ignore_eos=True))
    with EngineRun(llama, f"{OWN}:TakesAdapters", features=["lora"], enable_lora=True) as run:
        keys = [
            run.add(question, 12, ignore_eos=True, adapter=str(adapter) if i % 2 else "")
            for i, question in enumerate(questions)
        ]
        run.finish()
        assert [run.answers[key] for key in keys] == [expected[i % 2][i] for i in range(4)]
    assert expected[0] != expected[1]
    with pytest.raises(PlatformError, match="does not take --enable-lora; remove the flag"):
        EngineRun(llama, "numpy", features=["lora"], enable_lora=True)


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("speculative_config", DRAFTS, "--speculative-config"),
        ("quantization", "int8", "--quantization int8"),
        ("kv_cache_dtype", "int8", "--kv-cache-dtype int8"),
        ("check_kv_cache", True, "--check-kv-cache"),
    ],
)
def test_what_a_runner_does_not_take_is_refused(llama: Path, flag: str, value: Any, said: str) -> None:
    with pytest.raises(PlatformError, match=f"which does not take {said}; remove the flag"):
        EngineRun(llama, f"{OWN}:TakesNothing", **{flag: value})


def test_a_runner_can_take_nothing_that_core_does_not_know(llama: Path) -> None:
    with pytest.raises(
        PlatformError, match="TakesMistyped.Runner takes 'draft', which no runner can; did it mean drafts"
    ):
        EngineRun(llama, f"{OWN}:TakesMistyped")


def test_llm_drafts_in_int8(llama: Path) -> None:
    texts = []
    for flags in ({}, {"speculative_config": {**DRAFTS, "num_speculative_tokens": 4}}):
        settings = {"platform": numpy_platform(), "dtype": "float32", "quantization": "int8", **flags}
        with LLM(llama, kv_cache_memory_bytes=1 << 21, **settings) as llm:
            params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
            outputs = llm.generate(["abcabcabcabc", "xyxyxyxy"], params, use_tqdm=False)
            texts.append([output.outputs[0].text for output in outputs])
    assert texts[0] == texts[1]


def test_what_its_runner_cannot_do_is_refused_by_name(llama: Path) -> None:
    with EngineRun(llama, "numpy") as run:
        with pytest.raises(RequestError, match="prompt_logprobs is not supported on this platform") as raised:
            run.add([1, 2, 3], 4, prompt_logprobs=1)
        assert raised.value.param == "prompt_logprobs"
        del run.answers[0]
        assert len(run.ask([[1, 2, 3]], 4)[0]) == 4, "others go on"


def test_no_fallback_is_refused_at_the_start(llama: Path) -> None:
    with pytest.raises(PlatformError, match="op 'sample' would run on the reference .*, which --no-fallback forbids"):
        EngineRun(llama, "numpy", no_fallback=True)
