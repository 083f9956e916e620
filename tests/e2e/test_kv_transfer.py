"""Prefill and decode apart, as its user starts it: two servers, and a router that passes kv_transfer_params from the
answer of one to the request of the other, as vLLM's example does."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.served import Served, free_port

TEXT = "Once upon a time there was a small engine that computed prompts for a larger one. " * 6
ASK = {"temperature": 0, "max_tokens": 12}
BODIES = {
    "/v1/completions": {"prompt": TEXT, **ASK},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXT}], **ASK},
}


def post(url: str, path: str, **fields: Any) -> dict[str, Any]:
    answer = httpx.post(url + path, json=fields, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def prefill(source: Served, path: str) -> dict[str, Any] | None:
    """What the first server says of the prompt."""
    asked = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    answer = post(source.url, path, **{**BODIES[path], "max_tokens": 1, "stream": False}, kv_transfer_params=asked)
    assert answer["usage"]["completion_tokens"] == 1
    found: dict[str, Any] | None = answer["kv_transfer_params"]
    return found


def said(answer: dict[str, Any]) -> tuple[str, int]:
    """The text, and how many tokens of the prompt were cached."""
    choice = answer["choices"][0]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    return text, answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def metric(server: Served, name: str, label: str = "") -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    own = [line for line in lines if line.startswith(f"tessera:{name}_total{{") and label in line]
    return sum(float(line.split()[-1]) for line in own)


def served(folder: Path, name: str, role: str, *flags: str) -> Served:
    key = folder / "key"
    key.write_text("a secret of these engines")
    config = {"kv_connector": "TcpConnector", "kv_role": role, "kv_port": free_port()}
    arguments = ["--dtype", "float32", "--kv-transfer-config", json.dumps(config), "--cluster-key-file", str(key)]
    return Served([*arguments, *flags], folder / name)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Served]]:
    folder = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:
        source = stack.enter_context(served(folder, "prefill", "kv_producer"))
        yield source, stack.enter_context(served(folder, "decode", "kv_consumer", "--block-size", "32"))


@pytest.mark.parametrize("path", list(BODIES))
def test_the_second_server_goes_on_where_the_first_has_stopped(servers: tuple[Served, Served], path: str) -> None:
    source, target = servers
    expected, _ = said(post(source.url, path, **BODIES[path]))
    arrived = metric(target, "external_prefix_cache_hits")
    params = prefill(source, path)
    assert params is not None
    assert params["do_remote_prefill"]
    text, cached = said(post(target.url, path, **BODIES[path], kv_transfer_params=params))
    assert text == expected
    assert cached >= 32
    assert metric(target, "external_prefix_cache_hits") == arrived + cached
    assert metric(target, "prompt_tokens_by_source", 'source="external_kv_transfer"') == arrived + cached
    assert metric(target, "kv_transfer_recomputed_requests") == 0
    assert "kv_transfer_params" not in post(target.url, path, **BODIES[path])


def test_a_router_asks_both_in_turn(servers: tuple[Served, Served], tmp_path: Path) -> None:
    source, target = servers
    port = free_port()
    command = [sys.executable, "-m", "tessera.cli", "router", target.url, "--prefill", source.url, "--port", str(port)]
    with (tmp_path / "log").open("wb") as log:
        router = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while (tmp_path / "log").read_text().count("is ready") < 2:
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.05)
        body = {**BODIES["/v1/completions"], "prompt": "A router. " + TEXT}
        arrived = metric(target, "external_prefix_cache_hits")
        text, cached = said(post(url, "/v1/completions", **body))
        assert metric(target, "external_prefix_cache_hits") == arrived + cached > arrived
        assert text == said(post(source.url, "/v1/completions", **body))[0]
        with httpx.stream("POST", f"{url}/v1/completions", json={**body, "stream": True}, timeout=60) as answer:
            assert answer.status_code == 200
            assert "[DONE]" in answer.read().decode()
    finally:
        router.terminate()
        router.wait(40)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kv_transfer_params": {"do_remote_decode": True}, "stream": True}, "needs stream=false"),
        ({"kv_transfer_params": {"do_remote_decode": True}, "prompt": ["a", "b"]}, "is for one prompt, got 2"),
        ({"kv_transfer_params": {"do_remote_decode": True}, "use_beam_search": True, "n": 1}, "use_beam_search"),
        ({"kv_transfer_params": {"do_remote_prefill": True}}, "is for engines with the kv_role kv_consumer"),
        ({"kv_transfer_params": {"remote_port": 70000, "do_remote_decode": True}}, "remote_port must be 1 to 65535"),
    ],
)
def test_what_cannot_be_is_refused(servers: tuple[Served, Served], fields: dict[str, Any], said: str) -> None:
    answer = httpx.post(f"{servers[0].url}/v1/completions", json={"prompt": "a", "max_tokens": 1, **fields})
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


def test_a_request_whose_source_is_gone_is_computed(servers: tuple[Served, Served], tmp_path: Path) -> None:
    _, target = servers
    path = "/v1/completions"
    with served(tmp_path, "other", "kv_producer") as other:
        (tmp_path / "key").write_text("a secret of these engines")
        body = {**BODIES[path], "prompt": "And then. " + TEXT}
        expected, _ = said(post(other.url, path, **body))
        asked = {"do_remote_decode": True}
        params = post(other.url, path, **{**body, "max_tokens": 1}, kv_transfer_params=asked)["kv_transfer_params"]
        other.process.kill()
        other.process.wait()
        text, cached = said(post(target.url, path, **body, kv_transfer_params=params))
    assert (text, cached) == (expected, 0)
    assert metric(target, "kv_transfer_recomputed_requests") == 1
    assert target.log.read_text().count("computes a prompt that another engine has") == 1
