"""The program that measures sizes of tiles, rehearsed by Triton's interpreter."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import triton
from benchmarks.gpu import tune
from benchmarks.gpu.models import LLAMA_8B

pytestmark = pytest.mark.compiler


def test_it_writes_what_was_faster_and_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: object) -> None:
    """Of sizes of which one is compiled and runs, here no faster than the others; whatever gains is taken."""
    table = tmp_path / "tuned.json"
    table.write_text(json.dumps({"sm_90": {"3.6": {}}}))
    monkeypatch.setattr(tune, "GAIN", 0.0)
    asked = [
        "--platform",
        "tests.platforms.interpreted:Interpreted",
        "--tiny",
        "--tokens",
        "8",
        "--quantization",
        "int4",
    ]
    monkeypatch.setattr(sys, "argv", ["tune", *asked, "--json", str(table)])
    tune.main()
    found = json.loads(table.read_text())
    version = ".".join(triton.__version__.split(".")[:2])
    assert found["sm_90"] == {"3.6": {}}
    assert set(found) == {"sm_90", "rehearsed"}
    for place, sizes in found["rehearsed"][version].items():
        assert place.startswith("int4 group")
        assert set(sizes) == {"8"}


def test_no_time_ends_it_without_a_table_that_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "tuned.json"
    asked = ["--platform", "tests.platforms.interpreted:Interpreted", "--tiny", "--tokens", "8", "--seconds", "0"]
    monkeypatch.setattr(sys, "argv", ["tune", *asked, "--json", str(table)])
    tune.main()
    assert not table.exists()


def test_what_is_tried_fits_the_tokens() -> None:
    assert {one.m for one in tune.tilings(1)} == {16}
    assert {one.m for one in tune.tilings(32)} == {16, 32}
    assert {one.m for one in tune.tilings(2048)} == {64, 128}
    assert {one.parts for one in tune.tilings(64)} == {1, 2, 4, 8}
    assert {one.parts for one in tune.tilings(256)} == {1}
    assert list(tune.shapes(LLAMA_8B)) == [(6144, 4096), (4096, 4096), (28_672, 4096), (4096, 14_336)]
