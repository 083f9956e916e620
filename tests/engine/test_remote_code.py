"""Code in a model's folder stays text, whatever trust_remote_code says."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from tessera import LLM, SamplingParams
from tests.models.tiny import write_tiny_model


def test_a_folders_own_code_is_never_imported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, marker = write_tiny_model(tmp_path / "model"), tmp_path / "imported"
    code = f"open({str(marker)!r}, 'w').close()\nclass Own: pass\n"
    for name in ("configuration_own.py", "modeling_own.py", "tokenization_own.py", "__init__.py"):
        (folder / name).write_text(code)
    for file in ("config.json", "tokenizer_config.json"):
        own = {
            "AutoConfig": "configuration_own.Own",
            "AutoModelForCausalLM": "modeling_own.Own",
            "AutoTokenizer": ["tokenization_own.Own", None],
        }
        settings = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps({**settings, "auto_map": own}))
    with (
        caplog.at_level(logging.WARNING),
        LLM(folder, trust_remote_code=True, platform="tessera_cpu.platform:CpuPlatform", threads=1) as llm,
    ):
        answers = llm.generate("ab", SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
    assert len(answers[0].outputs[0].token_ids) == 4
    assert not marker.exists()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["trust_remote_code has no effect"]
