"""Walks say how answers end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tools import json_schema_walks
from tools.json_schema_bench import Entry
from tools.json_schema_walks import judged, report, resumed, walked

TEXT = {"type": "string", "pattern": r"^[a-z]{8}(?:\S+\s+){0,499}\S+$", "maxLength": 5000}


def test_each_answer_ends_as_it_should_or_is_named() -> None:
    good = walked(Entry("One---a", {"type": "array", "items": {"type": "boolean"}, "maxItems": 9}, ()), "bytes", 8, 3)
    assert good.ends == {"valid": 8}
    assert good.wrong == []
    bad = walked(Entry("One---b", {"anyOf": [TEXT]}, ()), "demo", 4, 3)
    assert bad.ends == {"too_complex": 4}
    assert [end for end, _ in bad.wrong] == ["too_complex"] * 4
    endless = walked(Entry("Two---c", {"type": "string", "minLength": 5000}, ()), "bytes", 2, 3)
    assert endless.ends == {"cut": 2}
    refused = walked(Entry("Two---d", {"type": "wrong"}, ()), "bytes", 2, 3)
    assert refused.refused is not None
    rows = [row.split() for row in report([good, bad, endless, refused]).splitlines()]
    assert [row[:7] for row in rows[1:]] == [
        ["One", "2", "2", "8", "0", "0", "4"],
        ["Two", "2", "1", "0", "2", "0", "0"],
        ["altogether", "4", "3", "8", "2", "0", "4"],
    ]


@pytest.mark.parametrize(
    ("schema", "said", "kind"),
    [
        ({"type": "integer"}, b"12", "valid"),
        ({"type": "integer"}, b'"12"', "invalid"),
        ({"type": "integer"}, b"1 2", "no JSON"),
        ({"multipleOf": 0.01}, b"4.10", "valid"),
        ({"multipleOf": 0.01}, b"4.105", "invalid"),
        ({"$ref": "elsewhere"}, b"12", "not checked"),
        ({"oneOf": [{"minimum": 1}, {"maximum": 9}]}, b"5", "as anyOf"),
        ({"items": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, b"[5]", "as anyOf"),
        ({"oneOf": [{"type": "integer"}, {"maximum": 9}], "type": "number"}, b"9.5", "invalid"),
    ],
)
def test_answers_are_judged(schema: object, said: bytes, kind: str) -> None:
    assert judged(schema, said) == kind


def test_a_run_goes_on_where_an_earlier_one_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows = [{"name": f"One---{name}", "schema": {"type": "null"}, "tests": []} for name in "abc"]
    for count in (2, 3):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows[:count]))
        arguments = [str(path), "--processes", "1", "--walks", "2", "--vocabulary", "bytes", "--out", str(out)]
        monkeypatch.setattr(sys, "argv", ["walks", *arguments])
        assert json_schema_walks.main() == 0
        assert [walks.name for walks in resumed(out)] == [row["name"] for row in rows[:count]]
    assert capsys.readouterr().out.splitlines()[-1].split()[:4] == ["altogether", "3", "3", "6"]
