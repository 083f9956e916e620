"""The numbers of an adapter's weights, in every dtype that they may be stored in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tessera.config.lora import Adapter
from tessera.config.lora_values import check_values
from tessera.errors import ModelError

TOP_OF_BFLOAT16 = np.float32(3.3895313892515355e38)
KINDS = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@pytest.fixture
def adapter(tmp_path):
    def write(kind, *values):
        wide = np.array([0.25, *values, -3.0])
        if kind == "bfloat16":
            stored = (wide.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        else:
            stored = wide.astype(kind)
        header = {
            "__metadata__": {"format": "pt"},
            "empty": {"dtype": KINDS[kind], "shape": [0, 4], "data_offsets": [0, 0]},
            "odd": {"dtype": KINDS[kind], "shape": [stored.size], "data_offsets": [0, stored.nbytes]},
        }
        text = json.dumps(header).encode()
        path = tmp_path / "adapter_model.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text + stored.tobytes())
        return Adapter(Path(tmp_path), 4, 1.0, {}, ())

    return write


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_numbers_pass_and_what_is_none_does_not(adapter, kind, dtype):
    check_values(adapter(kind, 1.5, -6e4), dtype)
    for wrong in (np.nan, np.inf, -np.inf):
        with pytest.raises(ModelError, match=f"holds NaN or infinity in {dtype}; train it again"):
            check_values(adapter(kind, wrong), dtype)


def test_what_becomes_infinity_in_the_model_s_dtype_does_not_pass(adapter):
    check_values(adapter("float32", 7e4), "bfloat16")
    check_values(adapter("float32", TOP_OF_BFLOAT16), "bfloat16")
    check_values(adapter("bfloat16", TOP_OF_BFLOAT16), "float32")
    for value, dtype in ((7e4, "float16"), (-3.4e38, "bfloat16")):
        with pytest.raises(ModelError, match="holds NaN or infinity"):
            check_values(adapter("float32", value), dtype)
    with pytest.raises(ModelError, match="holds NaN or infinity"):
        check_values(adapter("float64", 1e39), "float32")
