"""The parts of `serve` that need no engine: the address, what it warns of, what it reports."""

from __future__ import annotations

import io
import json
import shlex
import socket
from dataclasses import dataclass, field

import pytest

from tessera.cli.listen import bind, owner_of, url_of
from tessera.cli.report import ProgressLine, curl, report
from tessera.cli.serving import unknown_variables, warnings_before
from tessera.config.environment import read_environment
from tessera.errors import PortError
from tessera.platform import Progress
from tests.server.pooling_models import CLASSIFIER, EMBEDDER, RERANKER, TOKENS


@dataclass
class Info:
    device: str = "a chip"
    dtype: str = "bfloat16"
    platform: str = "good"
    weight_bytes: int = 5_347_737
    cache_bytes: int = 4 * 2**30
    num_cache_tokens: int = 100_000
    max_model_len: int = 1024
    phases: dict[str, float] = field(default_factory=lambda: {"load": 0.5, "warm_up": 1.25})
    fallback_ops: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    num_weights: int = 2_558_400
    num_devices: int = 1


# ---- address ----------------------------------------------------------------------


def test_a_free_port_is_bound_and_listened_on():
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert url_of(listener) == f"http://127.0.0.1:{port}"
        socket.create_connection(("127.0.0.1", port), timeout=5).close()


