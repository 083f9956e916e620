"""Launches that a platform cannot capture, though its kind of device has graphs."""

from __future__ import annotations

from pathlib import Path

from tessera.platform import Device
from tessera.testing.reference import ReferencePlatform
from tests.platforms.engine_run import EngineRun


class Uncaptured(ReferencePlatform):
    name = "uncaptured"

    def graph_runner(self, device: Device) -> str:
        return "this torch has no graphs"


def test_the_reason_is_said_at_startup_and_with_eager_launches_it_is_not(llama: Path) -> None:
    for eager, said in ((False, ["launches are not captured: this torch has no graphs"]), (True, [])):
        with EngineRun(llama, f"{__name__}:Uncaptured", enforce_eager=eager) as run:
            assert run.engine.info.notes == said
            assert len(run.ask([[1, 2, 3]], 2)) == 1
