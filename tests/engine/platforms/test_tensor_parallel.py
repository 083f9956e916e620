"""Two workers over gloo answer as one process does; and nothing of them is left, however they end."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from tessera import LLM, SamplingParams
from tessera.config import EngineConfig, build_config
from tessera.engine.plan import plan_here
from tessera.errors import EngineStepError, PlatformError
from tessera.executor.workers import WorkersExecutor
from tests.engine.platforms.test_tokens_on_every_platform import SAMPLED, prompts
from tests.platforms import entered
from tests.platforms.engine_run import PLATFORMS, EngineRun
from tests.platforms.fake_feature import EVEN_PLUGIN
from tests.platforms.planned import SharedMemory
from tests.platforms.threads import THREADS, AtTable

QUESTIONS = prompts(6, longest=40, seed=17)
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def workers_find_tessera(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "core"), str(ROOT / "platforms/cpu")]))


def ask(run: EngineRun) -> tuple[Any, ...]:
    greedy = run.ask(QUESTIONS, 10)
    sampled = run.ask(QUESTIONS, 10, logprobs=2, **SAMPLED)
    return greedy, sampled, [[row.ids.tolist() for row in run.logprobs[key]] for key in run.logprobs]


@pytest.mark.parametrize("family", [pytest.param("llama", marks=pytest.mark.nightly), "mixtral"])
def test_two_ranks_give_the_same_tokens(family: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(family)
    with EngineRun(model, "cpu") as alone:
        expected = ask(alone)
    with EngineRun(model, "cpu", depth=2, executor=None, tensor_parallel_size=2) as run:
        executor: Any = run.engine._executor
        folder, processes = executor.folder, [worker.process for worker in executor.workers]
        assert len(processes) == 2
        assert ask(run) == expected
        planned = plan_here(run.engine.config)
        assert (planned.weight_bytes, planned.cache_bytes) == (
            run.engine.info.weight_bytes,
            run.engine.info.cache_bytes,
        )
        assert planned.choices == run.engine.info.choices != []
    assert [process.wait(0) for process in processes] == [0, 0]
    assert not folder.exists()


def test_no_thread_of_a_worker_touches_a_device_that_it_has_not_entered(llama: Path) -> None:
    """Or it would use the first device, and take memory of it. The thread that waits for outputs does."""
    with EngineRun(llama, entered.PATH, depth=2, executor=None, tensor_parallel_size=2) as run:
        assert len(run.ask(QUESTIONS, 10, logprobs=2)) == len(QUESTIONS)


def test_a_user_s_threads_enter_the_device_before_they_use_it(llama: Path) -> None:
    llm = LLM(str(llama), platform=entered.PATH, skip_tokenizer_init=True, kv_cache_memory_bytes=2**20)
    executor: Any = llm._offline._engine._executor
    (device,) = executor.worker.devices
    threads = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
    asked = [{"prompt_token_ids": ids} for ids in QUESTIONS]
    answers = threads[0].submit(llm.generate, asked, SamplingParams(max_tokens=8)).result()
    threads[1].submit(llm.close).result()
    assert len(answers) == len(QUESTIONS)
    assert device.strangers == set()
    assert len(device.entered) == 3


def test_memory_that_the_first_sum_takes_is_not_given_to_the_cache(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, threaded = "tests.platforms.planned:SharedMemory", {"executor": THREADS, "tensor_parallel_size": 2}
    original, sizes = AtTable.all_reduce, []
    for nbytes in (0, 48 << 20):

        def all_reduce(self: AtTable, x: Tensor, nbytes: int = nbytes) -> Tensor:
            SharedMemory.taken = nbytes
            return original(self, x)

        monkeypatch.setattr(AtTable, "all_reduce", all_reduce)
        monkeypatch.setattr(SharedMemory, "taken", 0)
        with EngineRun(llama, path, kv_cache_memory_bytes=None, **threaded) as run:
            sizes.append(run.engine.info.cache_bytes)
    assert sizes[0] - sizes[1] == pytest.approx(48 << 20, abs=1 << 20)


def test_a_step_that_fails_on_any_rank_is_one_line(llama: Path) -> None:
    """Although only the first rank's outputs are sent, and the next order finds the process gone."""
    losing = "tests.platforms.broken:LosingPlatform"
    with EngineRun(llama, losing, depth=2, executor=None, tensor_parallel_size=2) as run:
        executor: Any = run.engine._executor
        run.add(QUESTIONS[0], 60, ignore_eos=True)
        run.step()
        assert executor.workers[1].process.wait(20) == 1
        with pytest.raises(EngineStepError, match=r"^worker 1 failed: RuntimeError: the device is lost$"):
            run.finish()


def test_masks_reach_every_rank(llama: Path) -> None:
    def masked(run: EngineRun) -> list[list[int]]:
        columns = ({"even": 8} if i % 2 else {} for i in range(len(QUESTIONS)))
        keys = [run.add(question, 10, columns=next(columns), **SAMPLED) for question in QUESTIONS]
        run.finish()
        return [run.answers[key] for key in keys]

    feature = {"features": ["even=9"], "plugins": [EVEN_PLUGIN]}
    with EngineRun(llama, "cpu", **feature) as alone:
        expected = masked(alone)
    with EngineRun(llama, "cpu", depth=2, executor=None, tensor_parallel_size=2, **feature) as run:
        assert masked(run) == expected
    assert not any(token % 2 for answer in expected[1::2] for token in answer)


def test_a_killed_worker_is_one_line_and_leaves_nothing(llama: Path) -> None:
    run = EngineRun(llama, "cpu", depth=2, executor=None, tensor_parallel_size=2)
    executor: Any = run.engine._executor
    folder, processes = executor.folder, [worker.process for worker in executor.workers]
    run.add(QUESTIONS[0], 60, ignore_eos=True)
    run.step()
    os.kill(processes[1].pid, signal.SIGKILL)
    with pytest.raises(EngineStepError, match=r"worker [01] (ended with exit code|failed)") as raised:
        run.finish()
    assert "\n" not in raised.value.message
    run.close()
    assert not any(process.is_running for process in processes)
    assert not folder.exists()
    children = subprocess.run(
        ["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=True
    )
    assert "worker_process" not in children.stdout


def two_workers(model: Path) -> EngineConfig:
    return build_config(
        model=str(model), platform=PLATFORMS["cpu"], skip_tokenizer_init=True, tensor_parallel_size=2, threads=1
    )


def test_a_worker_that_cannot_be_started_is_one_line_and_ends_the_others(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        if started:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        started.append(popen(*args, **kwargs))
        return started[0]

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("tessera.executor.workers.subprocess.Popen", start)
    with pytest.raises(PlatformError, match=r"^worker 1 could not be started \(Resource temporarily unavailable\); "):
        WorkersExecutor(two_workers(llama))
    (other,) = started
    assert other.returncode in (0, -signal.SIGKILL), "it is killed if it has not come up by then"
    assert not list(tmp_path.iterdir())


def test_workers_that_end_before_they_are_told_what_to_load_are_one_line(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    executor = WorkersExecutor(two_workers(llama))
    try:
        assert [worker.process.wait(20) for worker in executor.workers] == [1, 1]
        with pytest.raises(EngineStepError, match=r"^worker 0 ended with exit code 1; the log says why\.$"):
            executor.load(lambda _: None)
    finally:
        executor.close()
