from __future__ import annotations

import pytest

from tests.architecture.conftest import Break
from tools.checks.neutrality import vendor_words

WORDS = [
    "cuda",
    "rocm",
    "hip",
    "nccl",
    "rccl",
    "npu",
    "hpu",
    "xpu",
    "tpu",
    "nvidia",
    "amd",
    "intel",
    "ascend",
    "gaudi",
    "neuron",
    "spyre",
    "xla",
    "triton",
]


@pytest.mark.parametrize("word", WORDS)
def test_a_comment_that_names_a_vendor_is_found(alone: Break, word: str) -> None:
    assert vendor_words(alone("core/tessera/scheduler/broken.py", f"x = 1  # as {word.upper()} does\n")) == [
        f"core/tessera/scheduler/broken.py:1: names {word.upper()!r}"
    ]


@pytest.mark.parametrize("line", ['"""For cuda."""', "tensor.is_cuda", "torch.cuda.Stream", "CUDA_HOME = 1", "a GPU."])
def test_docstrings_and_parts_of_names_are_read(alone: Break, line: str) -> None:
    assert len(vendor_words(alone("core/tessera/errors.py", f"\n{line}\n"))) == 1


@pytest.mark.parametrize("line", ["chip = ship", "gpu_memory_utilization = 0.9", "--gpu-memory-utilization", "amdahl"])
def test_words_that_only_contain_one_are_not_found(alone: Break, line: str) -> None:
    assert vendor_words(alone("core/tessera/broken.py", f"{line}\n")) == []
