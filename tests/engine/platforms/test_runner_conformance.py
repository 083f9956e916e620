"""The kit on platforms that run models their own way."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors import safe_open

from tessera.config import build_config
from tessera.engine.engine import Engine
from tessera.errors import RefusedError, RequestError
from tessera.testing.conformance import Case, ConformanceError, conformance_cases
from tessera.testing.conformance.tiny import save_checkpoint
from tests.platforms.engine_run import EngineRun
from tests.platforms.generated import numpy_platform
from tests.platforms.tiny_models import save_family

FAULTY = "tests.platforms.faulty_runner"
TAKEN = ("lora/answers", "drafts/answers", "quantized/int8", "quantized/int4")
SIZES = {
    "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "vocab_size": 101, "hidden_size": 72,
    "intermediate_size": 88, "num_hidden_layers": 1, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 12,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "sliding_window": 19,
}  # fmt: skip


def models(platform: str) -> dict[str, Case]:
    return {case.id: case for case in conformance_cases(platform, "bronze") if case.subject == "model"}


def test_a_model_that_it_runs_passes_and_one_that_it_refuses_is_absent() -> None:
    cases = models(numpy_platform())
    assert cases["model/llama-float32"].run().status == "passed"
    refused = cases["model/gemma2-float32"].run()
    assert refused.status == "n/a"
    assert refused.text == "numpy cannot run this model: it runs LlamaForCausalLM, this is Gemma2ForCausalLM."
    assert cases["model/any"].run().status == "passed"


def test_a_wrong_answer_is_found_without_log_probabilities() -> None:
    with pytest.raises(ConformanceError, match=r"^llama in float32, prompt \d of \d+ tokens: the answer is \["):
        models(f"{FAULTY}:WrongBase")["model/llama-float32"].run()


@pytest.mark.parametrize(
    ("platform", "said"),
    [
        ("LateMasks", "; the mask of the token before allows it, so the mask came one step late"),
        ("OthersMasks", r"; the mask of request \d allows it, so a row got another row's mask"),
    ],
)
def test_a_mask_that_goes_wrong_is_named(platform: str, said: str) -> None:
    (case,) = (case for case in conformance_cases(f"{FAULTY}:{platform}") if case.subject == "masks")
    with pytest.raises(ConformanceError, match=rf"^masks: request \d drew token \d+ at place \d+ .*{said}"):
        case.run()


def test_a_runner_may_have_no_masks(llama: Path) -> None:
    for platform, status in ((numpy_platform(), "passed"), (f"{FAULTY}:TakesNoMasks", "n/a")):
        (case,) = (case for case in conformance_cases(platform) if case.subject == "masks")
        assert case.run().status == status
    with (
        EngineRun(llama, f"{FAULTY}:TakesNoMasks", features=["structured_outputs"], tokenizer=str(llama)) as run,
        pytest.raises(RequestError, match="structured_outputs is not supported on this platform; remove it"),
    ):
        run.add([5, 6], structured_outputs={"regex": "a"})


def case_of(platform: str, name: str) -> Case:
    (case,) = (case for case in conformance_cases(platform) if case.id == name)
    return case


@pytest.mark.parametrize(
    ("platform", "case", "said"),
    [
        (
            "DraftsUnread",
            "drafts/answers",
            r"^with drafts, request \d in float32: token \d+ of the answer has log probability ",
        ),
        ("ScalesOfTheNextRow", "quantized/int8", "^llama in float32, prompt 0 of 1 tokens"),
    ],
)
def test_what_a_runner_takes_is_tried(platform: str, case: str, said: str) -> None:
    assert case_of(numpy_platform(), case).run().status == "passed"
    with pytest.raises(ConformanceError, match=said):
        case_of(f"{FAULTY}:{platform}", case).run()


def test_adapters_are_tried_if_a_runner_takes_them() -> None:
    assert case_of("tests.platforms.own_runners:TakesAdapters", "lora/answers").run().status == "passed"
    absent = [case_of("tests.platforms.own_runners:TakesNothing", name) for name in TAKEN]
    for name, verdict in zip(TAKEN, (case.run() for case in absent), strict=True):
        assert (verdict.status, "which does not take --" in verdict.text) == ("n/a", True), name


def test_to_refuse_every_model_is_no_level() -> None:
    cases = models(f"{FAULTY}:RefusesAll")
    assert cases["model/llama-float32"].run().status == "n/a"
    with pytest.raises(
        ConformanceError, match="the platform refuses every model that was tried: it runs nothing at all"
    ):
        cases["model/any"].run()


def test_the_refusal_is_the_users_one_line(tmp_path: Path) -> None:
    folder = save_family("mixtral", tmp_path)
    config = build_config(
        model=str(folder), platform=numpy_platform(), skip_tokenizer_init=True, dtype="float32", threads=1
    )
    with pytest.raises(RefusedError, match="this is MixtralForCausalLM"):
        Engine(config, executor="tests.platforms.watched:WatchedExecutor")


def test_a_checkpoint_has_whole_tensors_by_the_names_of_its_family(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, SIZES, "bfloat16")
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
        assert {"model.embed_tokens.weight", "model.layers.0.pre_feedforward_layernorm.weight"} <= names
        assert "lm_head.weight" not in names, "it is tied"
        assert file.get_slice("model.layers.0.self_attn.q_proj.weight").get_shape() == [72, 72]
        assert file.get_slice("model.layers.0.self_attn.k_proj.weight").get_shape() == [24, 72]
        assert file.get_slice("model.layers.0.mlp.up_proj.weight").get_dtype() == "BF16"
