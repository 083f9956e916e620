"""GGUF files that the gguf package writes are read as they were meant."""

from __future__ import annotations

import gc
import struct
import sys
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from tessera.errors import ModelError
from tessera.gguf.file import GgufFile
from tests.unit.gguf.conftest import TENSORS
from tests.unit.gguf.raw import ARRAY, F32, TEXT, U32, gguf_file, key, text, u32, u64


def bytes_of(name):
    value = TENSORS[name]
    return (value[0] if isinstance(value, tuple) else value).tobytes()


def assert_tensors(opened):
    assert sorted(opened.tensors) == sorted(TENSORS)
    for name, tensor in opened.tensors.items():
        assert tensor.name == name
        assert opened.rows(tensor, 0, tensor.num_rows).tobytes() == bytes_of(name)


def test_keys_of_every_type(write):
    def fill(writer):
        writer.add_uint8("a.u8", 200)
        writer.add_int8("a.i8", -100)
        writer.add_uint16("a.u16", 60_000)
        writer.add_int16("a.i16", -30_000)
        writer.add_uint32("a.u32", 4_000_000_000)
        writer.add_int32("a.i32", -2_000_000_000)
        writer.add_uint64("a.u64", 2**63)
        writer.add_int64("a.i64", -(2**62))
        writer.add_float32("a.f32", 0.1)
        writer.add_float64("a.f64", 0.1)
        writer.add_bool("a.yes", True)
        writer.add_bool("a.no", False)
        writer.add_string("a.text", "größer ▁ 日本 🎉")
        writer.add_token_list(["<s>", "", "ÿ", "🎉"])
        writer.add_token_scores([0.5, -1.0, float("-inf"), 3.0])
        writer.add_token_types([3, 1, 1, 6])
        writer.add_array("a.flags", [True, False, True])

    metadata = GgufFile.open(write(fill)).metadata
    assert {key: metadata[key] for key in metadata if key.startswith("a.")} == {
        "a.u8": 200,
        "a.i8": -100,
        "a.u16": 60_000,
        "a.i16": -30_000,
        "a.u32": 4_000_000_000,
        "a.i32": -2_000_000_000,
        "a.u64": 2**63,
        "a.i64": -(2**62),
        "a.f32": float(np.float32(0.1)),
        "a.f64": 0.1,
        "a.yes": True,
        "a.no": False,
        "a.text": "größer ▁ 日本 🎉",
        "a.flags": [True, False, True],
    }
    assert metadata["general.architecture"] == "llama"
    assert metadata["tokenizer.ggml.tokens"] == ["<s>", "", "ÿ", "🎉"]
    assert metadata["tokenizer.ggml.scores"] == [0.5, -1.0, float("-inf"), 3.0]
    assert metadata["tokenizer.ggml.token_type"] == [3, 1, 1, 6]
    plain = (str, int, float, bool)
    assert all(type(value) in (*plain, list) for value in metadata.values())
    assert all(type(one) in plain for value in metadata.values() if isinstance(value, list) for one in value)


@pytest.mark.parametrize("alignment", [None, 8, 64, 4096])
def test_tensors_at_every_alignment(write, alignment):
    opened = GgufFile.open(write(alignment=alignment))
    assert_tensors(opened)
    shapes = {name: (tensor.type.name, tensor.shape) for name, tensor in opened.tensors.items()}
    assert shapes == {
        "token_embd.weight": ("F32", (5, 64)),
        "blk.0.attn_norm.weight": ("F32", (64,)),
        "blk.0.ffn_up.weight": ("F16", (3, 7, 32)),
        "blk.0.ffn_down.weight": ("Q4_0", (6, 96)),
    }
    assert all(tensor.offset % (alignment or 32) == 0 for tensor in opened.tensors.values())


def test_rows_are_those_of_the_last_dimension_and_not_copied(write):
    opened = GgufFile.open(write())
    stacked = opened.tensors["blk.0.ffn_up.weight"]
    rows = opened.rows(stacked, 6, 9)  # the last of the first matrix, and two of the second
    assert (rows.dtype, rows.shape, rows.flags.owndata) == (np.uint8, (3, 64), False)
    assert np.array_equal(rows.view(np.float16), TENSORS["blk.0.ffn_up.weight"].reshape(21, 32)[6:9])
    assert opened.rows(opened.tensors["blk.0.ffn_down.weight"], 2, 5).shape == (3, 54)
    assert opened.rows(opened.tensors["blk.0.attn_norm.weight"], 0, 1).shape == (1, 256)
    assert opened.rows(stacked, 4, 4).shape == (0, 64)


def test_a_single_number_is_a_tensor_without_dimensions(write):
    opened = GgufFile.open(write(tensors={"scale": np.array(2.5, np.float32)}))
    scale = opened.tensors["scale"]
    assert scale.shape == ()
    assert opened.rows(scale, 0, 1).view(np.float32) == [[2.5]]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_release_drops_what_no_view_uses(write):
    opened = GgufFile.open(write())
    tensor = opened.tensors["token_embd.weight"]
    rows = opened.rows(tensor, 0, 5)
    opened.release()
    assert is_mapped(opened.path)
    assert rows.tobytes() == bytes_of("token_embd.weight")
    del rows
    gc.collect()
    assert not is_mapped(opened.path)
    assert opened.rows(tensor, 0, 5).tobytes() == bytes_of("token_embd.weight")


