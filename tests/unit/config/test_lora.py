"""An adapter's folder: what is read of it, and what is refused, each with one line."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from safetensors.numpy import save_file

from tessera.config.lora import Adapter, read_adapter
from tessera.errors import ModelError

SETTINGS = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}
LAYER = "model.layers.0.self_attn.q_proj"
A, B = (f"base_model.model.{LAYER}.lora_{half}.weight" for half in "AB")
SHAPES = {A: (4, 24), B: (16, 4)}


@pytest.fixture
def folder(tmp_path):
    """Writes an adapter's folder. settings: None leaves the file out, as None of a shape leaves the tensor out."""

    def write(settings=SETTINGS, shapes=SHAPES, name="adapter_model.safetensors"):
        if settings is not None:
            said = settings if isinstance(settings, str) else json.dumps(settings)
            (tmp_path / "adapter_config.json").write_text(said)
        if name is not None:
            save_file({one: np.zeros(shape, np.float32) for one, shape in shapes.items()}, tmp_path / name)
        return str(tmp_path)

    return write


def test_an_adapter_says_its_layers_and_its_scale(folder):
    adapter = read_adapter(folder(), 16)
    assert (adapter.rank, adapter.scale, adapter.layers) == (4, 2.0, {LAYER: (24, 16)})


def test_with_rslora_the_scale_is_over_the_root_of_the_rank(folder):
    assert read_adapter(folder({**SETTINGS, "use_rslora": True}), 16).scale == 4.0


def test_settings_of_peft_that_change_nothing_are_accepted(folder):
    more = {"use_dora": False, "modules_to_save": None, "rank_pattern": {}, "init_lora_weights": True}
    assert read_adapter(folder({**SETTINGS, **more, "target_modules": "all-linear"}), 4).rank == 4


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (None, "has no adapter_config.json, so it is not an adapter's folder"),
        ("[]", "is not a JSON object"),
        ({**SETTINGS, "peft_type": "IA3"}, "is an adapter of peft_type IA3; only LORA is supported"),
        ({**SETTINGS, "use_dora": True}, "sets use_dora in adapter_config.json, which is not supported"),
        ({**SETTINGS, "bias": "all"}, "sets bias in"),
        ({**SETTINGS, "modules_to_save": ["lm_head"]}, "sets modules_to_save in"),
        ({**SETTINGS, "rank_pattern": {"q_proj": 8}}, "sets rank_pattern in"),
        ({**SETTINGS, "alpha_pattern": {"q_proj": 8}}, "sets alpha_pattern in"),
        ({**SETTINGS, "r": 0}, "r in adapter_config.json must be a whole number of at least 1"),
        ({**SETTINGS, "r": True}, "r in adapter_config.json must be a whole number"),
        ({**SETTINGS, "r": 17}, "has rank 17, but --max-lora-rank is 16; raise it to 17"),
        ({**SETTINGS, "lora_alpha": "8"}, "lora_alpha in adapter_config.json must be a number"),
        ({**SETTINGS, "use_rslora": 1}, "use_rslora in adapter_config.json must be true or false"),
        ({**SETTINGS, "init_lora_weights": "pissa"}, "sets init_lora_weights in"),
        ({**SETTINGS, "kasa_config": {"r": 4}}, "sets kasa_config in"),
        ({**SETTINGS, "r": 8}, r"needs lora_A \[8, inputs\] and lora_B \[outputs, 8\]"),
    ],
)
def test_settings_that_cannot_be_served_are_refused(folder, settings, what):
    with pytest.raises(ModelError, match=what) as refused:
        read_adapter(folder(settings), 16)
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("shapes", "what"),
    [
        ({}, "holds no tensor"),
        ({A: (4, 24)}, r"but has \[4, 24\] and none"),
        ({**SHAPES, B: (16, 3)}, r"but has \[4, 24\] and \[16, 3\]"),
        ({**SHAPES, "base_model.model.lm_head.weight": (2, 2)}, "has 'base_model.model.lm_head.weight', which is not"),
        ({**SHAPES, A.replace("lora_A", "lora_magnitude_vector"): (4,)}, "lora_magnitude_vector"),
    ],
)
def test_weights_that_cannot_be_served_are_refused(folder, shapes, what):
    with pytest.raises(ModelError, match=what) as refused:
        read_adapter(folder(shapes=shapes), 16)
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("settings", "targeted"),
    [
        ({"target_modules": ["v_proj"]}, False),
        ({"target_modules": ["proj"]}, False),
        ({"target_modules": ["self_attn.q_proj", "v_proj"]}, True),
        ({"target_modules": [LAYER]}, True),
        ({"target_modules": "all-linear"}, True),
        ({"target_modules": None}, True),
        ({"exclude_modules": ["q_proj"]}, False),
        ({"target_modules": "all-linear", "exclude_modules": [LAYER]}, False),
        ({"exclude_modules": ["v_proj"]}, True),
        ({"layers_to_transform": [0, 3]}, True),
        ({"layers_to_transform": 0}, True),
        ({"layers_to_transform": [1]}, False),
        ({"layers_to_transform": 1}, False),
        ({"target_modules": [LAYER], "layers_to_transform": 1}, True),
    ],
)
def test_weights_of_layers_that_the_settings_do_not_target_are_refused(folder, settings, targeted):
    """peft leaves them out."""
    where = folder({**SETTINGS, **settings})
    if targeted:
        assert list(read_adapter(where, 16).layers) == [LAYER]
        return
    with pytest.raises(ModelError, match="has weights for '.*q_proj', which adapter_config.json does not target"):
        read_adapter(where, 16)


