"""--no-fallback, and the count of what it would forbid."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera.errors import PlatformError
from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import save_family
from tests.platforms.whole import PATH

PROMPTS = [[1, 5, 9, 12, 3], [7, 7, 2]]
LAYERS = 2


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_family("qwen2", tmp_path_factory.mktemp("no-fallback"))


def test_a_platform_with_all_kernels_serves_without_fallbacks(llama: Path) -> None:
    with EngineRun(llama, f"{PATH}:WholePlatform", no_fallback=True) as own, EngineRun(llama, "reference") as reference:
        assert own.ask(PROMPTS, 6) == reference.ask(PROMPTS, 6)
        assert (own.engine.info.fallback_ops, own.engine.stats.fallbacks) == ([], {})


def test_the_cpu_platform_has_kernels_for_all_that_requests_may_ask(llama: Path) -> None:
    asked = {"logit_bias": {5: 2.0}, "bad_words_ids": [[3, 4]], "presence_penalty": 0.5, "logprobs": 2}
    with EngineRun(llama, "cpu", no_fallback=True) as own, EngineRun(llama, "reference") as reference:
        assert own.ask(PROMPTS, 6, **asked) == reference.ask(PROMPTS, 6, **asked)
        assert (own.engine.info.fallback_ops, own.engine.stats.fallbacks) == ([], {})


@pytest.mark.parametrize(
    ("platform", "what"),
    [
        ("reference", r"op 'linear' \(n=101, k=72, dtype=float32\) would run on the reference \(no kernel\)"),
        ("strict", r"op 'embedding' \(rows=.*\) would run on the reference \(inside the kernel of 'embedding'\)"),
        (f"{PATH}:WithoutGate", r"op 'gate' \(n=.*dtype=float32\) would run on the reference \(no kernel\)"),
        (
            f"{PATH}:WithoutAttention",
            r"attention of layer 0 \(.* heads over .*\) would run on the reference \(the platform has no backend",
        ),
    ],
)
def test_what_would_fall_back_is_refused_at_the_start_in_one_line(llama: Path, platform: str, what: str) -> None:
    with pytest.raises(PlatformError, match=f"{what}.*, which --no-fallback forbids") as raised:
        EngineRun(llama, platform, no_fallback=True)
    assert "\n" not in raised.value.message


def test_a_layer_that_its_backend_declines_is_named_with_the_reason(windowed: Path) -> None:
    what = r"attention of layer 1 \(.*, window of 19\) would run on the reference \(short-sighted: no window\), which"
    with pytest.raises(PlatformError, match=what):
        EngineRun(windowed, f"{PATH}:WithoutWindows", no_fallback=True)


def test_runs_on_the_reference_are_counted_by_op(llama: Path, windowed: Path) -> None:
    with EngineRun(llama, f"{PATH}:WithoutGate") as run:
        run.ask(PROMPTS, 4)
        assert run.engine.info.fallback_ops == ["gate"]
        assert run.engine.stats.fallbacks == {"gate": LAYERS * len(run.steps)}
    with EngineRun(windowed, f"{PATH}:WithoutWindows") as run:
        run.ask(PROMPTS, 4)
        assert run.engine.info.fallback_ops == ["attention"]
        assert run.engine.stats.fallbacks == {"attention": len(run.steps)}
