"""Between token ids and logits a model of any family calls ops, attention layers and views, all of which a platform may
replace, and has its launch choose the tokens that go on to the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tessera.layers.build import Build
from tessera.platform import BoundOps
from tessera.platform.launch import Launch
from tests.engine.platforms.test_tokens_on_every_platform import prompts
from tests.platforms.engine_run import EngineRun
from tests.platforms.mixed_model import save_mixed
from tests.platforms.mixed_plugin import MIXED_PLUGIN
from tests.platforms.tiny_models import FAMILIES, save_family


class Outside(TorchDispatchMode):
    """What the model's methods call outside ops and mixers, by method."""

    def __init__(self) -> None:
        super().__init__()
        self.called: dict[str, set[str]] = {}
        self.method: str | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to say so would load the compiler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.method is not None and not func.is_view:
            self.called.setdefault(self.method, set()).add(str(func))
        return func(*args, **(kwargs or {}))

    @contextmanager
    def within(self, method: str | None) -> Iterator[None]:
        outer, self.method = self.method, method
        try:
            yield
        finally:
            self.method = outer

    def wrapped(self, call: Callable[..., Any], method: str | None) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self.within(method):
                return call(*args, **kwargs)

        return wrapper


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Outside:
    """Sees no op and no mixer that is bound from now on, and no launch."""
    mode, bind, mixer = Outside(), BoundOps.bind, Build.mixer

    def bind_unseen(ops: BoundOps, name: str, spec: Any) -> Any:
        return mode.wrapped(bind(ops, name, spec), None)

    def mixer_unseen(build: Build, spec: Any, weights: Any) -> Any:
        bound = mixer(build, spec, weights)
        monkeypatch.setattr(bound, "fused", mode.wrapped(bound.fused, None))
        return bound

    monkeypatch.setattr(BoundOps, "bind", bind_unseen)
    monkeypatch.setattr(Build, "mixer", mixer_unseen)
    monkeypatch.setattr(Launch, "select_logits", mode.wrapped(Launch.select_logits, None))
    return mode


@pytest.fixture(params=[*FAMILIES, "mixed"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return save_mixed(tmp_path) if request.param == "mixed" else save_family(request.param, tmp_path)


@pytest.mark.parametrize("platform", ["cpu", "strict"])
def test_a_model_calls_ops_mixers_and_views(model: Path, platform: str, outside: Outside) -> None:
    plugins = [MIXED_PLUGIN] if model.name == "mixed" else []
    with EngineRun(model, platform, plugins=plugins) as run:
        served = run.executor.runner.model
        for method in ("embed", "forward", "finish", "logits"):
            setattr(served, method, outside.wrapped(getattr(served, method), method))
        with outside:
            run.ask(prompts(5, seed=18), 4)
            served.logits(torch.zeros(2, served.facts.hidden_size))
    assert outside.called == {}
