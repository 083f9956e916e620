"""The tiny models, made once; what each answers when it is asked alone; and the platforms an answer must not depend
on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import save_family

Start = Callable[..., EngineRun]
Alone = Callable[..., list[int]]
STRICTEST = "strict"


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_family("llama", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_family("mixtral", tmp_path_factory.mktemp("models"))


# Each platform, and each number of steps in flight; the platform that forgives least has both. The other pairs are of
# `nightly`: there a platform runs at the depth that another has each day.
PLACES = [("cpu", 2), ("reference", 1), (STRICTEST, 1), (STRICTEST, 2), ("strict-separate", 2)]
OTHER_PLACES = [("cpu", 1), ("reference", 2), ("strict-separate", 1)]
# What the engine does on fakechip it does on strict each day; fakechip's own rules have tests and the kit of their own.
FAKECHIP = [("fakechip", 2), ("fakechip-static", 2)]


@pytest.fixture(
    params=[
        *PLACES,
        *(pytest.param(place, marks=pytest.mark.nightly) for place in OTHER_PLACES),
        *(pytest.param(place, marks=(pytest.mark.compiler, pytest.mark.nightly)) for place in FAKECHIP),
    ],
    ids=lambda at: f"{at[0]}-depth{at[1]}",
)
def place(request: pytest.FixtureRequest) -> tuple[str, int]:
    """Where an engine runs: the platform, and the steps in flight."""
    return request.param


@pytest.hookimpl(tryfirst=True)  # before the nightly tests are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where a test has parameters beside its place, the values take turns at the two depths of the strictest platform,
    so that each pair of a value with a platform and of a value with a depth is there, but not all three at once."""
    values: Counter[tuple[str, int]] = Counter()
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        match item.callspec.params:
            case {"place": (platform, depth), **others} if platform == STRICTEST and others:
                test = item.nodeid.partition("[")[0], depth
                if (values[test] + depth) % 2:
                    item.add_marker(pytest.mark.nightly)
                values[test] += 1


@pytest.fixture
def start(llama: Path, place: tuple[str, int]) -> Iterator[Start]:
    """start(max_num_seqs=4): an engine of the tiny Llama at this place, closed after the test."""
    runs: list[EngineRun] = []

    def make(model: Path = llama, **options: Any) -> EngineRun:
        platform, depth = place
        runs.append(EngineRun(model, platform, **{"depth": depth, **options}))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


@pytest.fixture(scope="session")
def alone(llama: Path) -> Iterator[Alone]:
    """alone(prompt, 12, seed=3, temperature=1.0): what the tiny Llama answers on the reference platform where nothing
    else runs."""
    known: dict[str, list[int]] = {}
    with EngineRun(llama, "reference", enable_prefix_caching=False) as run:

        def answer(prompt: list[int], max_tokens: int = 12, **params: Any) -> list[int]:
            question = repr((prompt, max_tokens, sorted(params.items())))
            if question not in known:
                key = run.add(prompt, max_tokens, **params)
                run.finish()
                known[question] = run.answers[key]
            return list(known[question])

        yield answer