def test_every_network_is_reached_from_here_by_loopback():
    with bind("0.0.0.0", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_taken_port_is_an_error_that_says_what_to_do():
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(
            PortError, match=rf"Port {port} on 127\.0\.0\.1 is in use.*choose another with --port\."
        ) as caught:
            bind("127.0.0.1", port)
    assert caught.value.exit_code == 7


def test_who_holds_a_port(tmp_path):
    """As the kernel's tables have it: the listening row of the port, not the connected one nor another port's."""
    tables = tmp_path / "net"
    tables.mkdir()
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    row = "   {}: 0100007F:{:04X} 00000000:0000 {} 00000000:00000000 00:00000000 00000000     0        0 {} 1 0\n"
    (tables / "tcp").write_text(
        head + row.format(0, 8000, "01", 11) + row.format(1, 8001, "0A", 12) + row.format(2, 8000, "0A", 13)
    )
    for process, inode in ((41, 11), (42, 13)):
        (tmp_path / str(process) / "fd").mkdir(parents=True)
        (tmp_path / str(process) / "comm").write_text(f"program{process}\n")
        (tmp_path / str(process) / "fd" / "3").symlink_to(f"socket:[{inode}]")
    assert owner_of(8000, tmp_path) == "program42 (process 42)"
    assert owner_of(9000, tmp_path) is None
    assert owner_of(8000, tmp_path / "none") is None


@pytest.mark.parametrize(
    ("host", "what"),
    [
        ("203.0.113.7", "--host 203.0.113.7 is not an address of this machine"),
        ("no such host", "--host 'no such host' cannot be resolved"),
        ("x" * 300, "cannot be resolved"),
    ],
)
def test_an_address_that_cannot_be_bound(host, what):
    with pytest.raises(PortError, match=what):
        bind(host, 0)


# ---- what it says -----------------------------------------------------------------


def test_the_report():
    text = report(Info(), model="tessera-demo", url="http://127.0.0.1:8000", chat=True, guarded=False, seconds=2.349)
    rows = [line.strip() for line in text.splitlines()]
    assert rows[0].endswith("is serving tessera-demo")
    for row in (
        "device      a chip (platform good)",
        "dtype       bfloat16",
        "weights     5.1 MiB, 16.72 bits each",
        "KV cache    100,000 tokens = 98 requests of 1,024 tokens",
        "in 4.0 GiB; set with --kv-cache-memory-bytes",
        "load        0.50 s",
        "warm up     1.25 s",
        "total       2.35 s since the command started",
        "URL         http://127.0.0.1:8000",
        "web page    http://127.0.0.1:8000/",
    ):
        assert row in rows


def test_the_report_names_the_web_page_only_where_a_browser_can_open_it():
    given = {"model": "m", "url": "u", "chat": True, "guarded": False, "seconds": 1}
    assert "web page" not in report(Info(), **given, page=False)
    assert "web page" not in report(Info(), **given, socket_path="/run/s")


def test_the_report_of_a_model_without_a_cache():
    text = report(Info(cache_bytes=0), model="m", url="u", chat=True, guarded=False, seconds=1)
    assert "KV cache" not in text


def test_the_report_of_several_devices():
    text = report(Info(num_devices=4), model="m", url="u", chat=True, guarded=False, seconds=1)
    assert "device      a chip (platform good), one of 4; memory is per device\n" in text


def test_the_report_of_what_is_unusual():
    info = Info(num_cache_tokens=1536, fallback_ops=["moe"], notes=["scheduler.max_num_seqs = 8: a small chip"])
    text = report(info, model="m", url="u", chat=True, guarded=False, seconds=1)
    assert "1,536 tokens = 1.5 requests of 1,024 tokens" in text
    assert "reference   moe (no kernel of the platform; --no-fallback refuses this)" in text
    assert "note        scheduler.max_num_seqs = 8: a small chip" in text


@pytest.mark.parametrize(("chat", "route"), [(True, "chat/completions"), (False, "completions")])
def test_the_line_for_a_shell_is_one_that_a_shell_takes(chat, route):
    words = shlex.split(curl("http://127.0.0.1:8000", "it's a model", chat=chat, guarded=True))
    assert words[:4] == ["curl", f"http://127.0.0.1:8000/v1/{route}", "-H", "Authorization: Bearer $TESSERA_API_KEY"]
    body = json.loads(words[-1])
    assert body["model"] == "it's a model"
    assert ("messages" in body) == chat


@pytest.mark.parametrize(
    ("pooler", "route"),
    [(EMBEDDER, "/v1/embeddings"), (RERANKER, "/rerank"), (CLASSIFIER, "/classify"), (TOKENS, "/pooling")],
)
def test_the_line_for_a_model_that_answers_with_numbers(pooler, route):
    words = shlex.split(curl("http://127.0.0.1:8000", "m", chat=True, guarded=False, pooler=pooler))
    assert words[1] == f"http://127.0.0.1:8000{route}"
    body = json.loads(words[-1])
    assert ("query" in body) == (pooler is RERANKER)
    assert "messages" not in body


def test_warnings_for_an_open_server():
    def warned(host, guarded=False):
        return list(warnings_before(host, guarded=guarded))

    assert warned("127.0.0.1") == warned("localhost") == warned("::1") == warned("0.0.0.0", guarded=True) == []
    assert warned("0.0.0.0") == ["anyone who can reach 0.0.0.0 can use this server; set --api-key to prevent that"]


def test_unknown_variables_are_warned_of_and_those_of_platforms_are_not():
    assert unknown_variables(read_environment({"TESSERA_CPU_KERNELS": "torch", "TESSERA_CACHE": "/x"})) == []
    mistyped = {"TESSERA_API_KEYS": "x", "TESSERA_CPU_KERNEL": "torch"}
    first, second = unknown_variables(read_environment(mistyped))
    assert "did you mean TESSERA_API_KEY?" in first
    assert "did you mean TESSERA_CPU_KERNELS?" in second


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_a_line_a_phase_in_a_log_and_one_line_on_a_terminal():
    for stream, expected in ((io.StringIO(), "weights ...\nwarm up ...\n"), (Terminal(), None)):
        line = ProgressLine(stream)
        for done in (0, 5, 10):
            line(Progress("weights", done, 10))
        line(Progress("warm_up", 0, 0))
        line.close()
        text = stream.getvalue()
        if expected is None:
            assert "\n" not in text
            assert " 50%" in text
            assert text.endswith("\r\x1b[K")
        else:
            assert text == expected
