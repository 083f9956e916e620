"""A model on several devices answers over HTTP as it does on one."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

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


def test_several_engines_answer_as_one_and_go_on_without_one_that_dies(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    arguments = [str(model), "--dtype", "float32", "--served-model-name", "m", "--kv-cache-memory-bytes", "16MiB"]
    with (
        Served([*arguments, "--data-parallel-size", "2"], tmp_path / "log") as served,
        httpx.Client(timeout=60) as client,
    ):

        def answer(**fields: object) -> httpx.Response:
            headers = {name: str(value) for name, value in fields.items()}
            return client.post(f"{served.url}/v1/completions", json=ASKED, headers=headers)

        def prompts() -> list[float]:
            families = text_string_to_metric_families(client.get(f"{served.url}/metrics").text)
            (family,) = [one for one in families if one.name == "tessera:request_params_n"]
            counts = {one.labels["engine"]: one.value for one in family.samples if one.name.endswith("_count")}
            return [counts["0"], counts["1"]]

        texts = {answer(**{"X-data-parallel-rank": rank}).json()["choices"][0]["text"] for rank in (0, 1, 1)}
        assert len(texts) == 1, "equal tokens from both"
        assert prompts() == [1, 2]
        refused = answer(**{"X-data-parallel-rank": 2})
        assert refused.status_code == 400
        assert refused.json()["error"]["message"] == "data_parallel_rank must be from 0 to 1, got 2."
        first, second = map(int, re.findall(r"engine process pid (\d+)", served.log.read_text()))
        os.kill(second, signal.SIGKILL)
        for _ in range(10):
            assert answer().json()["choices"][0]["text"] in texts
            assert served.status("/readyz") == 200
    assert not any(Path(f"/proc/{pid}").exists() for pid in (first, second))
