"""A checkpoint that is incomplete, broken or of another model: one line that says so, on every rank."""

from __future__ import annotations

import json
import os
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from tessera.config import build_config
from tessera.config.model_folder import MAX_HEADER
from tessera.errors import ModelError
from tessera.loader.checkpoint import Safetensors
from tests.models.loader.folders import INDEX, split

NAME = "model.layers.1.mlp.up_proj.weight"


def refusal(call):
    with pytest.raises(ModelError) as raised:
        call()
    message = str(raised.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


@pytest.fixture
def load(built):
    """Loads a folder and returns what it was refused with."""

    def refused(folder, family="llama", rank=0, size=1, **differs):
        return refusal(lambda: built(family, rank, size, **differs).load(Safetensors(str(folder))))

    return refused


def test_a_missing_tensor(checkpoint, load):
    folder, tensors = checkpoint()
    del tensors[NAME]
    split(folder, [tensors])
    assert f"the checkpoint has no '{NAME}'" in load(folder)


@pytest.mark.parametrize(("rank", "size"), [(0, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize(
    "name",
    [
        NAME,
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.1.input_layernorm.weight",
        "model.embed_tokens.weight",
        "lm_head.weight",
    ],
)
@pytest.mark.parametrize("longer", [-2, 2])
@pytest.mark.parametrize("dimension", [0, -1])
def test_a_wrong_shape(checkpoint, load, name, rank, size, longer, dimension):
    folder, tensors = checkpoint()
    shape = list(tensors[name].shape)
    shape[dimension] += longer
    split(folder, [{**tensors, name: torch.zeros(shape)}])
    message = load(folder, rank=rank, size=size)
    assert message.startswith(
        f"'{name}' has shape {tuple(shape)} where config.json implies {tuple(tensors[name].shape)}"
    )


def test_a_wrong_expert(checkpoint, load):
    folder, tensors = checkpoint("mixtral")
    name = "model.layers.1.block_sparse_moe.experts.7.w2.weight"
    split(folder, [{**tensors, name: tensors[name].T.contiguous()}])
    assert load(folder, "mixtral", rank=1, size=2).startswith(f"'{name}' has shape (28, 20)")


def test_more_dimensions_than_a_matrix(checkpoint, load):
    folder, tensors = checkpoint()
    split(folder, [{**tensors, NAME: tensors[NAME][None]}])
    assert "has shape (1, 28, 20)" in load(folder)


@pytest.fixture
def two_files(checkpoint):
    folder, tensors = checkpoint()
    split(folder, [dict(list(tensors.items())[number::2]) for number in range(2)])
    return folder


def test_a_missing_file(two_files, load):
    (two_files / "model-00002-of-00002.safetensors").unlink()
    assert load(two_files).endswith(
        f"{INDEX}' names model-00002-of-00002.safetensors, which is not there; download it again."
    )


@pytest.mark.parametrize("left", [0, 7, 100, -1])
def test_a_truncated_file(two_files, load, left):
    file = two_files / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:left])
    assert "model-00002-of-00002.safetensors' cannot be read (" in load(two_files)


def test_a_file_of_something_else(checkpoint, load):
    folder, _ = checkpoint()
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n" * 3)
    assert "model.safetensors' cannot be read (" in load(folder)


@pytest.mark.parametrize("content", ["", "[]", "{}", "null", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', "\x00"])
def test_an_index_that_is_none(two_files, load, content):
    (two_files / INDEX).write_text(content)
    assert f"{INDEX}' is not a safetensors index: " in load(two_files)


def test_an_index_with_nothing_in_it(two_files, load):
    (two_files / INDEX).write_text('{"weight_map": {}}')
    assert load(two_files).endswith(f"{INDEX}' names no tensor; download it again.")


def test_an_index_that_is_wrong_about_a_file(two_files, load):
    index = json.loads((two_files / INDEX).read_text())
    there = index["weight_map"][NAME]
    other = next(file for file in index["weight_map"].values() if file != there)
    index["weight_map"][NAME] = other
    (two_files / INDEX).write_text(json.dumps(index))
    assert load(two_files) == f"{INDEX} says that {other} has '{NAME}', but it has not; download both."


def test_an_index_reads_nothing_outside_the_folder(two_files, load, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    save_file({NAME: torch.zeros(28, 20)}, elsewhere / "secret.safetensors")
    index = json.loads((two_files / INDEX).read_text())
    index["weight_map"][NAME] = str(elsewhere / "secret.safetensors")
    (two_files / INDEX).write_text(json.dumps(index))
    assert "secret.safetensors', which is no *.safetensors beside it; download both." in load(two_files)


def test_one_name_in_two_files(two_files, load):
    """Without the index nothing says which of the two is meant, not even if they are equal."""
    (two_files / INDEX).unlink()
    first, second = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    tensors = load_file(two_files / first)
    name = next(iter(tensors))
    save_file({**load_file(two_files / second), name: tensors[name]}, two_files / second)
    assert f"'{name}' is in both {first} and {second} of '" in load(two_files)


def test_no_safetensors(checkpoint, load):
    folder, _ = checkpoint()
    (folder / "model.safetensors").unlink()
    assert load(folder).startswith("no *.safetensors in '")
    message = refusal(lambda: build_config(model=str(folder), skip_tokenizer_init=True, platform="a.b:C"))
    assert "has no *.safetensors" in message
    (folder / "pytorch_model.bin").touch()
    message = refusal(lambda: build_config(model=str(folder), skip_tokenizer_init=True, platform="a.b:C"))
    assert "has its weights as *.bin, which are not read because such files can run code; convert them" in message


# ---- files that only seem to be weights --------------------------------------


def header(content, length=None):
    """A file that begins with a header."""
    return struct.pack("<Q", len(content) if length is None else length) + content


HEADERS = {
    "nested objects": header(b'{"a":' * 10**5 + b"1" + b"}" * 10**5),
    "nested lists": header(b'{"a":' + b"[" * 10**5),
    "nested metadata": header(b'{"__metadata__":' + b'{"a":' * 10**5),
    "no object": header(b"[]"),
    "no text": header(b"\xff" * 64),
    "longer than memory": header(b"{}", 2**63),
    "longer than the file": header(b"{}", 2**20),
    "more bytes than there are": header(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}') + bytes(4),
    "more elements than can be": header(
        b'{"a":{"dtype":"F32","shape":[9223372036854775807,9223372036854775807],"data_offsets":[0,4]}}'
    ),
    "an unknown dtype": header(b'{"a":{"dtype":"X\\n","shape":[1],"data_offsets":[0,4]}}') + bytes(4),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_a_header_that_is_none(checkpoint, load, kind):
    folder, _ = checkpoint()
    (folder / "model.safetensors").write_bytes(HEADERS[kind])
    assert "model.safetensors' cannot be read (" in load(folder)


def test_a_header_has_a_size(checkpoint, load):
    folder, _ = checkpoint()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(header(b"{}", MAX_HEADER + 1))
        file.truncate(2 * MAX_HEADER)
    assert "(its header has more than 32 MiB)" in load(folder)


@pytest.mark.parametrize("name", ["model-00002-of-00002.safetensors", INDEX])
def test_a_named_pipe_is_not_waited_for(two_files, load, name):
    (two_files / name).unlink()
    os.mkfifo(two_files / name)
    assert f"{name}' is a named pipe, not a file" in load(two_files)


def test_weights_may_be_links_out_of_the_folder(checkpoint, built, tmp_path_factory):
    folder, _ = checkpoint()
    file = folder / "model.safetensors"
    file.symlink_to(file.rename(tmp_path_factory.mktemp("elsewhere") / "weights.safetensors"))
    assert built().load(Safetensors(str(folder))).arena.nbytes > 0


def test_a_snapshot_of_the_hub_links_to_its_blobs(checkpoint, built, tmp_path_factory):
    folder, _ = checkpoint()
    repository = tmp_path_factory.mktemp("cache") / "models--org--name"
    (repository / "snapshots").mkdir(parents=True)
    snapshot = folder.rename(repository / "snapshots" / "0123abcd")
    (repository / "blobs").mkdir()
    (snapshot / "model.safetensors").rename(repository / "blobs" / "4567")
    (snapshot / "model.safetensors").symlink_to("../../blobs/4567")
    assert built().load(Safetensors(str(snapshot))).arena.nbytes > 0
