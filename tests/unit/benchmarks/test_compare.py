from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.compare import main


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 100}), encoding="utf-8")
    return tmp_path


def test_help_fits_a_screen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["--help"])
    assert len(capsys.readouterr().out.splitlines()) <= 40


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--part", "idle", "invalid choice: 'idle'"),
        ("--batch", "1,x", "x is not a whole number from 1 on"),
        ("--batch", "0", "0 is not a whole number from 1 on"),
        ("--output", "1", "part decode needs answers of two tokens at least"),
        ("--precisions", "plain,int2", "int2 is not one of plain, int8, int4"),
        ("--peers", "nowhere", "there is no folder nowhere"),
        ("--model", ".", ". holds no config.json"),
    ],
)
def test_a_wrong_option_is_one_line(
    option: str, value: str, said: str, model: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as raised:
        main(["--model", str(model), option, value])
    assert raised.value.code == 2
    assert f"argument {option}: {said}" in capsys.readouterr().err.splitlines()[-1]


def test_a_record_of_something_else_is_one_line(model: Path, capsys: pytest.CaptureFixture[str]):
    kept = model / "rounds.json"
    kept.write_text("{}", encoding="utf-8")
    assert main(["--model", str(model), "--json", str(kept)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "does not hold the rounds of a comparison" in said[0]
    assert kept.read_text(encoding="utf-8") == "{}"


@pytest.mark.parametrize("part", ["decode", "prefill", "long", "http", "start"])
def test_each_part_reports_from_its_own_record(part: str, model: Path, capsys: pytest.CaptureFixture[str]):
    kept = model / "rounds.json"
    assert main(["--model", str(model), "--part", part, "--engines", "nobody", "--json", str(kept)]) == 0
    assert capsys.readouterr().out.strip().startswith(f"{part}: {model.name}, bfloat16")
