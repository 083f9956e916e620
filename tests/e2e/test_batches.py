"""A batch on a served model, whose server is killed on the way."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import openai

from tests.e2e.served import Served

COUNT = 200
CHAT = "/v1/chat/completions"


def line(number: int) -> str:
    messages = [{"role": "user", "content": f"What is {number} plus 1?"}]
    body = {"messages": messages, "temperature": 0, "max_tokens": 16}
    return json.dumps({"custom_id": str(number), "method": "POST", "url": CHAT, "body": body})


def until(client: openai.OpenAI, batch_id: str, seen: Callable[[openai.types.Batch], bool]) -> openai.types.Batch:
    end = time.monotonic() + 90
    while not seen(batch := client.batches.retrieve(batch_id)):
        assert time.monotonic() < end, batch
        time.sleep(0.02)
    return batch


def test_a_batch_outlives_a_killed_server(tmp_path: Path) -> None:
    flags = ["--batch-store", str(tmp_path / "store"), "--max-num-seqs", "4"]
    with Served(flags, tmp_path / "first.log") as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="any")
        content = "\n".join(map(line, range(COUNT))).encode()
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        seen = until(client, batch.id, lambda batch: batch.request_counts.completed > 5)
        assert seen.status == "in_progress"
        served.process.send_signal(signal.SIGKILL)
        served.process.wait(30)
    with Served(flags, tmp_path / "second.log") as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="any")
        ended = until(client, batch.id, lambda batch: batch.status not in ("validating", "in_progress", "finalizing"))
        assert (ended.status, ended.request_counts.completed) == ("completed", COUNT)
        text = client.files.content(ended.output_file_id).text
        answered = [json.loads(line)["custom_id"] for line in text.splitlines()]
        assert sorted(answered, key=int) == [*map(str, range(COUNT))]
        log = (tmp_path / "second.log").read_text()
        assert log.count(f"Batch {batch.id} is completed: {COUNT} requests, 0 of them failed.") == 1
