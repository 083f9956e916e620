"""Graphs of what lies between attention layers, which run eagerly: on fakechip, in shapes that are padded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tessera.platform import BucketedShapes, Device, PiecewiseGraphs
from tests.engine.platforms.conftest import Alone
from tests.engine.platforms.test_tokens_on_every_platform import prompts
from tests.platforms.engine_run import EngineRun

pytestmark = pytest.mark.compiler

QUESTIONS = prompts(6, seed=5)
SHAPES = BucketedShapes((1, 3, 12), (16, 72), prompt_rows=12, packed=True, blocks=(8,))


class Counting(PiecewiseGraphs):
    replays = pieces = 0

    def replay(self, executable: Any, launch: Any) -> Any:
        self.replays += 1
        self.pieces = len(executable.graph.graphs)
        return super().replay(executable, launch)


def piecewise() -> Any:
    """fakechip whose launches, prompts included, are captured in pieces."""
    from tessera_fakechip.platform import FakechipPlatform  # registers the device, which is compiled

    class Piecewise(FakechipPlatform):
        name = "piecewise"

        def graph_runner(self, device: Device) -> PiecewiseGraphs:
            return Counting(torch, device, lambda pool: torch.get_device_module("fakechip").Graph())

        def shapes(self, model: Any, config: Any) -> BucketedShapes:
            return SHAPES

    return Piecewise()


@pytest.mark.parametrize("depth", [1, 2])
def test_tokens_are_those_of_a_request_alone(llama: Path, alone: Alone, depth: int) -> None:
    with EngineRun(llama, f"{__name__}:piecewise", depth=depth, max_model_len=128) as run:
        runner = run.executor.runner
        warm = runner.graphs.replays
        expected = [alone(question, 12, seed=seed) for seed, question in enumerate(QUESTIONS)]
        assert run.ask(QUESTIONS, 12) == expected
        assert runner.graphs.replays - warm >= len(run.steps), "every launch is replayed"
        assert runner.graphs.pieces == runner.model.facts.num_layers + 1
        assert not any(name.startswith("fakechip") for name, *_ in runner.buffers._flat), "plans keep no addresses"
