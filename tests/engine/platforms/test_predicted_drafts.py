"""Drafts of the method "mtp": they are what the checkpoint's layer predicts, by transformers' own layers, and answers
are the same with them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tessera.arrays import int32
from tessera.config import build_config
from tessera.engine.plan import plan_here
from tessera.errors import ModelError, PlatformError, RefusedError
from tessera.loader.quantized_folder import write_folder
from tessera.quantization.compressed_weights import CompressedForm
from tessera.runner import drafter
from tessera.scheduler.predicted_drafts import PredictedTokens, PredictingSpeculation
from tessera.step import StepOutput
from tessera.testing.conformance.drafts import Longest
from tests.engine.platforms.conftest import Start
from tests.engine.platforms.test_speculation import FIELDS, QUESTIONS, verified
from tests.engine.platforms.test_tokens_on_every_platform import prompts
from tests.platforms.engine_run import EngineRun
from tests.platforms.predicting_models import PARTS, Predictions
from tools.parity.family import save_model
from tools.parity.vision import WITH_IMAGES

ROOT = Path(__file__).parents[3]
MOST, ROWS = 3, 256
DRAFTS = {"method": "mtp", "num_speculative_tokens": MOST}
FEW_BLOCKS = {
    "deepseek_v3": {"kv_cache_memory_bytes": 60_000},
    "glm4_moe": {"kv_cache_memory_bytes": 110_000},
}
Known = dict[tuple[int, ...], list[int]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Predictions]:
    made: dict[tuple[str, bool], Predictions] = {}

    def make(family: str, *, repeats: bool = False) -> Predictions:
        if (family, repeats) not in made:
            folder = tmp_path_factory.mktemp("predicting")
            made[family, repeats] = Predictions(family, folder, repeats=repeats)
        return made[family, repeats]

    return make


class Remembered(PredictedTokens):
    """Keeps all drafts by the tokens that they follow."""

    def __init__(self, *sizes: Any) -> None:
        super().__init__(*sizes)
        self.made: Known = {}

    def keep(self, output: StepOutput) -> None:
        super().keep(output)
        parts = np.split(output.tokens, np.cumsum(output.counts)[:-1])
        for row, drafts, tokens in zip(output.rows.tolist(), output.drafts, parts, strict=True):
            before = self._rows.tokens[row, : self._rows.num_tokens[row]]
            self.made[*before.tolist(), *tokens.tolist()] = [draft for draft in drafts.tolist() if draft >= 0]


def drafting(run: EngineRun) -> Known:
    """The run with as many drafts as rows may have; what they follow, and they."""
    speculation = run.engine._scheduler.speculation
    assert isinstance(speculation, PredictingSpeculation)
    remembered = Remembered(speculation._rows, MOST)
    speculation.proposer = speculation.predicted = remembered
    speculation.lengths = Longest(ROWS, MOST)
    return remembered.made


def wrong(made: Known, model: Predictions) -> int:
    """How many are not what the layer predicts."""
    return sum(drafts != model.after(known, len(drafts)) for known, drafts in made.items())


# ---- what the layer predicts


@pytest.mark.parametrize("family", PARTS)
@pytest.mark.parametrize("platform", ["cpu", pytest.param("reference", marks=pytest.mark.nightly)])
def test_drafts_are_what_the_layer_predicts(platform: str, family: str, models: Callable[..., Predictions]) -> None:
    """Behind prompts in chunks, after prefix hits and preemptions, whether the drafts before were right or wrong."""
    for model in (models(family), models(family, repeats=True)):
        options: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 24, "max_model_len": 96}
        options |= FEW_BLOCKS.get(family, {})
        with EngineRun(model.folder, platform, depth=2, speculative_config=DRAFTS, **options) as run:
            made, questions = drafting(run), [(one * 9)[:60] for one in prompts(4, seed=3)]
            run.ask(questions, 30, ignore_eos=True)
            run.ask(questions[-1:], 12, ignore_eos=True)
            counters = run.engine.stats.counters
            unfinished = [step for step in run.steps if len(step.samples) < len(step.rows)]
            assert unfinished
            assert not any(step.num_drafts for step in unfinished), "the next step has prompts, and no drafts"
            if family in FEW_BLOCKS:
                assert counters.cached_prompt_tokens > 0
                assert counters.preemptions > 0
        assert max(len(drafts) for drafts in made.values()) == MOST
        assert wrong(made, model) == 0
    assert counters.accepted_tokens > counters.draft_tokens / 3


def _states_of_one_later(patch: pytest.MonkeyPatch, run: EngineRun) -> None:
    right = drafter._states
    patch.setattr(drafter, "_states", lambda prepared, hidden: right(prepared, hidden).roll(1, 0))


def _tokens_shifted_once_more(patch: pytest.MonkeyPatch, run: EngineRun) -> None:
    made = run.executor.runner.drafter
    right = made.builder.build
    patch.setattr(made, "builder", _Shifted(made.builder, right))


class _Shifted:
    def __init__(self, builder: Any, right: Callable[..., Any]) -> None:
        self.builder, self.right = builder, right

    def __getattr__(self, name: str) -> Any:
        return getattr(self.builder, name)

    def build(self, step: Any, *, ahead: int) -> Any:
        return self.right(step, ahead=ahead + 1)


def _not_written_over(patch: pytest.MonkeyPatch, run: EngineRun) -> None:
    """What was made of drafts stays in the cache."""
    made = run.executor.runner.drafter
    right = made._attend

    def attend(launch: Any, hidden: Any) -> Any:
        if launch.key.kind == "verify":
            for slots in launch.slot_mapping:
                slots.zero_()
        return right(launch, hidden)

    patch.setattr(made, "_attend", attend)


def _norms_swapped(patch: pytest.MonkeyPatch, run: EngineRun) -> None:
    predictor = run.executor.runner.drafter.predictor
    norms = predictor.embedding_norm.parameter, predictor.hidden_norm.parameter
    patch.setattr(predictor.embedding_norm, "parameter", norms[1])
    patch.setattr(predictor.hidden_norm, "parameter", norms[0])


def _goes_on_behind_the_norm(patch: pytest.MonkeyPatch, run: EngineRun) -> None:
    predictor = run.executor.runner.drafter.predictor
    patch.setattr(predictor, "normed", not predictor.normed)


FAULTS = [_states_of_one_later, _tokens_shifted_once_more, _not_written_over, _norms_swapped, _goes_on_behind_the_norm]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(
    fault: Callable[..., None], models: Callable[..., Predictions], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And answers are right all the same."""
    model = models("glm4_moe")
    with EngineRun(model.folder, "cpu") as plain:
        expected = plain.ask(QUESTIONS[:3], 12, ignore_eos=True)
    with EngineRun(model.folder, "cpu", speculative_config=DRAFTS) as run:
        made = drafting(run)
        fault(monkeypatch, run)
        assert run.ask(QUESTIONS[:3], 12, ignore_eos=True) == expected
    assert wrong(made, model) > len(made) / 4


