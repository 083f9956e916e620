"""Sizes that only config.json states, and no file bounds, are refused before any memory is taken for them."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest

from tessera.config import build_config
from tessera.engine.child import IN_PROCESS
from tessera.engine.engine import Engine
from tessera.errors import MemoryBudgetError
from tessera.layers.attention import RotaryTable
from tessera.layers.rotary import Rope
from tests.models.tiny import write_tiny_model

MEMORY = 2**30


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def limited():
    """What is taken at all the same fails at once, instead of bringing the machine down."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"intermediate_size": 2**24, "num_hidden_layers": 64}, "the random weights take"),
        ({"vocab_size": 2**24, "hidden_size": 7200}, "the random weights take"),
        ({"num_hidden_layers": 2, "head_dim": 2**14, "max_position_embeddings": 2**24}, "the rotary table for"),
    ],
)
def test_random_weights_of_any_size_are_refused_in_one_line(model, limited, fields, what):
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**settings, **fields}))
    try:
        config = build_config(model=str(model), platform="cpu", load_format="dummy", kv_cache_memory_bytes=2**22)
        with pytest.raises(MemoryBudgetError) as caught:
            Engine(config, lambda progress: None, executor=IN_PROCESS)
    finally:
        (model / "config.json").write_text(json.dumps(settings))
    assert what in caught.value.message
    assert caught.value.message.isprintable()


def test_a_rotary_table_larger_than_the_devices_memory_is_not_made(limited):
    device = SimpleNamespace(target="cpu", memory=lambda: SimpleNamespace(free=2**30))
    table = RotaryTable(SimpleNamespace(device=device))
    with pytest.raises(MemoryBudgetError, match="rotary table for 16,777,216 tokens takes 12.0 GiB, and 1.0 GiB"):
        table.table(Rope(dim=128), 2**24)
    assert table.table(Rope(dim=128), 64).shape == (64, 128)