def is_mapped(path):
    return str(path) in Path("/proc/self/maps").read_text()


def test_a_file_that_changed_is_refused(write):
    opened = GgufFile.open(write())
    opened.path.write_bytes(opened.path.read_bytes() + b"\0")
    with pytest.raises(ModelError, match="has changed since it was opened"):
        opened.rows(opened.tensors["token_embd.weight"], 0, 1)


def test_version_2_is_read(write):
    path = write()
    content = bytearray(path.read_bytes())
    content[4:8] = struct.pack("<I", 2)
    path.write_bytes(content)
    assert_tensors(GgufFile.open(path))


def test_a_large_vocabulary_is_read_quickly(tmp_path):
    tokens, merges = [f"▁{number}" for number in range(262_144)], [f"a b{number}" for number in range(500_000)]
    keys = [
        key("tokenizer.ggml.tokens", ARRAY, u32(TEXT) + u64(len(tokens)) + b"".join(map(text, tokens))),
        key("tokenizer.ggml.merges", ARRAY, u32(TEXT) + u64(len(merges)) + b"".join(map(text, merges))),
        key("tokenizer.ggml.scores", ARRAY, u32(F32) + u64(len(tokens)) + bytes(4 * len(tokens))),
        key("tokenizer.ggml.token_type", ARRAY, u32(U32) + u64(len(tokens)) + bytes(4 * len(tokens))),
    ]
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_file(keys))
    began = time.process_time()
    metadata = GgufFile.open(path).metadata
    assert time.process_time() - began < 10  # 0.25 on an idle processor
    assert metadata["tokenizer.ggml.tokens"] == tokens
    assert metadata["tokenizer.ggml.merges"] == merges
    assert len(metadata["tokenizer.ggml.scores"]) == len(metadata["tokenizer.ggml.token_type"]) == len(tokens)


def test_files_without_tensors(write):
    assert GgufFile.open(write(tensors={}, fill=lambda writer: writer.add_name("vocabulary"))).tensors == {}


# ---- splits --------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2])
def test_the_files_of_a_split_are_found_by_any_of_them(write, tmp_path, number):
    write(split=2, fill=lambda writer: writer.add_name("whole"))
    opened = GgufFile.open(tmp_path / f"model-{number:05}-of-00002.gguf")
    assert opened.path.name == "model-00001-of-00002.gguf"
    assert opened.metadata["general.name"] == "whole"
    assert {tensor.file for tensor in opened.tensors.values()} == {0, 1}
    assert_tensors(opened)


def test_each_file_of_a_split_is_wanted(write, tmp_path):
    path = write(split=1)
    (tmp_path / "model-00003-of-00004.gguf").unlink()
    with pytest.raises(ModelError) as caught:
        GgufFile.open(path)
    message = caught.value.message
    assert message.endswith("model-00003-of-00004.gguf' is missing, one of the model's 4 files; download it as well.")


def test_a_split_is_found_by_its_names(write, tmp_path):
    path = write(split=2).rename(tmp_path / "mine.gguf")
    with pytest.raises(ModelError, match="is one of 2 files, which are found by their names; name it as it was, like"):
        GgufFile.open(path)


def test_files_of_a_split_in_another_order_are_refused(write, tmp_path):
    path = write(split=1)
    third, fourth = (tmp_path / f"model-0000{number}-of-00004.gguf" for number in (3, 4))
    content = third.read_bytes()
    third.write_bytes(fourth.read_bytes())
    fourth.write_bytes(content)
    with pytest.raises(ModelError, match=r"00003-of-00004.gguf' does not say that it is file 3 of 4; download it"):
        GgufFile.open(path)


def test_a_tensor_in_two_files_of_a_split_is_refused(write, tmp_path):
    path = write(split=1, tensors={"a": np.zeros(4, np.float32), "b": np.zeros(4, np.float32)})
    second = tmp_path / "model-00002-of-00002.gguf"
    second.write_bytes(second.read_bytes().replace(b"\1\0\0\0\0\0\0\0b", b"\1\0\0\0\0\0\0\0a"))
    with pytest.raises(ModelError, match=r"tensor 'a' is in both 'model-00001-of-00002\.gguf' and '.*-00002-of-00002"):
        GgufFile.open(path)


def test_a_split_with_another_number_of_tensors_is_refused(write):
    path = write(split=2)
    key = b"split.tensors.count" + struct.pack("<I", gguf.GGUFValueType.INT32)
    content = path.read_bytes()
    assert key + struct.pack("<i", 4) in content
    path.write_bytes(content.replace(key + struct.pack("<i", 4), key + struct.pack("<i", 5)))
    with pytest.raises(ModelError, match="have 4 tensors where 5 are expected; download all of them again"):
        GgufFile.open(path)
