"""Core at level 2 of every facet, and platforms written for levels 1, 2 and others of each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tessera.errors import PlatformError
from tessera.platform import NormSpec, Platform
from tessera.plugins import load_platform
from tessera.plugins.contract import find_members
from tests.engine.platforms.conftest import Alone
from tests.platforms.engine_run import EngineRun
from tests.platforms.leveled import API_2, CALLS, LEVELED, DefaultsNow, DefaultsThen, older_norm

PLATFORMS = {
    "platform": "Defaults", "attention": "Attention", "graph": "Graph", "launch": "Launch", "ops.core": "Ops",
    "runner": "Runner",
}  # fmt: skip
CALLED = {
    "platform": "defaults", "attention": "plan", "graph": "keys", "launch": "launches", "ops.core": "norm",
    "runner": "runner",
}  # fmt: skip
PROMPTS = [[3, 4, 5, 6, 7], [8, 9, 10]]


def path(facet: str, written: str) -> str:
    return f"tests.platforms.leveled:{PLATFORMS[facet]}{written}"


@pytest.mark.parametrize(("written", "level"), [("Then", 1), ("Now", 2)])
@pytest.mark.parametrize("facet", PLATFORMS)
def test_what_was_written_for_this_level_or_the_one_before_gives_right_tokens(
    llama: Path, alone: Alone, facet: str, written: str, level: int
) -> None:
    CALLS.clear()
    with EngineRun(llama, path(facet, written), executor=LEVELED, levels={facet: level}) as run:
        assert type(run.executor.platform).__name__.startswith("Adapted") == (level == 1)
        assert run.ask(PROMPTS, 6) == [alone(prompt, 6, seed=seed) for seed, prompt in enumerate(PROMPTS)]
    assert CALLED[facet] in CALLS


@pytest.mark.parametrize("facet", PLATFORMS)
@pytest.mark.parametrize(
    ("level", "what"),
    [
        (3, "it was written for level 3 of {}, core has 2; upgrade tessera-llm"),
        (0, "it was written for level 0 of {}, core supports 1 and 2; upgrade the plugin"),
    ],
)
def test_other_levels_are_refused_in_a_line(llama: Path, facet: str, level: int, what: str) -> None:
    with pytest.raises(PlatformError) as caught:
        EngineRun(llama, path(facet, "Now"), executor=LEVELED, levels={facet: level})
    assert caught.value.message.endswith(f"cannot be used: {what.format(facet)}.")


@pytest.mark.parametrize("facet", PLATFORMS)
def test_without_a_shim_nothing_is_wrapped_and_the_level_before_is_not_supported(facet: str) -> None:
    bare = replace(API_2, shims={})
    assert type(load_platform(path(facet, "Now"), {facet: 2}, bare)).__name__ == f"{PLATFORMS[facet]}Now"
    with pytest.raises(PlatformError, match="core supports 2; upgrade the plugin"):
        load_platform(path(facet, "Then"), {facet: 1}, bare)


def test_several_facets_at_once() -> None:
    shimmed = load_platform(path("platform", "Then"), {"platform": 1, "graph": 1, "attention": 2}, API_2)
    assert shimmed.name == "leveled"
    assert shimmed.defaults(None)["scheduler.max_num_seqs"].value == 2
    assert type(shimmed).runner is Platform.runner  # what it leaves at core's default stays there


def test_a_member_of_the_level_before_is_its_shims_and_an_error_from_this_level_on() -> None:
    assert find_members(DefaultsThen, API_2, {"platform": 1}) == []
    (found,) = find_members(DefaultsThen, API_2, {"platform": 2})
    assert str(found).endswith(":DefaultsThen defines proposals, which Platform no longer has; defaults replaced it")
    with pytest.raises(PlatformError, match="defaults replaced it"):
        load_platform(path("platform", "Then"), {"platform": 2}, API_2)
    assert find_members(DefaultsNow, API_2, {"platform": 2}) == []


def test_a_kernel_of_the_level_before_refuses_what_it_cannot_know() -> None:
    assert older_norm(NormSpec(8, "float32", 1e-6, offset=1.0)) == "it was written for a level without offset and emit"
