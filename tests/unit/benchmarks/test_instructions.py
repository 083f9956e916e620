from __future__ import annotations

from pathlib import Path

from benchmarks.instructions.counting import count

ROOT = Path(__file__).parents[3]


def test_a_count_is_what_the_emulator_s_plugin_wrote(tmp_path: Path) -> None:
    (tmp_path / "count").write_bytes((1 << 40).to_bytes(8, "little") + b"more")
    assert count(tmp_path / "count") == 1 << 40
