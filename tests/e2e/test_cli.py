"""chat and bench as their users start them: processes, a server, a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.e2e.served import Served

# The program where torch cannot be loaded; the engine's process is another.
TORCH_FREE = (
    "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; from tessera.cli import main; main()"
)
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory):
    with Served(["--api-key", "k"], tmp_path_factory.mktemp("log") / "log") as served:
        yield served


def tessera(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tessera.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, input=text, timeout=300, check=False)


def answered_by(server: Served) -> int:
    """Answers that the server counts."""
    request = urllib.request.Request(f"{server.url}/metrics", headers={"Authorization": "Bearer k"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return sum(int(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("tessera:request_success_total{"))


class Screen:
    """A program at a terminal."""

    def __init__(self, *arguments: str) -> None:
        self.terminal, end = pty.openpty()
        command = [sys.executable, "-c", TORCH_FREE, *arguments]
        self.process = subprocess.Popen(command, stdin=end, stdout=end, stderr=end, start_new_session=True)
        os.close(end)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def wait_for(self, text: str, seconds: float = 90) -> str:
        """What was shown up to that text; the rest is for the next call."""
        end = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < end, self.shown
            self._look()
        before, _, self.shown = self.shown.partition(text)
        return before

    def wait_for_more(self) -> None:
        end = time.monotonic() + 90
        while not self.shown:
            assert time.monotonic() < end
            self._look()

    def _look(self) -> None:
        if select.select([self.terminal], [], [], 0.2)[0]:
            self.shown += os.read(self.terminal, 4096).decode(errors="replace")

    def end(self) -> int:
        """Its exit code."""
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            os.close(self.terminal)


def test_a_conversation_in_process_at_a_terminal() -> None:
    """Without torch in its own process it streams, is interrupted, goes on, and leaves no engine behind."""
    screen = Screen("chat", "--temperature", "50", "--seed", "1", "--log-level", "info")  # so answers hardly ever end
    started = screen.wait_for("Chatting with tessera-demo")
    (engine,) = re.findall(r"engine process pid (\d+)", started)
    screen.wait_for("> ")
    for _ in range(2):
        screen.type("Tell me a long story.\r")
        screen.wait_for("story.\r\n")
        screen.wait_for_more()  # of the answer: before it, Ctrl-C would be the prompt's
        screen.process.send_signal(signal.SIGINT)
        screen.wait_for("(stopped)\r\n> ")
    screen.type("\x04")
    assert screen.end() == 0
    assert not Path(f"/proc/{engine}").exists()


def test_texts_are_embedded_by_an_engine_of_its_own() -> None:
    done = tessera("embed", "--output", "json", "Paris", "Paris", "A long story about the sea.")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    first, second, third = (item["embedding"] for item in json.loads(done.stdout))
    assert first == pytest.approx(second, abs=1e-5)
    assert sum(number * number for number in first) == pytest.approx(1.0, abs=1e-3)
    assert first != pytest.approx(third, abs=1e-2)
    refused = tessera("embed", "--convert", "none", "Paris")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)


def test_a_chat_with_a_server(demo: Served) -> None:
    answered = tessera("chat", "--url", demo.url, "--api-key", "k", "--temperature", "0", text=QUESTION)
    assert (answered.returncode, answered.stdout) == (0, "The capital of France is Paris.\n")
    refused = tessera("chat", "--url", demo.url, "-q", QUESTION)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "rejected the API key" in refused.stderr


def test_a_benchmark_of_a_server(demo: Served, tmp_path: Path) -> None:
    before, file = answered_by(demo), tmp_path / "result.json"
    work = ("--num-prompts", "8", "--input-len", "32", "--output-len", "8", "--random-range-ratio", "0.5")
    done = tessera("bench", "serve", "--url", demo.url, "--api-key", "k", *work, "--json", str(file), "--save-detailed")
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert (result["completed"], result["failed"], result["short_answers"]) == (8, 0, 0)
    assert result["total_output_tokens"] == sum(result["output_lens"])
    assert 0 < result["mean_ttft_ms"] <= result["mean_e2el_ms"]
    assert all(len(gaps) < tokens for gaps, tokens in zip(result["itls"], result["output_lens"], strict=True))
    # The server's own count: the warm-up and these.
    assert answered_by(demo) - before == 9


def test_a_run_that_is_terminated_leaves_no_engine(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tessera.cli", "bench", "latency", "--num-iters", "100000", "--log-level", "info"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    end = time.monotonic() + 90
    while "batches ..." not in (text := (tmp_path / "log").read_text()):
        assert time.monotonic() < end, text
        time.sleep(0.1)
    (engine,) = re.findall(r"engine process pid (\d+)", text)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert not Path(f"/proc/{engine}").exists()
    assert "Traceback" not in (tmp_path / "log").read_text()
