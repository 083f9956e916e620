"""Where there is no folder for the sockets of an engine, one line says so."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tessera.engine.spawned_engine import _private_directory
from tessera.errors import ConfigError


def test_without_a_folder_for_temporary_files_one_line_names_tmpdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match=r"^No temporary file can be written \(.+\)\. .* TMPDIR\.$"):
        _private_directory()


def test_the_folder_is_this_user_s_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = _private_directory()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.rmdir()
