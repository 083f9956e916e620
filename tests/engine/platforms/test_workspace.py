"""The memory that steps take, measured on fakechip at the first start and remembered."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest

from tessera.errors import MemoryBudgetError
from tessera.runner import runner as runner_module
from tests.engine.platforms.test_tokens_on_every_platform import prompts
from tests.platforms.engine_run import EngineRun

pytest.importorskip("torch_fakechip")
LIMITS: dict[str, Any] = {"max_num_seqs": 6, "max_num_batched_tokens": 96, "max_model_len": 128}
PROMPTS = prompts(6, seed=5)
ROOT = Path(__file__).parents[3]
PATHS = ("", "core", "platforms/cpu", "tests/fakechip", "tests/torch_fakechip")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    gc.collect()  # what an engine of another test left on the device
    monkeypatch.setenv("TESSERA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(ROOT / path) for path in PATHS))
    return tmp_path / "cache"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of steps that were run to measure."""
    found: list[int] = []
    original = runner_module.largest_steps

    def largest_steps(*given: Any) -> Any:
        steps = original(*given)
        found.append(len(steps))
        return steps

    monkeypatch.setattr(runner_module, "largest_steps", largest_steps)
    return found


def start(model: Path, platform: str = "fakechip", **flags: Any) -> EngineRun:
    return EngineRun(model, platform, **{"kv_cache_memory_bytes": None, "check_kv_cache": False, **LIMITS, **flags})


def tokens_and_answers(model: Path, platform: str = "fakechip", **flags: Any) -> tuple[int, list[list[int]]]:
    """The size of the cache, and answers; the engine is gone afterwards."""
    with start(model, platform, **flags) as run:
        found = run.engine.info.num_cache_tokens, run.ask(PROMPTS, 8)
    del run
    gc.collect()
    return found


@pytest.mark.parametrize("platform", ["fakechip", "fakechip-static"])
def test_steps_stay_within_what_was_measured(llama: Path, measured: list[int], platform: str) -> None:
    with start(llama, platform) as run:
        runner = run.executor.runner
        workspace = runner._measure_workspace()
        taken = runner.device.peak(lambda: run.ask([*PROMPTS, *PROMPTS], 8, temperature=1.0, top_p=0.9))
    assert len(measured) == 1
    assert 0 < taken <= workspace


def test_a_second_start_remembers(llama: Path, measured: list[int], own_cache: Path) -> None:
    first = tokens_and_answers(llama)
    assert tokens_and_answers(llama) == first
    assert len(measured) == 1
    (file,) = own_cache.rglob("*.artifact")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    tokens_and_answers(llama, max_num_seqs=5)
    assert tokens_and_answers(llama) == first
    assert len(measured) == 3
    assert file.read_bytes() == whole


def test_a_cache_of_a_given_size_needs_no_measure(llama: Path, measured: list[int], own_cache: Path) -> None:
    with start(llama, kv_cache_memory_bytes=1 << 20):
        pass
    assert measured == []
    assert not own_cache.exists()


def test_a_folder_that_cannot_be_written_is_said(
    llama: Path, own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own_cache.write_text("a file")
    with start(llama):
        pass
    assert "the next start makes it again" in caplog.text


def test_a_step_that_does_not_fit_is_refused(llama: Path) -> None:
    with pytest.raises(MemoryBudgetError, match="lower --max-num-batched-tokens or --max-num-seqs"):
        start(llama, max_num_batched_tokens=60_000, max_num_seqs=1000)


@pytest.mark.parametrize(
    ("parallel", "starts"),
    [pytest.param({"tensor_parallel_size": 2}, 2, marks=pytest.mark.nightly), ({"pipeline_parallel_size": 2}, 1)],
)
def test_workers_measure_together(llama: Path, parallel: dict[str, int], starts: int, own_cache: Path) -> None:
    """Also if one of them has forgotten."""
    _, alone = tokens_and_answers(llama, kv_cache_memory_bytes=1 << 20)
    for _ in range(starts):
        assert tokens_and_answers(llama, executor=None, **parallel)[1] == alone
        files = sorted(own_cache.rglob("*.artifact"))
        assert len(files) == 2
        files[0].unlink()