def test_weights_that_are_no_floats_are_refused(folder, tmp_path):
    where = folder()
    save_file({A: np.zeros(SHAPES[A], np.int8)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ModelError, match="as I8, which is not supported; save it as F32, F16 or BF16"):
        read_adapter(where, 16)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_only_regular_files_are_read(folder, tmp_path, name):
    where, path = folder(), tmp_path / name
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ModelError, match="is a named pipe, not a file that can be read"):
        read_adapter(where, 16)
    path.unlink()
    path.symlink_to(name)
    with pytest.raises(ModelError, match="its links go in a circle|Too many levels"):
        read_adapter(where, 16)
    path.unlink()
    path.symlink_to("/missing")
    with pytest.raises(ModelError, match="is a link to what is not there"):
        read_adapter(where, 16)


def test_what_is_no_safetensors_file_is_not_read(folder, tmp_path):
    with pytest.raises(ModelError, match="There is no folder"):
        read_adapter(str(tmp_path / "missing"), 16)
    where = folder(name=None)
    with pytest.raises(ModelError, match="has no adapter_model.safetensors; save the adapter with peft"):
        read_adapter(where, 16)
    (tmp_path / "adapter_model.bin").write_bytes(b"pickle")
    with pytest.raises(ModelError, match="other formats are not read, because such files can run code"):
        read_adapter(where, 16)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(ModelError, match=r"cannot be read \(its header has more than 32 MiB\)"):
        read_adapter(where, 16)
    (tmp_path / "adapter_model.safetensors").write_bytes(bytes(100))
    with pytest.raises(ModelError, match="cannot be read"):
        read_adapter(where, 16)


def test_a_target_needs_weights_where_the_model_has_such_a_layer(folder):
    """peft passes over targets that a model does not have."""
    adapter = read_adapter(folder({**SETTINGS, "target_modules": ["q_proj", "v_proj"]}), 16)
    assert adapter.mismatch({LAYER: (24, 16)}) is None
    said = adapter.mismatch({LAYER: (24, 16), LAYER.replace("q_proj", "v_proj"): (24, 16)})
    assert said == "it names 'v_proj' in target_modules, but has no weights for it"


def test_an_adapter_of_another_model_does_not_fit(folder):
    adapter = read_adapter(folder(), 16)
    assert adapter.mismatch({LAYER: (24, 16), "other": (1, 1)}) is None
    assert "not a linear layer of this model" in str(adapter.mismatch({"other": (24, 16)}))
    said = str(adapter.mismatch({LAYER: (24, 32)}))
    assert said.endswith("has 16 outputs and 24 inputs, but the model's has 32 outputs and 24 inputs")
    assert isinstance(adapter, Adapter)
