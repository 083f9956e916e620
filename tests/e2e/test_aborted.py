"""Clients that leave in the midst of answers, on the server as its user starts it: nothing of them is left."""

from __future__ import annotations

import asyncio
import random
import re
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.served import Served
from tests.e2e.test_staying_up import until
from tests.server.leaving import NUM_TOKENS, Leaving

DEMO = "tessera-demo"
AT_ONCE = 64
MAX_RUNNING = 48  # so that some leave while they wait
HELD = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


def asking(draw: random.Random) -> dict[str, Any]:
    prompt = [draw.randrange(3, 1000) for _ in range(draw.randrange(1, 200))]
    return {"model": DEMO, "prompt": prompt, "ignore_eos": True, "temperature": 1.0}


class Metrics:
    """What /metrics says now. The connection is closed, so that it is never what is counted."""

    def __init__(self, served: Served) -> None:
        with urllib.request.urlopen(f"{served.url}/metrics") as answer:
            self.text = answer.read().decode()

    def __call__(self, name: str, label: str = "") -> float:
        """Summed over what the pattern of a label leaves open."""
        found = re.findall(rf"^tessera:{name}(?:{{[^}}]*{label}[^}}]*}})? (\S+)$", self.text, re.MULTILINE)
        assert found
        return sum(map(float, found))


def held(served: Served) -> list[float]:
    metrics = Metrics(served)
    return [metrics(name) for name in HELD]


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def kept(served: Served) -> tuple[float, int, int]:
    """Tasks of the front end, and the descriptors of both processes."""
    return Metrics(served)("asyncio_tasks"), open_files(served.process.pid), open_files(served.engine_pid())


async def at_rest(served: Served) -> float:
    """Until nothing is held; the seconds it took."""
    return await until(lambda: not any(held(served)), 20)


@pytest.mark.parametrize("count", [64, pytest.param(2000, marks=pytest.mark.nightly)])
async def test_streams_aborted_at_random_moments_leave_nothing(tmp_path: Path, count: int) -> None:
    """The full figure: pytest tests/e2e/test_aborted.py --nightly=all -s."""
    with Served(["--max-num-seqs", str(MAX_RUNNING)], tmp_path / "log") as served:
        engine = served.engine_pid()
        await Leaving(served.port, asking, AT_ONCE, seed=1).visits(8)
        await at_rest(served)
        before = kept(served)
        first = Metrics(served)

        leaving, began = Leaving(served.port, asking, AT_ONCE), time.monotonic()
        visits = asyncio.create_task(leaving.visits(count))
        await until(lambda: all(held(served)), 20)
        assert all(now > then for now, then in zip(kept(served)[:2], before[:2], strict=True))
        await visits
        seconds = time.monotonic() - began
        rest = await at_rest(served)
        settled = await until(lambda: kept(served) == before, 20)
        last = Metrics(served)
        made = last("generation_tokens_total") - first("generation_tokens_total")
        print(
            f"{count} streams in {seconds:.1f} s, {leaving.silent} left without a token; {made:.0f} tokens made, "
            f"{leaving.read} read; at rest {rest:.2f} s after the last left, tasks and descriptors {before} again "
            f"{settled:.2f} s later"
        )
        assert 0 < leaving.silent < count / 2
        # Of each answer less than half is wanted; all of it would be made if nobody were told that its client left.
        assert leaving.read <= made < 0.6 * count * NUM_TOKENS
        # One may be answered in full before it is known that its client left with a few tokens to go.
        aborted = last("request_success_total", '"abort"') - first("request_success_total", '"abort"')
        assert aborted >= 0.9 * (count - leaving.silent)
        assert last("request_success_total", '"(?:stop|error)"') == 0
        assert served.engine_pid() == engine
