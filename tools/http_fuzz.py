"""Sends a server the requests that schemathesis makes of its OpenAPI document, right ones and wrong ones: `python -m
tools.http_fuzz --cases 20000`.

schemathesis is installed into build/schemathesis. The server is this tree's, with the bundled demo and a short context,
so that no answer takes long. No request may be answered with a 5xx, with a body or a kind that the document does not
name, or later than after two seconds. Ends with 1 if one is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.local_server import LIMITED, ROOT, TESSERA, free_port, started

ENVIRONMENT = ROOT / "build/schemathesis"
VERSION = "4.32.5"
PHASES = "examples,coverage,fuzzing"
CHECKS = "not_a_server_error,content_type_conformance,response_schema_conformance"
SLOWEST_SECONDS = 2.0
CASES_AN_OPERATION = 100
MOST_ROUNDS = 40


def installed() -> Path:
    """The program. Raises CalledProcessError."""
    program, done = ENVIRONMENT / "bin/schemathesis", ENVIRONMENT / VERSION
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        pip = [str(ENVIRONMENT / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, f"schemathesis=={VERSION}"], check=True)
        done.touch()
    return program


def fuzzed(program: Path, port: int, seed: int) -> tuple[Counter[int], int]:
    """Answers by their status, 0 for none, and what the program ended with: 1 if a check failed."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "events.ndjson"
        done = subprocess.run(
            [
                str(program), "run", f"http://127.0.0.1:{port}/openapi.json", "--phases", PHASES, "--checks", CHECKS,
                "--max-response-time", str(SLOWEST_SECONDS), "--seed", str(seed), "--max-examples",
                str(CASES_AN_OPERATION), "--generation-database", "none", "--continue-on-failure", "--no-color",
                "--warnings", "off", "--report", "ndjson", "--report-ndjson-path", str(report),
            ],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            print(done.stdout[-6000:], done.stderr[-2000:], sep="\n", flush=True)
        return statuses(report), done.returncode


def statuses(report: Path) -> Counter[int]:
    """Of all answers that a report tells of."""
    found: Counter[int] = Counter()
    with report.open(encoding="utf-8") as lines:
        for line in lines:
            scenario = json.loads(line).get("ScenarioFinished")
            if scenario is None:
                continue
            for interaction in scenario["recorder"].get("interactions", {}).values():
                response = interaction["response"]
                found[0 if response is None else response["status_code"]] += 1
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--cases", type=int, default=20_000, help="how many to send at least")
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    asked = parser.parse_args()
    program, port = installed(), free_port()
    found, failed = Counter[int](), 0
    with started((*TESSERA, *LIMITED, "--port", str(port)), port) as server:
        for seed in range(asked.seed, asked.seed + MOST_ROUNDS):
            more, code = fuzzed(program, port, seed)
            found, failed = found + more, failed + bool(code)
            print(f"{found.total()} of {asked.cases} cases: {dict(sorted(found.items()))}", flush=True)
            if found.total() >= asked.cases or server.poll() is not None:
                break
        alive = server.poll() is None
    wrong = sum(count for status, count in found.items() if status >= 500 or not status)
    print(f"{found.total()} cases, {wrong} with a 5xx or no answer; {failed} rounds in which a check failed")
    return bool(wrong or failed or not alive or found.total() < asked.cases)


if __name__ == "__main__":
    sys.exit(main())
