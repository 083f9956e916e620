"""A real engine, timed step by step, takes the same steps as its simulation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.gpu.models import tiny
from benchmarks.simulation import measure
from benchmarks.simulation.devices import PUBLISHED, load_device
from benchmarks.simulation.models import SMOLLM2_135M
from benchmarks.simulation.traces import Piece, TracedRequest
from benchmarks.simulation.validate import lines, validate

SIZES = {**tiny(SMOLLM2_135M), "max_position_embeddings": 2048, "num_hidden_layers": 2}
REFERENCE = "tessera.testing.reference:ReferencePlatform"


@pytest.fixture(autouse=True)
def same_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_one_after_the_other_takes_the_same_steps_and_finds_the_same_prefixes() -> None:
    requests = [
        TracedRequest(100.0 * number, [Piece(1, 600), Piece(2 + number, 50)], Piece(50 + number, 3 + number))
        for number in range(3)
    ]
    found = validate(SIZES, replace(PUBLISHED["h100"], depth=1), requests, 0, REFERENCE, "processor")
    assert len(found.step_seconds) == found.num_steps == 4 + 4 + 5  # two for the first prompt, one for those after it
    assert [one.num_cached for one in found.real] == [one.num_cached for one in found.simulated]
    assert found.real[1].num_cached > 500
    assert {one.outcome for one in (*found.real, *found.simulated)} == {"length"}
    measured = sum(seconds for seconds, _ in found.step_seconds)
    scaled = sum(one.last_token_at - one.arrived_at for one in found.scaled)
    assert scaled == pytest.approx(measured, rel=1e-6)
    assert len(list(lines(found))) == 10


def test_a_device_is_measured_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "ROWS", (1, 2))
    monkeypatch.setattr(measure, "PROMPTS", (20,))
    device, residuals = measure.measure_device(SIZES, REFERENCE, "wall")
    assert [one.kind for one in residuals] == ["decode", "prompts"]
    measure.write_device(device, residuals, tmp_path / "here.json")
    assert load_device(str(tmp_path / "here.json")) == device
    assert json.loads((tmp_path / "here.json").read_text())["residuals"][0]["num_steps"] > 10
