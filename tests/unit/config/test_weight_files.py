"""Which files hold a model's weights: the same for a folder and for a repository that is downloaded."""

from __future__ import annotations

import json

import pytest

from tessera.config.model_folder import INDEX
from tessera.config.weight_files import find_weights, weight_files
from tessera.errors import ModelError

SINGLE = "model.safetensors"
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
OTHER = ["ema-00001-of-00002.safetensors", "ema-00002-of-00002.safetensors"]
# Weights of other purposes or in other forms, as folders and repositories have them.
STRAYS = [
    "adapter_model.safetensors",
    "consolidated.safetensors",
    "model.fp16.safetensors",
    "optimizer.safetensors",
    "run2.safetensors",
]


def indexed(*files):
    return json.dumps({"weight_map": {f"tensor.{number}": file for number, file in enumerate(files)}})


def chosen(folder, *names, index=None):
    """What is read of a folder with these files; the names alone give the same."""
    for name in names:
        (folder / name).write_text("")
    if index is not None:
        (folder / INDEX).write_text(index)
        names = (*names, INDEX)
    found = find_weights(folder)
    assert found == weight_files(folder, names)
    return found


@pytest.mark.parametrize(
    ("files", "index", "read"),
    [
        ([SINGLE, *STRAYS], None, [SINGLE]),
        ([SINGLE, *SHARDS], None, [SINGLE]),
        ([SINGLE, *SHARDS], indexed(*SHARDS), [SINGLE]),
        ([SINGLE, "b.safetensors", "run2.safetensors"], indexed(SINGLE, "b.safetensors"), [SINGLE, "b.safetensors"]),
        ([SINGLE, "run2.safetensors"], indexed(SINGLE, SINGLE), [SINGLE]),
        ([*SHARDS, *STRAYS], indexed(*SHARDS), SHARDS),
        ([*SHARDS, *OTHER], indexed(*SHARDS), SHARDS),
        (["consolidated.safetensors"], indexed("consolidated.safetensors"), ["consolidated.safetensors"]),
        (SHARDS, None, SHARDS),
        ([*SHARDS, *STRAYS], None, SHARDS),
        (["model.safetensors-00001-of-00001.safetensors"], None, ["model.safetensors-00001-of-00001.safetensors"]),
        (["a.safetensors", "adapter_model.safetensors", "consolidated.00.safetensors"], None, ["a.safetensors"]),
    ],
)  # fmt: skip
def test_what_is_read(tmp_path, files, index, read):
    found = chosen(tmp_path, *files, index=index)
    assert found.files == sorted(read)
    by_index = index is not None and (SINGLE not in read or SINGLE in index)
    assert (found.index is not None) == by_index


@pytest.mark.parametrize(
    ("files", "index", "note"),
    [
        ([SINGLE, "adapter_model.safetensors", "consolidated.safetensors"], None, None),
        ([SINGLE, "run2.safetensors"], None, f"{SINGLE} alone; run2.safetensors is not read"),
        ([SINGLE, *SHARDS], indexed(*SHARDS), f"{SINGLE} alone; {' and '.join(SHARDS)} are not read"),
        (
            [*SHARDS, *OTHER, *(f"run{n}.safetensors" for n in (2, 3))],
            indexed(*SHARDS),
            f"{' and '.join(SHARDS)} alone; {', '.join([*OTHER, 'run2.safetensors'])} and 1 more are not read",
        ),
    ],
)
def test_what_is_left_is_said(tmp_path, files, index, note):
    expected = [] if note is None else [f"weights are read from {note}"]
    assert list(chosen(tmp_path, *files, index=index).notes) == expected


@pytest.mark.parametrize(
    ("files", "index", "message"),
    [
        (["a.safetensors", "b.safetensors"], None, f"has a.safetensors and b.safetensors, and neither {SINGLE} nor"),
        ([*SHARDS, *OTHER], None, f"has {', '.join([*OTHER, SHARDS[0]])} and 1 more, and neither"),
        (SHARDS[1:], None, f"{SHARDS[1]}' names {SHARDS[0]}, which is not there; download it again."),
        ([*SHARDS[:1], "run2.safetensors"], None, f"{SHARDS[0]}' names {SHARDS[1]}, which is not there"),
        (SHARDS[:1], indexed(*SHARDS), f"{INDEX}' names {SHARDS[1]}, which is not there; download it again."),
        (["run2.safetensors"], indexed(SINGLE), f"{INDEX}' names {SINGLE}, which is not there; download it again."),
        ([SINGLE], "{", f"{INDEX}' is not a safetensors index: "),
    ],
)
def test_what_is_refused(tmp_path, files, index, message):
    with pytest.raises(ModelError) as raised:
        chosen(tmp_path, *files, index=index)
    assert message in raised.value.message
    assert len(raised.value.message) < 400
