"""A plan's figures are those of a start, which it does without."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tessera.config import EngineConfig, build_config
from tessera.engine.engine import Engine
from tessera.engine.plan import Plan, plan, plan_here
from tessera.errors import ModelError, PlatformError
from tessera.platform import LinearSpec
from tessera.testing import REFERENCE
from tessera_cpu.platform import CpuPlatform
from tests.platforms.cpu_kernels import available
from tests.platforms.generated import numpy_platform
from tests.platforms.tiny_models import FAMILIES, save_family

ROOT = Path(__file__).parents[3]
PLATFORMS = "tests.platforms.planned"
SAME = (
    *("platform", "device", "dtype", "weight_bytes", "num_weights", "cache_bytes"),
    *("num_cache_tokens", "max_model_len", "fallback_ops", "notes", "choices"),
)
QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 15193,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 2,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders by family; "qwen" has the shape of a real model and config.json alone."""
    folder = tmp_path_factory.mktemp("planned")
    qwen = folder / "qwen"
    qwen.mkdir()
    (qwen / "config.json").write_text(json.dumps(QWEN))
    return {"qwen": qwen, **{family: save_family(family, folder) for family in FAMILIES}}


def config_of(model: Path, platform: str = "HostMemory", **flags: Any) -> EngineConfig:
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "threads": 1, "load_format": "dummy", **flags}
    path = platform if ":" in platform else f"{PLATFORMS}:{platform}"
    return build_config(model=str(model), platform=path, skip_tokenizer_init=True, **settings)


def packed(n: int, k: int, *, bias: bool = False) -> int:
    """Bytes of a weight of the CPU platform's."""
    kernel, spec = CpuPlatform().ops(REFERENCE)["linear"].kernel, LinearSpec(n, k, "bfloat16", bias=bias)
    assert kernel is not None
    return kernel.packed_bytes(spec) or 2 * (n * k + n * bias)


def check(planned: Plan, config: EngineConfig) -> None:
    engine = Engine(dataclasses.replace(config, embedded=True))
    try:
        assert {name: getattr(planned, name) for name in SAME} == {name: getattr(engine.info, name) for name in SAME}
        assert planned.problem is None
        assert sum(group.block_bytes * group.num_blocks for group in planned.groups) == engine.info.cache_bytes
    finally:
        engine.close()


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("platform", ["HostMemory", "OwnMemory"])
def test_a_tiny_model(models: dict[str, Path], family: str, platform: str) -> None:
    config = config_of(models[family], platform, load_format="auto", dtype="float32" if family == "llama" else None)
    check(plan_here(config), config)


def test_a_real_shape_from_its_config_alone_in_a_process_of_its_own(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "core"), str(ROOT / "platforms/cpu")]))
    config = config_of(models["qwen"])
    planned = plan(config)
    check(planned, config)
    products = packed(896 + 2 * 128, 896, bias=True) + packed(896, 896) + packed(2 * 4864, 896) + packed(896, 4864)
    vocabulary = packed(15193, 896) + (0 if available() else 2 * 15193 * 896)  # oneDNN's packing is for products alone
    assert planned.weight_bytes == vocabulary + 2 * (products + 2 * 2 * 896) + 2 * 896
    assert planned.num_weights == 15193 * 896 + 2 * (896 * (2 * 896 + 3 * 4864 + 256 + 3) + 256) + 896
    (group,) = planned.groups
    assert group.block_bytes == 2 * 2 * 2 * 64 * 2 * group.block_size  # layers, K and V, heads, elements, bytes
    assert sorted(planned.requests) == [2048, 8192, 16384]
    assert planned.requests[2048] == (group.num_blocks - 1) // (2048 // group.block_size)


def test_the_dtype_is_that_of_the_files_else_of_the_config(models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**QWEN, "torch_dtype": "float16"}))
    assert plan_here(config_of(tmp_path)).dtype == "float16"
    config = json.loads((models["llama"] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "dtype": "float16"}))
    (tmp_path / "model.safetensors").hardlink_to(models["llama"] / "model.safetensors")
    assert plan_here(config_of(tmp_path)).dtype == "bfloat16"  # what the platform has for float32


def test_windowed_and_full_layers_are_groups_of_their_own(models: dict[str, Path]) -> None:
    planned = plan_here(config_of(models["qwen2"]))
    assert [(group.kind, group.window, group.layers) for group in planned.groups] == [
        ("paged", None, (0,)),
        ("window", 19, (1,)),
    ]


def test_weights_that_a_kernel_keeps_in_its_own_form(models: dict[str, Path]) -> None:
    config = config_of(models["qwen2"], "Packing")
    planned = plan_here(config)
    assert planned.weight_bytes > plan_here(config_of(models["qwen2"])).weight_bytes
    check(planned, config)


def test_a_cache_without_room_is_said_with_the_rest(models: dict[str, Path]) -> None:
    planned = plan_here(config_of(models["qwen"], kv_cache_memory_bytes=1 << 20))
    assert planned.problem is not None
    assert "one request may have 16,384; lower --max-model-len to" in planned.problem
    assert (planned.num_cache_tokens, planned.requests) == (0, {})
    assert planned.weight_bytes == plan_here(config_of(models["qwen"])).weight_bytes
    assert planned.groups[0].block_bytes > 0


def test_what_cannot_be_planned_is_one_line(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match="'numpy' brings its own model runner, which cannot plan ahead"):
        plan_here(config_of(models["llama"], numpy_platform(), dtype="float32"))
    (tmp_path / "config.json").write_text(json.dumps({**QWEN, "architectures": ["NobodyForCausalLM"]}))
    with pytest.raises((PlatformError, ModelError), match="NobodyForCausalLM"):
        plan_here(config_of(tmp_path))