# ---- answers


@pytest.mark.parametrize("family", ["glm4_moe", "qwen3_5_text"])
def test_answers_are_the_same(start: Start, family: str, models: Callable[..., Predictions]) -> None:
    """Of requests with all kinds of fields, of a sibling, and of one that has its prompt scored."""
    model = models(family, repeats=True)

    def ask(run: EngineRun) -> list[list[int]]:
        asked = list(zip(QUESTIONS, FIELDS, strict=True))
        keys = [run.add(question, 16, seed=i, **fields) for i, (question, fields) in enumerate(asked)]
        keys.append(run.add(QUESTIONS[0], 24, seed=50, leader=keys[0]))
        keys.append(run.add(QUESTIONS[1], 8, prompt_logprobs=1))
        run.finish()
        scores = np.concatenate([part.logprobs for part in run.scored[keys[-1]]])
        assert len(scores) == len(QUESTIONS[1]) - 1
        scored.append(scores)
        return [run.answers[key] for key in keys]

    scored: list[Any] = []

    options: dict[str, Any] = {"max_num_seqs": 5, "max_model_len": 96}
    expected = ask(start(model.folder, **options))
    run = start(model.folder, speculative_config=DRAFTS, **options)
    drafting(run)
    assert ask(run) == expected
    verified(run)
    np.testing.assert_allclose(*scored, rtol=1e-3, atol=1e-3)


