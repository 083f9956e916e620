"""A model on several devices answers over HTTP as it does on one."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.e2e.served import Served
from tests.models.tiny import write_tiny_model

ASKED = {"model": "m", "prompt": "a tiny model", "max_tokens": 12, "temperature": 0, "ignore_eos": True}


@pytest.mark.nightly
def test_stages_of_shards_answer_as_one_device(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    answers = []
    for flags in ([], ["--pipeline-parallel-size", "2", "--tensor-parallel-size", "2"]):
        arguments = [str(model), "--dtype", "float32", "--served-model-name", "m", *flags]
        with Served(arguments, tmp_path / f"log-{len(flags)}") as served:
            answer = httpx.post(f"{served.url}/v1/completions", json=ASKED, timeout=60).json()
            answers.append(answer["choices"][0]["text"])
    assert answers[0] == answers[1] != ""
