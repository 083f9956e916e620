"""What platforms keep on disk: found again as it was put, or not at all."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from tessera.errors import PlatformError
from tessera.platform import Artifacts

DATA = bytes(range(256)) * 5


def entries(root: Path) -> list[Path]:
    return sorted(root.rglob("*.artifact"))


def test_what_was_put_is_found_again_under_its_key(tmp_path: Path) -> None:
    kept = Artifacts(tmp_path, "chip-1")
    assert kept.get("program") is None
    assert list(tmp_path.iterdir()) == [], "nothing is made to look"
    kept.put("program", b"old")
    kept.put("program", DATA)
    kept.put("empty", b"")
    again = Artifacts(tmp_path, "chip-1")
    assert (again.get("program"), again.get("empty"), again.get("other")) == (DATA, b"", None)
    assert Artifacts(tmp_path, "chip-2").get("program") is None, "of another version"
    assert len(entries(tmp_path)) == 2


@pytest.mark.parametrize("damage", ["shorter", "changed", "head", "nothing", "anothers"])
def test_a_damaged_entry_is_made_again_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    kept = Artifacts(tmp_path, "chip")
    kept.put("program", DATA)
    (file,) = entries(tmp_path)
    whole = file.read_bytes()
    if damage == "anothers":
        kept.put("another", DATA)
        (other,) = (path for path in entries(tmp_path) if path != file)
        other.replace(file)
    else:
        changed = {"shorter": whole[:-1], "changed": whole[:-1] + b"x", "head": b"x" + whole[1:], "nothing": b""}
        file.write_bytes(changed[damage])
    assert kept.get("program") is None
    assert kept.get("program") is None
    assert [record.message for record in caplog.records] == [f"{file} is damaged, so what it held is made again"]
    kept.put("program", DATA)
    assert kept.get("program") == DATA


def test_entries_that_were_not_used_for_longest_go_first(tmp_path: Path) -> None:
    old, kept = Artifacts(tmp_path, "old", limit=4000), Artifacts(tmp_path, "chip", limit=4000)
    old.put("a", DATA)
    for number, key in enumerate("bc"):
        kept.put(key, DATA)
        for file in entries(tmp_path):
            os.utime(file, (number, number))
    assert kept.get("b") == DATA, "and so it is used now"
    (tmp_path / "chip" / "library").mkdir()
    (tmp_path / "chip" / "library" / "its.own").write_bytes(DATA * 4)
    kept.put("d", DATA)
    assert [old.get("a"), *map(kept.get, "bcd")].count(None) == 1
    assert kept.get("b") == kept.get("d") == DATA
    assert (tmp_path / "chip" / "library" / "its.own").exists()


def test_what_cannot_be_written_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    kept = Artifacts(tmp_path / "file", "chip")
    kept.put("program", DATA)
    assert "could not be written (Not a directory), so the next start makes it again" in caplog.text
    assert kept.get("program") is None
    assert kept.folder("library").is_dir()
    assert "could not be made (Not a directory)" in caplog.text


def test_a_library_has_a_folder_of_its_own(tmp_path: Path) -> None:
    kept = Artifacts(tmp_path, "chip")
    folder = kept.folder("compiler-2.1")
    (folder / "x").write_text("1")
    assert Artifacts(tmp_path, "chip").folder("compiler-2.1") == folder == tmp_path / "chip" / "compiler-2.1"
    for name in ("", "..", ".hidden", "a/b", "x.artifact", "a b"):
        with pytest.raises(PlatformError, match="cannot be the name of a folder"):
            kept.folder(name)


def test_without_a_place_nothing_is_kept() -> None:
    nothing = Artifacts(None)
    nothing.put("program", DATA)
    assert nothing.get("program") is None
    one, other = nothing.folder("library"), nothing.folder("library")
    assert one.is_dir()
    assert one != other


def _put_often(root: Path, number: int) -> None:
    kept = Artifacts(root, "chip", limit=20_000)
    for turn in range(60):
        data = bytes([number]) * (1000 + turn)
        kept.put("shared", data)
        kept.put(f"own {number} {turn}", data)
        found = kept.get("shared")
        assert found is None or len(set(found)) == 1


def test_several_processes_use_it_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_put_often, args=(tmp_path, number)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert sum(file.stat().st_size for file in entries(tmp_path)) <= 20_000
    assert all(len(file.name) == len(f"{'0' * 64}.artifact") for file in entries(tmp_path)), "no parts are left"
