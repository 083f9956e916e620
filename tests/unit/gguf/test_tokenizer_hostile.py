"""Metadata that is not what it should be: refused in one line, and never with another exception."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tessera.errors import ModelError
from tessera.gguf.tokenizer import end_token_ids, tokenizer_config, tokenizer_json
from tessera.text import Tokenizer

PREFIX = "tokenizer.ggml."
ALPHABET = [*"abcdefgh", "ab", "abc", "de", "de f"]
SMALL: dict[str, dict[str, Any]] = {
    "gpt2": {"tokens": ["<s>", "</s>", *ALPHABET], "merges": ["a b", "ab c", "d e"], "pre": "smollm"},
    "llama": {"tokens": ["<unk>", "<s>", "</s>", *ALPHABET], "scores": [0.0, 0.0, 0.0, *map(float, range(12))]},
    "gemma4": {"tokens": ["<unk>", "<s>", "</s>", *ALPHABET], "merges": ["a b", "ab c"], "add_bos_token": True},
    "t5": {"tokens": ["<pad>", "</s>", "<unk>", *ALPHABET], "scores": [-1.0] * 15, "precompiled_charsmap": []},
    "bert": {"tokens": ["[UNK]", "[CLS]", "[SEP]", *ALPHABET], "unknown_token_id": 0, "cls_token_id": 1},
}
HALF_A_PAIR = "\ud800"
VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    3,
    2**31,
    2**64,
    10**400,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "a",
    "\0",
    HALF_A_PAIR,
    "x" * 10_000,
    b"\xff\xfe",
    {},
    {"a": 1},
    [],
    [[]],
    [None],
    ["a", 1],
    [HALF_A_PAIR] * 15,
    [""] * 15,
    ["a"] * 15,
    [3] * 15,
    [-5] * 15,
    [10**400] * 15,
    [1e308] * 15,
    [float("nan")] * 15,
    [True] * 15,
    list(range(15)),
    ["a b", "a"],
    ["a  b", " "],
    ["zz yy"],
]
KEYS = """
model pre tokens token_type scores merges add_bos_token add_eos_token add_sep_token add_space_prefix bos_token_id
eos_token_id unknown_token_id padding_token_id seperator_token_id cls_token_id mask_token_id precompiled_charsmap
remove_extra_whitespaces normalizer.lowercase normalizer.strip_accents
""".split()  # noqa: SIM905  (a list of them is not read)


def small(model: str) -> dict[str, Any]:
    keys = {"model": model, "bos_token_id": 1, "eos_token_id": 2, **copy.deepcopy(SMALL[model])}
    special = 3 if model != "gpt2" else 2
    keys["token_type"] = [3] * special + [1] * (len(keys["tokens"]) - special)
    return {"general.architecture": "llama"} | {PREFIX + name: value for name, value in keys.items()}


def outcome(metadata: dict[str, Any], folder: Path) -> str:
    """ "read" if the text package serves what the metadata makes, or why it was refused."""
    try:
        (folder / "tokenizer.json").write_bytes(tokenizer_json(metadata))
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(metadata)), encoding="utf-8")
        end_token_ids(metadata)
        tokenizer = Tokenizer.from_folder(folder)
        tokenizer.decode(tokenizer.encode("abc de<s> f"))
    except ModelError as error:
        return error.message
    return "read"


@pytest.mark.parametrize("model", SMALL)
def test_a_small_vocabulary_of_each_kind_is_read(tmp_path: Path, model: str) -> None:
    assert outcome(small(model), tmp_path) == "read"


@pytest.mark.parametrize("model", SMALL)
def test_one_wrong_value(tmp_path: Path, model: str) -> None:
    refused, chance = 0, random.Random(model)
    for name in KEYS:
        for value in chance.sample(VALUES, 10):
            metadata = small(model) | {PREFIX + name: value}
            message = outcome(metadata, tmp_path)
            assert "\n" not in message
            assert message.isprintable()
            assert len(message) < 400
            refused += message != "read"
    assert refused > 50


@pytest.mark.parametrize("model", SMALL)
def test_a_missing_key(tmp_path: Path, model: str) -> None:
    needed = {"model", "tokens"} | {"gpt2": {"merges", "pre"}, "llama": {"scores"}, "t5": {"scores"}}.get(model, set())
    needed |= {"merges"} if model == "gemma4" else set()
    needed |= {"unknown_token_id"} if model == "bert" else set()
    for key in small(model):
        metadata = {name: value for name, value in small(model).items() if name != key}
        message = outcome(metadata, tmp_path)
        if key.removeprefix(PREFIX) in needed:
            assert "--tokenizer FOLDER" in message, key
        elif not (model == "gemma4" and key.endswith("bos_token_id")):
            assert message == "read", key


def some_wrong_values(seed: int) -> tuple[str, dict[str, Any]]:
    chance = random.Random(seed)
    model = chance.choice([*SMALL])
    metadata = small(model)
    for _ in range(chance.randrange(1, 5)):
        metadata[PREFIX + chance.choice(KEYS)] = copy.deepcopy(chance.choice(VALUES))
    return model, metadata


def test_several_wrong_values(tmp_path: Path) -> None:
    for seed in range(500):
        outcome(some_wrong_values(seed)[1], tmp_path)


@pytest.mark.nightly
def test_many_wrong_values(tmp_path: Path) -> None:
    for seed in range(10_000, 30_000):
        outcome(some_wrong_values(seed)[1], tmp_path)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: {"merges": ["a b"] * 10 + ["no such"] * 10**6}, "merges 'no such', which are not two of its tokens"),
        (lambda: {"merges": ["ab"]}, "merges 'ab', which are not two of its tokens"),
        (lambda: {"merges": ["a b"] * (2**21 + 1)}, "at most 2097152 are read"),
        (lambda: {"tokens": ["a" * 10**7]}, "a token of 10000000 characters"),
        (lambda: {"tokens": ["a" * 4000 + str(at) for at in range(9_000)]}, "more than 33554432 characters"),
        (lambda: {"tokens": [*"abc", "b"], "token_type": [1] * 4}, "lists the token 'b' twice"),
        (lambda: {"tokens": []}, "no vocabulary"),
        (lambda: {"tokens": [HALF_A_PAIR]}, "text that is not UTF-8"),
        (lambda: {"token_type": [1]}, "1 entries for 14 tokens"),
        (lambda: {"pre": "\x1b[31mred\n"}, r"splits text as '\?\[31mred\?'"),
        (lambda: {"add_bos_token": True, "bos_token_id": 14}, "bos_token_id names none of its tokens"),
    ],
)
def test_what_is_refused_and_how_long_that_takes(build: Callable[[], dict[str, Any]], message: str) -> None:
    metadata = small("gpt2") | {PREFIX + name: value for name, value in build().items()}
    begin = time.process_time()
    with pytest.raises(ModelError, match=message):
        tokenizer_json(metadata)
    assert time.process_time() - begin < 15


def test_long_pieces_that_need_merges_are_bounded() -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"{'a' * 4000}{at:05}" for at in range(8_000))]
    keys = {"model": "llama", "tokens": tokens, "scores": [0.0] * len(tokens)}
    begin = time.process_time()
    with pytest.raises(ModelError, match="too long to find their merges"):
        tokenizer_json({PREFIX + name: value for name, value in keys.items()})
    assert time.process_time() - begin < 15


def test_a_whole_tokenizer_in_the_file_is_preferred() -> None:
    whole = json.dumps({"version": "1.0", "model": {"type": "BPE"}})
    assert tokenizer_json(small("gpt2") | {"tokenizer.huggingface.json": whole}) == whole.encode()
    assert tokenizer_json({"tokenizer.huggingface.json": whole}) == whole.encode()
    for broken in ("", "[]", "{", 7, [1], HALF_A_PAIR):
        with pytest.raises(ModelError, match="huggingface.json in the GGUF file is not a JSON object"):
            tokenizer_json({"tokenizer.huggingface.json": broken})


def test_chat_templates_and_named_tokens() -> None:
    metadata = small("llama") | {PREFIX + "add_bos_token": True}
    assert tokenizer_config(metadata) == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": True,
    }
    metadata["tokenizer.chat_template"] = "main"
    assert tokenizer_config(metadata)["chat_template"] == "main"
    metadata["tokenizer.chat_template.rag"] = "other"
    metadata["tokenizer.chat_templates"] = ["rag"]
    assert tokenizer_config(metadata)["chat_template"] == [
        {"name": "default", "template": "main"},
        {"name": "rag", "template": "other"},
    ]
    for key, template in (("", 5), (".x", HALF_A_PAIR), (f".{HALF_A_PAIR}", "fine")):
        with pytest.raises(ModelError, match="chat_template"):
            tokenizer_config(metadata | {f"tokenizer.chat_template{key}": template})


@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        (["<eos>", "a", "<end_of_turn>"], [0, 2]),
        (["<|endoftext|>", "<|im_start|>", "<|im_end|>", "b"], [2, 0]),
        (["<|start|>", "<|end|>", "<|return|>", "<|call|>"], [2, 3]),
        (["<|assistant|>", "<|end|>", "x", "y"], [2, 1]),
        (["</s>", "<|tool_response>", "<turn|>"], [2, 1]),
    ],
)
def test_the_tokens_that_end_an_answer(tokens: list[str], ends: list[int]) -> None:
    """EOS, and what its text shows to end a turn if it is a control token."""
    keys = {"model": "gpt2", "tokens": tokens, "token_type": [3] * len(tokens), "eos_token_id": ends[0]}
    assert end_token_ids({PREFIX + name: value for name, value in keys.items()}) == ends
    keys["token_type"] = [1] * len(tokens)
    keys |= {"eot_token_id": ends[1], "eom_token_id": 2**32 - 1}
    assert end_token_ids({PREFIX + name: value for name, value in keys.items()}) == ends[:2]
    assert end_token_ids({}) == []
