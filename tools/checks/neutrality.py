"""Bans vendor names in core: in code, comments and docstrings."""

from __future__ import annotations

import re
from pathlib import Path

VENDOR_WORDS = (
    "cuda", "rocm", "hip", "nccl", "rccl", "npu", "hpu", "xpu", "tpu",
    "nvidia", "amd", "intel", "ascend", "gaudi", "neuron", "spyre", "xla", "triton",
)  # fmt: skip
# Underscores separate words, so that an attribute or flag such as is_<vendor> is found as well.
_VENDOR = re.compile(rf"(?<![a-z0-9])({'|'.join(VENDOR_WORDS)})(?![a-z0-9])", re.IGNORECASE)
# As a word of its own it restricts the kind of device; in an option name (gpu_memory_utilization) it is only spelling.
_KIND_OF_DEVICE = re.compile(r"(?<![\w-])(gpu)(?![\w-])", re.IGNORECASE)


def vendor_words(root: Path) -> list[str]:
    """Lines of core's Python files that name a vendor, its software or its kind of chip, without exceptions."""
    findings = []
    for path in sorted((root / "core/tessera").rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            for match in (*_VENDOR.finditer(line), *_KIND_OF_DEVICE.finditer(line)):
                findings.append(f"{path.relative_to(root).as_posix()}:{number}: names {match[1]!r}")
    return findings
