"""The conformance kit on core's own platforms, and as a command."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tessera.cli.program import run
from tessera.platform import WorkerSpec
from tessera.testing import ReferencePlatform
from tessera.testing.conformance import (
    LEVELS,
    Case,
    Result,
    Target,
    conformance_cases,
    perf_cases,
    reached,
    tried,
)
from tessera.testing.conformance.case import PASSED
from tests.platforms.generated import numpy_platform

FAULTY = "tests.platforms.faulty:EpsOutside"
CASES = [
    pytest.param(case, id=f"{platform}:{case}")
    for platform in ("reference", "strict")
    for case in conformance_cases(platform)
]
CHEAP_GOLD = ("native", "composites", "graphs")


@pytest.mark.parametrize("case", CASES)
def test_it_conforms(case: Case) -> None:
    case.run()


@pytest.mark.parametrize("kind", CHEAP_GOLD)
def test_strict_has_what_gold_wants(kind: str) -> None:
    verdicts = [case.run() for case in conformance_cases("strict", "gold") if case.id.startswith(f"{kind}/")]
    assert "passed" in {verdict.status for verdict in verdicts}


def test_gold_wants_native_linear_and_attention() -> None:
    cases = {case.id: case for case in conformance_cases("reference", "gold")}
    for what in ("linear", "attention"):
        result = cases[f"native/{what}-bfloat16"].result()
        assert result.status == "failed"
        assert result.text.startswith(f"gold requires a native {what}, but in bfloat16 the reference runs: no ")
    assert cases["graphs/replay"].run().text == "the platform captures no launches"


def test_what_is_absent_is_no_failure() -> None:
    numpy, reference = (
        {case.id: case for case in conformance_cases(platform, "gold")} for platform in (numpy_platform(), "reference")
    )
    for name in ("shapes/keys", "shapes/padding", "graphs/replay", "native"):
        assert numpy[name].run().text == "the platform has its own model runner"
    assert reference["shapes/keys"].run().text == "its launches have exact shapes"
    assert reference["collectives"].run().text == "it has one device; --devices N tries more"
    assert reference["reads"].run().text == "the device is not asynchronous"
    assert reference["scheme"].run().text == "the platform does not override scheme()"


def test_an_op_slower_than_the_reference_is_named_at_gold_alone() -> None:
    slow = Target.named("tests.platforms.faulty:Slow")
    judged, told = (
        next(case for case in perf_cases(slow, judged=judged) if case.id == "perf/gate-float32")
        for judged in (True, False)
    )
    result = tried(judged)
    assert result.status == "failed"
    assert re.match(r"gate in float32 at \d+ tokens takes \d+ us, the reference on this device \d+ us", result.text)
    assert [timing.tokens for timing in result.timings] == [1, 16, 128]
    assert min(timing.ratio for timing in result.timings) < 0.3
    assert tried(told).status == "passed"


def test_speeds_are_those_of_a_device_opened_for_them() -> None:
    """A case before it may have opened one on fewer threads."""
    target = Target.named("strict")
    before = target.device
    assert (
        tried(next(case for case in perf_cases(target, judged=False) if case.id == "perf/rms_norm-float32")).status
        == "passed"
    )
    assert target.device is not before


def test_the_command_enters_its_process_as_a_worker_does(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[WorkerSpec] = []
    monkeypatch.setattr(ReferencePlatform, "enter_process", lambda _, spec: entered.append(spec))
    Target.named("reference")
    assert run(["conformance", "--platform", "reference", "--case", "device"]) == 0
    assert [spec.shared for spec in entered][:2] == [True, False]


def test_speeds_are_a_table_a_record_and_a_matrix(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ["conformance", "--platform", "strict", "--perf", "--case", "perf/rms_norm-float32"]
    assert run([*asked, "--json", str(tmp_path / "kit.json"), "--matrix", str(tmp_path / "matrix.md")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines if line.startswith("rms_norm  float32")] == [
        ["rms_norm", "float32", str(tokens)] for tokens in (1, 16, 128)
    ]
    (case,) = json.loads((tmp_path / "kit.json").read_text())["cases"]
    assert [set(timing) for timing in case["timings"]] == [{"op", "dtype", "tokens", "native", "reference"}] * 3
    matrix = (tmp_path / "matrix.md").read_text()
    assert matrix.startswith("# strict\n")
    assert re.search(r"\| `rms_norm` \| native, [\d.]+ / [\d.]+ / [\d.]+ times as fast \| native \| n/a \|", matrix)


def test_what_is_not_claimed_falls_back_and_what_is_absent_does_not_count() -> None:
    reference, strict, numpy = (
        {case.id: case for case in conformance_cases(platform)}
        for platform in ("reference", "strict", numpy_platform())
    )
    assert reference["op/linear"].run().status == "falls back"
    assert reference["attention"].run().status == "falls back"
    assert strict["op/linear/0"].run().status == "passed"
    assert strict["op/rotary"].run().status == "falls back"
    half = [case for name, case in strict.items() if name.startswith("op/linear/")][12:18]
    assert {case.run().text for case in half} == {"float16 is not among its dtypes"}
    assert numpy["op/linear"].run().text == numpy["attention"].run().text == "the platform has its own model runner"


def test_the_command_lists_what_falls_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["conformance", "--platform", "strict", "--case", "op", "--json", str(tmp_path / "kit.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["SUBJECT", "LEVEL", "PASSED", "FAILED"]
    rows = {line.split()[0]: line for line in lines[1:]}
    assert rows["linear"].split()[:6] == ["linear", "bronze", "13", "-", "-", "6"]
    assert rows["rotary"].split()[5] == "-"
    assert rows["rotary"].endswith("no kernel")
    written = json.loads((tmp_path / "kit.json").read_text())
    assert written["platform"] == "strict"
    assert {case["status"] for case in written["cases"]} == {"passed", "falls back", "n/a"}


def test_a_failure_is_one_line_and_its_tensors(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ["conformance", "--platform", FAULTY, "--level", "bronze", "--case", "op/rms_norm"]
    assert run([*asked, "--dump", str(tmp_path)]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("failed")]
    assert lines[0].startswith("failed  op/rms_norm/")
    assert "NormSpec(n=" in lines[0]
    assert "elements differ" in lines[0]
    (first, *_) = sorted(tmp_path.iterdir())
    tensors = load_file(first)
    assert {"arguments.0", "arguments.1", "result", "expected"} <= set(tensors)
    assert tensors["result"].shape == tensors["expected"].shape


def test_a_failure_without_tensors_says_how_to_get_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["conformance", "--platform", FAULTY, "--level", "bronze", "--case", "op/rms_norm"]) == 1
    told, _, advice = capsys.readouterr().out.splitlines()[-1].partition(": tessera ")
    assert told == "To run one case and keep its tensors"
    assert run([*shlex.split(advice)[:-1], str(tmp_path)]) == 1
    (dumped,) = tmp_path.iterdir()
    assert f"--case {dumped.stem.replace('.', '/')} " in advice


def test_one_case_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["conformance", "--platform", "strict", "--case", "op/linear/3"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--devices", "0"], "0 is not in the range 1<=x<=64"),
        (["--case", "op/nothing"], "there is no case 'op/nothing'; ids begin with device, op, attention"),
    ],
)
def test_what_cannot_be_asked_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["conformance", "--platform", "strict", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_a_level_is_reached_where_nothing_of_it_and_below_failed() -> None:
    def results(*failed: str) -> list[Result]:
        cases = (Case(level, level, level, lambda: PASSED) for level in LEVELS)
        return [Result(case, "failed" if case.id in failed else "passed", "", 0.0) for case in cases]

    assert reached(results(), "silver") == "silver"
    assert reached(results(), "bronze") == "bronze"
    assert reached(results("silver"), "silver") == "bronze"
    assert reached(results("bronze"), "silver") is None


def test_the_help_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["conformance", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 100
