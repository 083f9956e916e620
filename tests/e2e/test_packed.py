"""A quantized checkpoint as its user serves it: over HTTP and in Python, and what a broken one says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from safetensors.torch import load_file, save_file

from tessera import LLM, SamplingParams
from tests.e2e.served import Served
from tests.platforms.packed_models import save_packed
from tests.platforms.tiny_models import save_family

NAME = "model.layers.0.self_attn.q_proj"
GROUP = "quantization_config.config_groups.group_0"
APART = "the folder's files and config.json do not belong together."


@pytest.fixture
def packed(tmp_path: Path) -> tuple[Path, Path]:
    """W4A16 in groups of 8, and the model that it stands for."""
    return save_packed(save_family("llama", tmp_path), tmp_path, "w4a16")


def test_answers_over_http_are_those_of_the_weights_it_stands_for(packed: tuple[Path, Path], tmp_path: Path) -> None:
    folder, meant = packed
    flags = ["--dtype", "float32", "--served-model-name", "m"]
    with (
        Served([str(folder), *flags], tmp_path / "log") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        said = client.completions.create(model="m", prompt="Hello", max_tokens=12, temperature=0).choices[0].text
    with LLM(meant, dtype="float32", kv_cache_memory_bytes=1 << 21) as llm:
        (expected,) = llm.generate("Hello", SamplingParams(max_tokens=12, temperature=0), use_tqdm=False)
    assert said == expected.outputs[0].text != ""


def with_config(folder: Path, path: str, value: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    *way, last = path.split(".")
    place = config
    for name in way:
        place = place[name]
    place[last] = value
    (folder / "config.json").write_text(json.dumps(config))


def with_tensor(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    """tensor: None leaves it out."""
    tensors = {**load_file(folder / "model.safetensors"), name: tensor}
    save_file({name: one for name, one in tensors.items() if one is not None}, folder / "model.safetensors")


# The first is found before an engine starts, the second by the engine's process. The lines of others are tested without
# processes, in tests/unit/quantization/test_compressed_tensors.py and tests/engine/platforms/test_packed.py.
BREAK = {
    "bits": (
        lambda folder: with_config(folder, f"{GROUP}.weights.num_bits", 9),
        f"{GROUP}.weights.num_bits in config.json is 9, which is not supported; it can be 2, 3, 4, 5, 6, 7, 8.",
    ),
    "scale": (
        lambda folder: with_tensor(folder, f"{NAME}.weight_scale", None),
        f"the checkpoint has no '{NAME}.weight_scale', which this architecture needs; {APART}",
    ),
}


@pytest.mark.parametrize("broken", BREAK)
def test_a_broken_one_ends_serve_with_one_line_and_exit_code_3(packed: tuple[Path, Path], broken: str) -> None:
    damage, message = BREAK[broken]
    damage(packed[0])
    command = [sys.executable, "-m", "tessera.cli", "serve", str(packed[0]), "--platform", "cpu", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.endswith(message)
    assert "Traceback" not in done.stderr
