"""docs/server.md and docs/api-compatibility.md: their tables against the code, their commands against a server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import pytest
from starlette.routing import Route

from tessera.cli.serve import TABLE
from tessera.config import ModelConfig
from tessera.config.engine import MAX_MEDIA
from tessera.config.other_names import other_flag
from tessera.engine.beam_search import MAX_WIDTH
from tessera.engine.messages import EngineStats
from tessera.engine.metrics import EngineMetrics
from tessera.engine.output_readers import MAX_UNREAD
from tessera.media.messages import MAX_PIXELS, MAX_SECONDS, MAX_VIDEO_TIME
from tessera.media.rules import MediaRules
from tessera.media.sound import MAX_CHANNELS, MAX_RATE, MIN_RATE
from tessera.media.video import MAX_FRAMES, MAX_SEEN_PIXELS
from tessera.processes.job_queue import MOST_WAITING
from tessera.server.app import create_app
from tessera.server.connections import FOR_HEALTH
from tessera.server.decode import WITHOUT_EFFECT
from tessera.server.settings import Limits, ServerSettings
from tests.docs.steps import Shell, follow
from tests.e2e.served import free_port
from tests.server.conftest import on_socket
from tests.server.fake_engine import FakeEngine
from tests.server.test_error_walk import KNOWN

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "server.md").read_text(encoding="utf-8")
APIS = (DOCS / "api-compatibility.md").read_text(encoding="utf-8")
SNIPPETS = dict(re.findall(r"<!-- run: (\w+) -->\n```bash\n(.*?)```", APIS, re.DOTALL))
ANSWERS = {
    "tokenize": {"count", "max_model_len", "tokens", "token_strs"},
    "detokenize": {"prompt"},
    "decide": {"model", "answers", "usage"},
    "systemone": {"model", "answers", "usage", "diagnostics"},
}
KIB, MIB, GIB = 2**10, 2**20, 2**30


def table(page, heading):
    """The rows below a heading, without their own head."""
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_each_route_has_a_row_and_each_row_is_a_route():
    written = {
        (path.strip("`"), tuple(methods.split(", ")))
        for paths, methods, _ in table(APIS, "Routes")
        for path in paths.split(", ")
    }
    routes = [route for route in create_app(FakeEngine(), ServerSettings()).routes if isinstance(route, Route)]
    assert written == {
        (route.path_format, tuple(sorted(route.methods - {"HEAD"}))) for route in routes if route.methods is not None
    }


def test_the_limits_are_those_of_the_code():
    limits, media = Limits(), MediaRules()
    written = dict(table(PAGE, "Limits"))
    assert written == {
        "body of a request": f"{limits.body_bytes // MIB} MiB, within {limits.body_seconds:.0f} s",
        "bodies of all requests in progress": (
            f"{limits.bodies_bytes // MIB} MiB, with several keys a fourth of it for each"
        ),
        "answers that clients have not read yet, together": (
            f"{MAX_UNREAD:,} tokens and log probabilities, half of it for one answer"
        ),
        "time in which a client reads nothing of an answer that waits for it": f"{limits.write_seconds:.0f} s",
        "texts that wait to be tokenized": f"{MOST_WAITING // MIB} MiB, a fourth of it for each key or address",
        "request line and headers": (
            f"{limits.header_bytes // KIB} KiB, within {limits.header_seconds:.0f} s; a TLS handshake before them, "
            "the same"
        ),
        "connections": (
            f"{ServerSettings().max_connections}, fewer if the process may not open as many files, and {FOR_HEALTH} "
            f"for health checks; `{option('limit_concurrency')}`"
        ),
        "time that a connection is idle": f"{ServerSettings().keep_alive_seconds} s; `{option('timeout_keep_alive')}`",
        "all fields except messages, tools, prompt and allowed_token_ids": f"{limits.other_bytes // MIB} MiB",
        "requests in progress": str(ServerSettings().max_requests),
        "prompts of a completion": f"{limits.prompts}; `--max-prompts`",
        "inputs of an embeddings request, documents of a reranking one": f"{limits.pooled_inputs}; `--max-inputs`",
        "numbers of an answer that is numbers; of all such answers in progress": (
            f"{limits.pooled_numbers}; {limits.all_pooled_numbers}"
        ),
        "characters of the pairs of a request, the query counted for each document": str(limits.pair_chars),
        "`n`": f"{limits.n}; `--max-n`",
        "prompts times `n`": f"{limits.choices}; `--max-choices`",
        "beams of a prompt": f"{MAX_WIDTH}, fewer with a smaller `--max-logprobs`",
        "characters of a prompt": str(limits.prompt_chars),
        "messages of a chat": str(limits.messages),
        "content parts, tool calls of a chat": f"{limits.content_parts} each",
        "images, videos, sounds of a prompt": f"{MAX_MEDIA} each; `--limit-mm-per-prompt`",
        "an image": (
            f"{media.max_bytes // MIB} MiB, {MAX_PIXELS} pixels; {media.seconds:.0f} s and {media.redirects} redirects "
            "to fetch it"
        ),
        "a video": (
            f"{media.max_bytes // MIB} MiB, {MAX_SECONDS} s, {MAX_FRAMES} frames, {MAX_PIXELS} pixels of each, "
            f"{MAX_SEEN_PIXELS} of those that the model sees; {MAX_VIDEO_TIME} s of processor time; to fetch it, as an "
            "image"
        ),
        "a sound": (
            f"{media.max_bytes // MIB} MiB, {MAX_SECONDS} s, {MAX_CHANNELS} channels, {MIN_RATE} to {MAX_RATE} samples "
            "a second; to fetch it, as an image"
        ),
        "`tools`": f"{limits.tools_bytes // MIB} MiB, {limits.tools} functions",
        "`chat_template_kwargs`": f"{limits.template_kwargs_bytes // KIB} KiB",
        "`top_logprobs`, `logprobs`": str(ModelConfig.max_logprobs),
        "`cache_salt`": f"{limits.salt_chars} characters",
        "`request_id`": f"{limits.request_id_chars} characters",
        "`tokens` of `/detokenize`": str(limits.detokenize_tokens),
        "a file": f"{limits.file_bytes // MIB} MiB, within {limits.file_seconds:.0f} s; `--max-file-bytes`",
        "all files": f"{ServerSettings().batch_store_bytes // GIB} GiB; `--batch-store-bytes`",
        "requests of a batch": str(limits.batch_lines),
        "`custom_id`": f"{limits.custom_id_chars} characters",
    }


def option(name):
    return next(flag.option for flag in TABLE.flags if flag.name == name)


def test_the_statuses_are_those_that_a_walk_over_all_errors_meets():
    assert {int(status) for status, _ in table(PAGE, "Errors")} == KNOWN


def test_a_metric_of_vllm_is_there_or_said_to_be_missing():
    section = APIS.split("\n## vLLM's metrics\n")[1]
    missing = {"prompt_tokens_cached_by_source"}
    said = next(line for line in section.split("\n- ") if line.startswith("**Missing**"))
    assert missing <= set(re.findall(r"`(\w+)`", said))
    assert not missing & {metric.name for metric in EngineMetrics(512).read()}


def test_a_metric_to_watch_exists():
    engine = EngineMetrics(512)
    engine.stats = EngineStats(fallbacks={"gate": 1})
    metrics = {metric.name: metric.kind for metric in engine.read()}
    watched = set(re.findall(r"`tessera:(\w+)", PAGE))
    assert len(watched) >= 8
    assert watched <= {f"{name}_total" if kind == "counter" else name for name, kind in metrics.items()}


def test_the_hints_are_those_that_the_code_takes():
    (hints,) = re.findall(r"\n- \*\*Hints\*\*, .*?: (.*?)\.\n", APIS, re.DOTALL)
    assert re.findall(r"`(\w+)`", hints) == sorted(WITHOUT_EFFECT)


def test_every_flag_it_names_exists_and_none_about_security_is_missing():
    beside = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("deployment.md", "troubleshooting.md"))
    text = re.sub(r"(curl|pip) ?([^\n]* )?`?--(json|unix-socket|upgrade)", "", PAGE + APIS + beside)
    named = set(re.findall(r"--[a-z][a-z-]+\b(?!-)", text))
    known = {name for flag in TABLE.flags for name in (flag.option, *flag.aliases)} | {"--help", "--help-all"}
    assert {name for name in named - known if other_flag(name) is None} == set()
    assert {flag.option for flag in TABLE.flags if flag.group == "security"} <= named


@pytest.mark.parametrize("name", sorted(ANSWERS))
async def test_a_command_answers_as_it_says(name):
    settings = ServerSettings(served_model_names=("tessera-demo",), drain_seconds=0.1)
    async with on_socket(FakeEngine(), settings) as server:
        command = SNIPPETS[name].replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    assert set(json.loads(out)) == ANSWERS[name]


def test_each_command_is_known():
    assert set(SNIPPETS) == set(ANSWERS)


def test_the_first_steps_do_what_the_page_says(tmp_path: Path):
    programs = tmp_path / "tessera"
    programs.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tessera.cli "$@"\n')
    programs.chmod(0o755)
    (tmp_path / ".curlrc").write_text("silent\n")  # as it is at a terminal
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "CURL_HOME": str(tmp_path),
        "NO_PROXY": "127.0.0.1",
    }
    page = PAGE.replace("$ tessera serve &", "$ tessera serve --port 8000 &").replace("8000", str(free_port()))
    with Shell(tmp_path, environment) as shell:
        assert follow(page, shell) == 5
