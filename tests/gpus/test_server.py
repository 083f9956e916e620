"""A server on a platform for GPUs, from the command line to the stream, over the chip that stands in for one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.served import Served
from tests.gpus.conftest import PLATFORMS, python_path

pytestmark = pytest.mark.compiler


def answers(platform: str, model: Path, log: Path) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": python_path(), "TRITON_INTERPRET": "1"}
    flags = [str(model), "--platform", platform, "--dtype", "float32", "--kv-cache-memory-bytes", str(4 << 20)]
    flags += ["--max-num-seqs", "4"]
    with (
        Served(flags, log, environment=environment) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        ask: dict[str, Any] = {"model": client.models.list().data[0].id, "max_tokens": 8, "seed": 7}
        warm = client.completions.create(**ask, prompt=["ab cd", "xyz"], temperature=1.0)
        streamed = client.completions.create(**ask, prompt="ab cd", temperature=0, stream=True)
        return [choice.text for choice in warm.choices] + ["".join(chunk.choices[0].text for chunk in streamed)]


def test_it_serves_what_the_reference_does(family: Callable[[str], Path], chip: Any, tmp_path: Path) -> None:
    served, expected = (
        answers(platform, family("llama"), tmp_path / name)
        for name, platform in (("gpu", PLATFORMS["cuda"]), ("reference", "tessera.testing:ReferencePlatform"))
    )
    assert served == expected
    assert "(platform cuda)" in (tmp_path / "gpu").read_text()