def test_two_ranks_make_the_same_drafts(models: Callable[..., Predictions], monkeypatch: pytest.MonkeyPatch) -> None:
    model = models("deepseek_v3", repeats=True)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "core"), str(ROOT / "platforms/cpu")]))
    with EngineRun(model.folder, "cpu") as plain:
        expected = plain.ask(QUESTIONS[:4], 12, ignore_eos=True)
    options: dict[str, Any] = {"executor": None, "tensor_parallel_size": 2, "speculative_config": DRAFTS}
    with EngineRun(model.folder, "cpu", depth=2, **options) as run:
        made = drafting(run)
        assert run.ask(QUESTIONS[:4], 12, ignore_eos=True) == expected
        verified(run)
    assert wrong(made, model) == 0


def test_quantized_layers(models: Callable[..., Predictions], tmp_path: Path) -> None:
    """At load, by the checkpoint, and by a checkpoint that has the product of state and embedding as it was, and does
    not say so."""
    model, form = models("glm4_moe", repeats=True), CompressedForm("int", 8, activations=False)
    config = json.loads((model.folder / "config.json").read_text())
    (tmp_path / "whole").mkdir()
    write_folder(str(model.folder), config, str(tmp_path / "whole"), form, lambda done, of: None)
    shutil.copytree(tmp_path / "whole", tmp_path / "plain")
    stored = load_file(tmp_path / "whole/model.safetensors")
    kept = {name: weight for name, weight in stored.items() if not name.startswith("model.layers.2.eh_proj.")}
    assert len(stored) > len(kept) + 1
    save_file({**kept, "model.layers.2.eh_proj.weight": model.projection}, tmp_path / "plain/model.safetensors")
    for folder, given in ((model.folder, {"quantization": "int8"}), (tmp_path / "whole", {}), (tmp_path / "plain", {})):
        with EngineRun(folder, "cpu", **given) as plain:
            expected = plain.ask(QUESTIONS[:4], 16, ignore_eos=True)
        with EngineRun(folder, "cpu", speculative_config=DRAFTS, **given) as run:
            made = drafting(run)
            assert run.ask(QUESTIONS[:4], 16, ignore_eos=True) == expected
            verified(run)
        assert wrong(made, model) < len(made) / 3, "rounded weights predict nearly the same"


def test_lengths_are_chosen_as_for_other_drafts(models: Callable[..., Predictions]) -> None:
    """With the real lengths: drafts are made in the step before the one that verifies them, and those of the last step
    of a row are none."""
    model = models("glm4_moe", repeats=True)
    with EngineRun(model.folder, "cpu", depth=2, speculative_config=DRAFTS) as run:
        run.ask(QUESTIONS[:1], 60, ignore_eos=True)
        before = dict.fromkeys(range(len(run.steps)), 0) | {step.step + 1: step.num_drafts for step in run.steps}
        drafted = [step for step in run.steps if len(step.drafts)]
        assert drafted
        assert all(len(step.drafts) <= before[step.step] for step in drafted)


# ---- what is said at start-up


def test_plan_counts_the_layer(models: Callable[..., Predictions]) -> None:
    def plan(**given: Any) -> Any:
        return plan_here(
            replace(
                build_config(
                    model=str(models("deepseek_v3").folder), platform="tessera_cpu.platform:CpuPlatform",
                    skip_tokenizer_init=True, kv_cache_memory_bytes=1 << 21, **given,
                ),
                embedded=True,
            )
        )  # fmt: skip

    without, found = plan(), plan(speculative_config=DRAFTS)
    assert sum(len(group.layers) for group in without.groups) == 2
    assert sum(len(group.layers) for group in found.groups) == 3
    assert found.weight_bytes > without.weight_bytes
    said = "drafts are made by the model's own layer that predicts further tokens"
    assert said in found.notes
    assert said not in without.notes


