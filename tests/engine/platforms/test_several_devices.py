"""A worker with two devices: both are opened, and a platform's own runner computes on both."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tessera.config import build_config
from tessera.engine.plan import plan_here
from tessera.errors import PlatformError
from tests.engine.platforms.conftest import Alone
from tests.engine.platforms.test_tokens_on_every_platform import SAMPLED, prompts
from tests.platforms.engine_run import EngineRun
from tests.platforms.several_devices import PATH

ROOT = Path(__file__).parents[3]
SAID = "platform 'two' gives 2 devices to worker 0, but core's model runner drives one; place a worker for each device"


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_runner_computes_on_both(llama: Path, alone: Alone, ranks: int) -> None:
    """ranks: what the user asks for; the platform places one worker either way."""
    questions = prompts(5, seed=12)
    with EngineRun(llama, f"{PATH}:TwoDevices", seed=7, tensor_parallel_size=ranks) as run:
        answers = run.ask(questions, 9, ignore_eos=True, **SAMPLED)
        services = run.executor.runner.services
        assert run.engine.info.num_devices == 2
        assert run.executor.runner.granted == (1 << 29) + 1, "what the one with the least has"
    assert answers == [alone(one, 9, seed=seed, ignore_eos=True, **SAMPLED) for seed, one in enumerate(questions)]
    assert [device.index for device in services.devices] == [3, 1]
    assert services.device is services.devices[0]
    assert services.devices[0].products == services.devices[1].products > 0
    assert [device.seed_given for device in services.devices] == [7, 7]
    assert {group.size for group in services.groups.values()} == {1}


def test_one_process_may_drive_what_two_would(llama: Path, alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(ROOT / path) for path in ("", "core", "platforms/cpu")))
    with EngineRun(llama, f"{PATH}:TwoDevices", executor=None, tensor_parallel_size=2) as run:
        assert run.ask([[5, 6, 7]], 9, ignore_eos=True) == [alone([5, 6, 7], 9, ignore_eos=True)]


def test_cores_runner_drives_one(llama: Path) -> None:
    with pytest.raises(PlatformError, match=SAID):
        EngineRun(llama, f"{PATH}:TwoAtOpDepth")
    config = build_config(model=str(llama), platform=f"{PATH}:TwoAtOpDepth", skip_tokenizer_init=True, dtype="float32")
    with pytest.raises(PlatformError, match=SAID):
        plan_here(config)
