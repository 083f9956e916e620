from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest


@pytest.fixture
def write(tmp_path):
    """Writes a GGUF file with the gguf package. It gives the path; that of the first file of a split."""

    def write(fill=None, tensors=None, name="model", alignment=None, split=0):
        """fill: called with the writer, to add keys. tensors: arrays by name, or pairs of bytes and a type.
        split: the most tensors of a file."""
        writer = gguf.GGUFWriter(tmp_path / f"{name}.gguf", "llama", split_max_tensors=split)
        if alignment is not None:
            writer.add_custom_alignment(alignment)
        if fill is not None:
            fill(writer)
        for key, value in (tensors if tensors is not None else TENSORS).items():
            data, kind = value if isinstance(value, tuple) else (value, None)
            writer.add_tensor(key, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return min(Path(tmp_path).glob(f"{name}*.gguf"))

    return write


_random = np.random.default_rng(0)
TENSORS = {
    "token_embd.weight": _random.standard_normal((5, 64)).astype(np.float32),
    "blk.0.attn_norm.weight": _random.standard_normal(64).astype(np.float32),
    "blk.0.ffn_up.weight": _random.standard_normal((3, 7, 32)).astype(np.float16),
    "blk.0.ffn_down.weight": (
        gguf.quants.quantize(_random.standard_normal((6, 96)).astype(np.float32), gguf.GGMLQuantizationType.Q4_0),
        gguf.GGMLQuantizationType.Q4_0,
    ),
}
"""None is square, and their sizes need padding."""
