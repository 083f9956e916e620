"""What is said of prompts with images where they cannot be processed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera.config import modalities


def test_a_processor_for_torchvision_alone_needs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text("{}")
    monkeypatch.setattr(modalities, "find_spec", lambda name: None if name == "torchvision" else name)
    reasons = [
        modalities.why_not_processed(tmp_path, {"architectures": [name]}, "image")
        for name in ("MuseGlimmerForConditionalGeneration", "LlavaForConditionalGeneration")
    ]
    assert reasons == [
        "torchvision is not installed, without which transformers has no processor of images for this model",
        None,
    ]
