"""The program that measures sizes of tiles, rehearsed by Triton's interpreter."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import triton
from benchmarks.gpu import tune
from benchmarks.gpu.models import LLAMA_8B, QWEN_06B, tiny
from benchmarks.gpu.setting import Setting

from tessera.platform import LinearSpec
from tessera.quantization.schemes import candidates
from tessera_triton.tuned import place_of

pytestmark = pytest.mark.compiler
VERSION = ".".join(triton.__version__.split(".")[:2])


def tuned(table: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    flags = ["--platform", "tests.platforms.interpreted:Interpreted", "--tiny", "--tokens", "8", *more]
    monkeypatch.setattr(sys, "argv", ["tune", *flags, "--json", str(table)])
    tune.main()


@pytest.fixture
def ever_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call that is timed takes half as long as the one before."""
    times = (2.0**-number for number in count())

    def seconds(setting: Setting, call: Callable[[], object]) -> float:
        call()
        return next(times)

    monkeypatch.setattr(Setting, "seconds", seconds)


@pytest.mark.usefixtures("ever_faster")
def test_the_fastest_is_written_beside_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "tuned.json"
    table.write_text(json.dumps({"sm_90": {"3.6": {}}}))
    tuned(table, monkeypatch, "--quantization", "int4")
    found = json.loads(table.read_text())
    last = list(tune.tilings(8))[1]  # a rehearsal tries two
    places = {place_of(spec) for spec in specs("int4")}
    assert found == {
        "sm_90": {"3.6": {}},
        "rehearsed": {VERSION: {place: {"8": list(last)} for place in places}},
    }


@pytest.mark.usefixtures("ever_faster")
def test_what_is_wrong_is_not_written_however_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "checked", lambda *of: {})
    tuned(tmp_path / "tuned.json", monkeypatch, "--quantization", "int4")
    assert json.loads((tmp_path / "tuned.json").read_text()) == {"rehearsed": {VERSION: {}}}


def specs(quantization: str) -> Iterator[LinearSpec]:
    for model in (LLAMA_8B, QWEN_06B):
        for n, k in tune.shapes(tiny(model)):
            yield LinearSpec(n, k, "bfloat16", candidates(quantization, k)[0])


def test_no_time_ends_it_without_a_table_that_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned(tmp_path / "tuned.json", monkeypatch, "--seconds", "0")
    assert not (tmp_path / "tuned.json").exists()


def test_what_is_tried_fits_the_tokens() -> None:
    assert {one.m for one in tune.tilings(1)} == {16}
    assert {one.m for one in tune.tilings(32)} == {16, 32}
    assert {one.m for one in tune.tilings(2048)} == {64, 128}
    assert {one.parts for one in tune.tilings(64)} == {1, 2, 4, 8}
    assert {one.parts for one in tune.tilings(256)} == {1}
    assert list(tune.shapes(LLAMA_8B)) == [(6144, 4096), (4096, 4096), (28_672, 4096), (4096, 14_336)]
