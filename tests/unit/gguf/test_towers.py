"""The file of a tower says what the model's processor is, and one that does not fit is refused in one line."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tessera.config import build_config
from tessera.errors import ConfigError, ModelError, TesseraError
from tessera.gguf.choice import gguf_models, gguf_towers
from tests.processor_folders import FOLDERS
from tests.unit.gguf.towers import TOWERS, WIDTH, TowerFile, both, write_text, write_tower


def build(text: Path, **flags: object) -> tuple[str, str, tuple[str, ...]]:
    """The architecture, the tower's file and what prompts may hold."""
    config = build_config(model=str(text), platform="tessera.testing:ReferencePlatform", **flags)
    model = config.model
    return model.checkpoint["architectures"][0], Path(model.mmproj).name, model.modalities


def test_the_tower_beside_a_model_is_found_and_may_be_left_out(tmp_path: Path, caplog) -> None:
    text, tower = both(tmp_path, "gemma3")
    found = ("Gemma3ForConditionalGeneration", tower.name, ("image",))
    assert build(text) == build(text, mmproj=str(tower)) == build(tmp_path) == found
    alone = ("Gemma3ForCausalLM", "", ())
    assert build(text, mmproj="none") == alone
    assert not caplog.records
    write_tower(tower, TowerFile("resampler", "gemma3"))
    with caplog.at_level(logging.WARNING):
        assert build(text) == alone
    assert "images are refused: '" in caplog.text
    assert "has a tower of the type 'resampler', which is not supported; supported are gemma3, " in caplog.text


FAULTS: dict[str, tuple[TowerFile, dict[str, tuple[int, ...]], str]] = {
    "of a type that is not served": (TowerFile("ldp", "gemma3"), {}, "has a tower of the type 'ldp', which is not"),
    "of another width": (
        TowerFile("gemma3", "gemma3", {}, {"mm.input_projection.weight": (36, 2 * WIDTH)}),
        {},
        "is the tower of another model: its type 'gemma3' goes with gemma3 of width 144, and ",
    ),
    "of another architecture": (TOWERS["llava"], {}, "its type 'mlp' goes with llama of width 72, and "),
    "without the last tensor": (TowerFile("gemma3", "gemma3", {}, {}), {}, "has no 'mm.input_projection.weight'"),
    "with another tensor": (
        TOWERS["gemma3"],
        {"v.blk.0.extra.weight": (3,)},
        "has a tensor 'v.blk.0.extra.weight', which towers of the type 'gemma3' have not",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_named_tower_that_does_not_fit_is_refused(fault: str, tmp_path: Path) -> None:
    text, tower = both(tmp_path, "gemma3")
    kind, tensors, message = FAULTS[fault]
    write_tower(tower, kind, tensors)
    with pytest.raises(ModelError) as raised:
        build(text, mmproj=str(tower))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("named", "error", "message"),
    [
        ("model.gguf", ModelError, "is not the file of a tower: its architecture is 'gemma3' and not 'clip'"),
        ("missing.gguf", ModelError, "missing.gguf' cannot be read: No such file"),
    ],
)
def test_a_file_that_is_no_tower_is_refused(
    named: str, error: type[TesseraError], message: str, tmp_path: Path
) -> None:
    text, _ = both(tmp_path, "gemma3")
    with pytest.raises(error, match=message):
        build(text, mmproj=str(tmp_path / named))


def test_a_folder_has_its_own_tower(tmp_path: Path) -> None:
    folder = FOLDERS["gemma3"].write(tmp_path / "folder")
    (folder / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="mmproj belongs to a model in a GGUF file, and '.*' is none; remove it"):
        build(folder, mmproj="mmproj.gguf", load_format="dummy")


def test_a_vocabulary_without_the_token_of_an_image_is_refused(tmp_path: Path) -> None:
    text = write_text(tmp_path / "model.gguf", "gemma3", FOLDERS["llava"].write(tmp_path / "processor"))
    tower = write_tower(tmp_path / "mmproj.gguf", TOWERS["gemma3"])
    with pytest.raises(ModelError, match="has no token '<image_soft_token>', which stands for a part of an image"):
        build(text, mmproj=str(tower))


def test_towers_are_found_by_name() -> None:
    names = ["a-Q4_K_M.gguf", "mmproj-F32.gguf", "a-mmproj-q8_0.gguf", "mmproj.BF16.gguf", "x/mmproj-f16.gguf", "m.txt"]
    assert gguf_towers(names, "a-Q4_K_M.gguf") == ["mmproj.BF16.gguf", "mmproj-F32.gguf", "a-mmproj-q8_0.gguf"]
    assert gguf_towers(names, "x/model.gguf") == ["x/mmproj-f16.gguf"]
    assert list(gguf_models(names)) == ["a-Q4_K_M"]
