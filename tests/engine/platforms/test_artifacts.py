"""A second start compiles nothing; an upgrade, or another device, compiles everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.platforms.conftest import Alone
from tests.platforms import compiling
from tests.platforms.engine_run import EngineRun


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TESSERA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "artifacts"


def compiled(model: Path, platform: str, alone: Alone) -> list[str]:
    """What a start compiles."""
    compiling.COMPILED.clear()
    with EngineRun(model, f"{compiling.PATH}:{platform}") as run:
        assert run.ask([[5, 6, 7]], 6, ignore_eos=True) == [alone([5, 6, 7], 6, ignore_eos=True)]
    return sorted(source.partition(" ")[0] for source in compiling.COMPILED)


@pytest.mark.parametrize(
    ("platform", "parts"), [("Compiling", ["graphs", "norm"]), ("CompilingRunner", ["Llama", "frequencies"])]
)
def test_a_second_start_compiles_nothing(
    llama: Path, alone: Alone, own_cache: Path, monkeypatch: pytest.MonkeyPatch, platform: str, parts: list[str]
) -> None:
    assert compiled(llama, platform, alone) == parts
    assert compiled(llama, platform, alone) == []
    (folder,) = own_cache.iterdir()
    assert folder.name.startswith(("compiling-", "numpy-"))
    monkeypatch.setattr("torch.__version__", "2.99.0")
    assert compiled(llama, platform, alone) == parts
    assert len(list(own_cache.iterdir())) == 2


def test_a_damaged_entry_is_compiled_again(
    llama: Path, alone: Alone, own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert compiled(llama, "Compiling", alone) == ["graphs", "norm"]
    files = list(own_cache.rglob("*.artifact"))
    assert len(files) == 2
    for file in files:
        file.write_bytes(file.read_bytes()[:-1])
    assert compiled(llama, "Compiling", alone) == ["graphs", "norm"]
    assert caplog.text.count("is damaged, so what it held is made again") == 2
    assert compiled(llama, "Compiling", alone) == []
