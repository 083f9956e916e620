"""`tessera serve --models` as a user starts it: one model at a time, and one that cannot be loaded."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.served import Served

MODELS = """
- {name: first, kv-cache-memory-bytes: 16MiB}
- {name: second, kv-cache-memory-bytes: 16MiB, max-model-len: 64}
- {name: broken, model: /no/such/folder}
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    file = tmp_path / "models.yaml"
    file.write_text(MODELS)
    with Served(["--models", str(file), "--models-memory", "30MiB"], tmp_path / "log") as served:
        yield served


def test_models_take_turns_in_the_memory_that_there_is(served: Served) -> None:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:

        def text(model: str) -> str:
            return client.completions.create(model=model, prompt="Once", temperature=0, max_tokens=8).choices[0].text

        def loaded() -> list[str]:
            return [model.id for model in client.models.list() if model.to_dict()["state"] == "loaded"]

        first = text("first")
        assert loaded() == ["first"]
        with pytest.raises(openai.InternalServerError) as refused:
            text("broken")
        assert (refused.value.status_code, refused.value.code) == (503, "model_not_loaded")
        assert "/no/such" not in str(refused.value)
        assert loaded() == ["first"]
        assert text("second") == first
        assert loaded() == ["second"]
        with pytest.raises(openai.BadRequestError, match="maximum context length is 64"):
            client.completions.create(model="second", prompt="Once " * 64, max_tokens=8)
    log = served.log.read_text()
    assert log.count("broken could not be loaded: There is no folder '/no/such/folder'.") == 1
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(30) == 0
    assert "Traceback" not in served.log.read_text()
