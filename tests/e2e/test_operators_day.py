"""A day of a server and of whoever operates it: it takes over what an older server stored, and then a certificate
expires, keys change, a model is missing, an adapter comes and goes, the disk fills up, the log is rotated. Clients that
do right notice nothing, and nothing of it ends the server, whose log has no traceback in the evening.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import ssl
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tessera.config.locate import demo_folder
from tessera.testing.conformance.lora import save_adapter
from tests.certificates import Authority
from tests.e2e.served import Served
from tests.e2e.test_batches import until
from tests.e2e.test_upgrade import check_stored, restore

MODELS = """
- {name: small, kv-cache-memory-bytes: 16MiB, enable-lora: true}
- {name: large, kv-cache-memory-bytes: 16MiB, max-model-len: 64}
- {name: broken, model: /no/such/folder}
"""
KEYS: dict[str, dict[str, Any]] = {
    "search": {"models": ["small"], "requests_per_minute": 100},
    "night": {"tokens_per_minute": 100_000},
    "operator": {"admin": True},
}
PROMPTS = "/v1/completions"
TINY = 1
"""Bytes: with this limit on the size of files, no database and no log can grow."""


class Day:
    """The server, and what its operator and its clients do."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self.folder = folder
        self._opened = opened
        self.authority = Authority(folder)
        identity = self.authority.issue("server", days=-1)
        self._trusting = ssl.create_default_context(cafile=self.authority.identity.certificate)
        (folder / "models.yaml").write_text(MODELS)
        self.write_keys(KEYS)
        self.flags = [
            *("--models", str(folder / "models.yaml"), "--max-loaded-models", "2"),
            *("--api-key-file", str(folder / "keys.yaml")),
            *("--ssl-certfile", str(identity.certificate), "--ssl-keyfile", str(identity.key)),
            *restore(0, folder / "stored"),
        ]

    def start(self) -> None:
        lax = ssl.create_default_context()
        lax.check_hostname, lax.verify_mode = False, ssl.CERT_NONE
        self.served = self._opened.enter_context(Served(self.flags, self.folder / "log", tls=lax))
        self.search, self.night, self.operator = (self.client(name) for name in KEYS)

    def client(self, name: str) -> openai.OpenAI:
        http = self._opened.enter_context(httpx.Client(verify=self._trusting))
        return openai.OpenAI(
            base_url=f"{self.served.url}/v1", api_key=f"sk-{name}", http_client=http, max_retries=0, timeout=60
        )

    def write_keys(self, keys: dict[str, dict[str, Any]]) -> None:
        entries = [{"name": name, "key": f"sk-{name}", **rules} for name, rules in keys.items()]
        (self.folder / "keys.yaml").write_text(json.dumps({"keys": entries}))

    def reload(self, line: str) -> None:
        """Sends SIGHUP, and waits for this line of the log."""
        before = self.log.count(line)
        self.served.process.send_signal(signal.SIGHUP)
        self.wait(lambda: self.log.count(line) > before)

    def wait(self, happened: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not happened():
            assert time.monotonic() < end, self.log
            time.sleep(0.02)

    @property
    def log(self) -> str:
        return self.served.log.read_text()

    def text(self, client: openai.OpenAI, model: str = "small", max_tokens: int = 8) -> str:
        answer = client.completions.create(model=model, prompt="Once", temperature=0, max_tokens=max_tokens)
        return answer.choices[0].text

    def batch(self, *models: str) -> str:
        """Begins one with a line for each model; its id."""
        body = {"prompt": "Once", "temperature": 0, "max_tokens": 8}
        lines = [
            {"custom_id": str(number), "method": "POST", "url": PROMPTS, "body": {"model": model, **body}}
            for number, model in enumerate(models)
        ]
        content = "\n".join(map(json.dumps, lines)).encode()
        file = self.night.files.create(file=("in.jsonl", content), purpose="batch")
        return self.night.batches.create(input_file_id=file.id, endpoint=PROMPTS, completion_window="24h").id

    def limit_files(self, size: int) -> None:
        """Sets how large a file the server may write, as a quota or a full disk does."""
        pid = self.served.process.pid
        hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


@pytest.mark.nightly
def test_an_operators_day(tmp_path: Path) -> None:
    with ExitStack() as opened:
        day = Day(tmp_path, opened)
        day.start()
        exchange_certificate(day)
        check_stored(day.search, day.night)
        change_keys(day)
        miss_a_model(day)
        load_adapter(day)
        fill_disk(day)
        rotate_log(day)
        assert "Traceback" not in day.log
        left = day.batch("small", "large")
        day.served.process.send_signal(signal.SIGTERM)
        assert day.served.process.wait(60) == 0
        assert "Traceback" not in day.log
        # The next morning.
        day.start()
        done = until(day.night, left, lambda batch: batch.status == "completed")
        assert done.request_counts.completed == 2


def exchange_certificate(day: Day) -> None:
    with pytest.raises(openai.APIConnectionError) as refused:
        day.text(day.search)
    assert "expired" in str(refused.value.__cause__)
    day.authority.issue("server")
    day.reload("Read the certificate from")
    assert day.text(day.search)


def change_keys(day: Day) -> None:
    with pytest.raises(openai.PermissionDeniedError):
        day.text(day.search, "large")
    day.write_keys({**KEYS, "search": {"models": ["large"]}, "guest": {"requests_per_minute": 1}})
    day.reload("Read 4 keys from")
    with pytest.raises(openai.PermissionDeniedError):
        day.text(day.search, "small")
    assert day.text(day.search, "large")
    guest = day.client("guest")
    assert day.text(guest)
    with pytest.raises(openai.RateLimitError) as refused:
        day.text(guest)
    assert int(refused.value.response.headers["retry-after"]) > 0
    (day.folder / "keys.yaml").write_text("keys: [")
    day.reload("The keys stay as they were")
    assert day.text(day.night)
    day.write_keys({**KEYS, "night": {"tokens_per_minute": 10}})
    day.reload("Read 3 keys from")
    with pytest.raises(openai.AuthenticationError):
        day.text(guest)
    # What a key has used before counts on.
    assert day.text(day.night, max_tokens=16)
    with pytest.raises(openai.RateLimitError, match="tokens"):
        day.text(day.night)
    day.write_keys(KEYS)
    day.reload("Read 3 keys from")
    assert day.text(day.search) == day.text(day.night)


def miss_a_model(day: Day) -> None:
    with pytest.raises(openai.InternalServerError) as refused:
        day.text(day.operator, "broken")
    assert (refused.value.status_code, refused.value.code) == (503, "model_not_loaded")
    states = {model.id: model.to_dict()["state"] for model in day.operator.models.list()}
    assert states == {"small": "loaded", "large": "loaded", "broken": "failed"}
    assert day.text(day.operator, "large") == day.text(day.operator, "small")
    done = until(day.night, day.batch("small", "broken", "large"), lambda batch: batch.status == "completed")
    assert (done.request_counts.completed, done.request_counts.failed) == (2, 1)


def load_adapter(day: Day) -> None:
    folder = save_adapter(demo_folder(), day.folder / "french", seed=1)
    body = {"lora_name": "french", "lora_path": str(folder), "model": "small"}
    with pytest.raises(openai.PermissionDeniedError):
        day.night.post("/load_lora_adapter", body=body, cast_to=str)
    before = day.text(day.operator)
    day.operator.post("/load_lora_adapter", body=body, cast_to=str)
    assert day.text(day.operator, "french") != before
    day.operator.post("/unload_lora_adapter", body={"lora_name": "french"}, cast_to=str)
    with pytest.raises(openai.NotFoundError):
        day.text(day.operator, "french")
    assert day.text(day.operator) == before


def fill_disk(day: Day) -> None:
    kept = day.search.responses.create(model="small", input="Hi", temperature=0, max_output_tokens=8)
    file = day.night.files.list(purpose="batch").data[0]
    day.limit_files(TINY)
    answer = day.search.responses.create(model="small", input="Hi", temperature=0, max_output_tokens=8)
    assert (answer.output_text, answer.store) == (kept.output_text, False)
    assert day.search.responses.retrieve(kept.id) == kept
    assert day.text(day.night)
    for ask in (
        lambda: day.search.responses.create(model="small", input="Hi", store=True, max_output_tokens=8),
        lambda: day.night.files.create(file=("in.jsonl", b"x" * 2**16), purpose="batch"),
        lambda: day.night.batches.create(input_file_id=file.id, endpoint=PROMPTS, completion_window="24h"),
    ):
        with pytest.raises(openai.InternalServerError) as refused:
            ask()
        assert (refused.value.status_code, refused.value.code) == (503, "storage_full")
    day.limit_files(resource.RLIM_INFINITY)
    # A batch that has begun when the disk fills up waits until there is room.
    begun = day.batch(*["small"] * 40)
    until(day.night, begun, lambda batch: batch.request_counts.completed > 0)
    day.limit_files(TINY)
    time.sleep(1.0)
    assert day.night.batches.retrieve(begun).status == "in_progress"
    day.limit_files(resource.RLIM_INFINITY)
    done = until(day.night, begun, lambda batch: batch.status == "completed")
    assert (done.request_counts.completed, done.request_counts.failed) == (40, 0)
    results = [json.loads(line)["custom_id"] for line in day.night.files.content(done.output_file_id).text.splitlines()]
    assert sorted(results, key=int) == [*map(str, range(40))]


def rotate_log(day: Day) -> None:
    """As logrotate's copytruncate does."""
    log = day.served.log
    shutil.copy(log, day.folder / "log.1")
    os.truncate(log, 0)
    day.text(day.operator)
    day.wait(lambda: "POST /v1/completions 200" in day.log)
    assert "\0" not in day.log
    assert len(day.log) < 10_000
    assert "Traceback" not in (day.folder / "log.1").read_text()