def test_what_has_no_such_layer_is_refused(llama: Path, models: Callable[..., Predictions], tmp_path: Path) -> None:
    whole = models("deepseek_v3").folder
    config = json.loads((whole / "config.json").read_text())
    weights = load_file(whole / "model.safetensors")
    none, stripped = tmp_path / "none", tmp_path / "stripped"
    for folder, said in ((none, 0), (stripped, 1)):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": said}))
        kept = {name: weight for name, weight in weights.items() if "layers.2." not in name}
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    refused: list[tuple[type[Exception], str, Path, str]] = [
        (RefusedError, "is served without a layer that predicts further tokens; use the method", llama, "cpu"),
        (ModelError, "has no layer that predicts further tokens (num_nextn_predict_layers)", none, "cpu"),
        (ModelError, "the checkpoint lacks its weights (model.layers.2.hnorm.weight)", stripped, "cpu"),
        (PlatformError, 'does not take --speculative-config of the method "mtp"', whole, "numpy"),
    ]
    for kind, said, model, platform in refused:
        with pytest.raises(kind, match=re.escape(said)) as error:
            EngineRun(model, platform, speculative_config=DRAFTS)
        assert "\n" not in str(error.value)
    with EngineRun(stripped, "cpu", speculative_config={"method": "ngram", "num_speculative_tokens": 2}) as run:
        run.ask([[3, 4]], 2)


def test_prompts_with_images_are_refused(tmp_path: Path) -> None:
    """The text model alone has drafts, in a folder of published form."""
    whole = save_model(WITH_IMAGES["qwen3.5-vl"], tmp_path)
    file, size = tmp_path / "model.safetensors", whole.config.text_config.hidden_size
    config, stored = json.loads((tmp_path / "config.json").read_text()), load_file(file)
    config["text_config"]["mtp_num_hidden_layers"] = 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    last = max(name.partition(".self_attn.q_proj")[0] for name in stored if ".self_attn.q_proj" in name)
    added = {
        f"mtp.layers.0{name.removeprefix(last)}": weight.clone()
        for name, weight in stored.items()
        if name.startswith(f"{last}.")
    }
    added |= {
        f"mtp.{name}.weight": torch.zeros(size) for name in ("pre_fc_norm_hidden", "pre_fc_norm_embedding", "norm")
    }
    save_file({**stored, **added, "mtp.fc.weight": torch.randn(size, 2 * size)}, file, metadata={"format": "pt"})
    with pytest.raises(RefusedError, match='the method "mtp" makes drafts for text alone; .* for image and video'):
        EngineRun(tmp_path, "cpu", speculative_config=DRAFTS)
    text = {"image": 0, "video": 0}
    with EngineRun(tmp_path, "cpu", speculative_config=DRAFTS, limit_mm_per_prompt=text) as run:
        made = drafting(run)
        run.ask(QUESTIONS[:2], 8, ignore_eos=True)
    assert made


# ---- the host's half


class _Rows:
    num_rows = 4

    def __init__(self) -> None:
        self.num_tokens, self.key = int32([3, 5, 2, 9]), np.array([10, 11, 12, 13])


def test_drafts_are_of_the_newest_token_alone() -> None:
    rows: Any = _Rows()
    predicted = PredictedTokens(rows, MOST)
    none = int32()
    output = StepOutput(0, int32([1, 3]), int32([2, 1]), int32([7, 8, 9]), drafts=int32([[4, 5], [6, -1]]))
    predicted.keep(output)

    def proposed(row: int, tokens: int, most: int = MOST) -> Sequence[int]:
        return predicted.propose(row, np.zeros(tokens, np.int32), most).tolist()

    assert proposed(1, 7) == [4, 5]
    assert proposed(1, 7, 1) == [4]
    assert proposed(3, 10) == [6]
    assert proposed(1, 8) == proposed(1, 6) == proposed(0, 3) == none.tolist()
    rows.key[1] = 99
    assert proposed(1, 7) == []
