from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models

from tessera.errors import ModelError, RequestError
from tessera.text import Tokenizer
from tests.unit.text.conftest import NAMES, copy_of, with_bos


@pytest.fixture
def byte_level(trained: dict[str, tokenizers.Tokenizer]) -> tokenizers.Tokenizer:
    return copy_of(trained["byte_level"])


def ids_by_piece(tokenizer: Tokenizer) -> dict[str | None, int]:
    return {tokenizer.token(token_id): token_id for token_id in range(tokenizer.vocab_size)}


def write_folder(folder: Path, tokenizer: tokenizers.Tokenizer, **files: Any) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return folder


def test_text_comes_back(tokenizers_by_kind: dict[str, Tokenizer]) -> None:
    for kind in ("byte_level", "byte_fallback"):
        tokenizer = tokenizers_by_kind[kind]
        for text in ("Hello, world!", " two  spaces ", "naïve 今日 😀\n\tمرحبا", ""):
            assert tokenizer.decode(tokenizer.encode(text)) == text


def test_folder_is_read_whole(tmp_path: Path, byte_level: tokenizers.Tokenizer) -> None:
    config = {
        "bos_token": "<s>",
        "eos_token": {"content": "<|im_end|>", "special": True},
        "pad_token": None,
        "chat_template": "from config",
    }
    folder = write_folder(
        tmp_path, byte_level, tokenizer_config=config, special_tokens_map={"eos_token": "</s>", "unk_token": "<s>"}
    )
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "<|im_end|>", "unk_token": "<s>"}
    assert tokenizer.bos_token_id == 0
    assert tokenizer.eos_token_id == 3
    assert tokenizer.special_ids == {0, 1, 2, 3}
    assert tokenizer.vocab_size == byte_level.get_vocab_size(with_added_tokens=True)
    assert tokenizer.chat_templates == {"default": "from config"}


def test_folder_with_tokenizer_json_alone(tmp_path: Path, byte_level: tokenizers.Tokenizer) -> None:
    tokenizer = Tokenizer.from_folder(str(write_folder(tmp_path, byte_level)))
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.chat_templates) == (None, None, {})
    assert tokenizer.decode(tokenizer.encode("Hello")) == "Hello"


def test_a_response_template_is_read_as_it_is(tmp_path: Path, byte_level: tokenizers.Tokenizer) -> None:
    spec = {"start_anchor": "x", "fields": {"content": {"close": "é", "more": 2**70}}}
    folder = write_folder(tmp_path, byte_level, tokenizer_config={"response_template": spec})
    assert json.loads(Tokenizer.from_folder(folder).response_template) == spec


def test_chat_templates_by_name_and_from_files(tmp_path: Path, byte_level: tokenizers.Tokenizer) -> None:
    named = [{"name": "default", "template": "d"}, {"name": "rag", "template": "r"}]
    folder = write_folder(tmp_path, byte_level, tokenizer_config={"chat_template": named})
    assert Tokenizer.from_folder(folder).chat_templates == {"default": "d", "rag": "r"}
    (folder / "chat_template.jinja").write_text("file ü", encoding="utf-8")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools", encoding="utf-8")
    assert Tokenizer.from_folder(folder).chat_templates == {"default": "file ü", "rag": "r", "tool_use": "tools"}


def test_tokens_that_only_the_config_lists_are_added(tmp_path: Path, byte_level: tokenizers.Tokenizer) -> None:
    size = byte_level.get_vocab_size(with_added_tokens=True)
    added = {
        str(size): {"content": "<think>", "special": False, "normalized": False},
        str(size + 1): {"content": "<x>", "special": True},
    }
    folder = write_folder(tmp_path, byte_level, tokenizer_config={"added_tokens_decoder": added})
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode("<think><x>") == [size, size + 1]
    assert tokenizer.decode([size, size + 1]) == "<think>"
    added[str(size + 9)] = added.pop(str(size + 1))
    write_folder(tmp_path, byte_level, tokenizer_config={"added_tokens_decoder": added})
    with pytest.raises(ModelError, match=f"'<x>' the id {size + 9}"):
        Tokenizer.from_folder(folder)


def test_named_token_becomes_special(tmp_path: Path, byte_level: tokenizers.Tokenizer) -> None:
    folder = write_folder(tmp_path, byte_level, tokenizer_config={"eos_token": "<tool>", "pad_token": "<not there>"})
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.eos_token_id in tokenizer.special_ids
    assert tokenizer.decode(tokenizer.encode("a<tool>")) == "a"
    assert tokenizer.vocab_size == byte_level.get_vocab_size(with_added_tokens=True)


def test_truncation_left_by_a_trainer_is_off(tmp_path: Path, byte_level: tokenizers.Tokenizer) -> None:
    byte_level.enable_truncation(4)
    byte_level.enable_padding(length=8)
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, byte_level))
    assert tokenizer.decode(tokenizer.encode("a longer text than that")) == "a longer text than that"


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({}, r"has no tokenizer\.json; .*--tokenizer"),
        ({"tokenizer.model": ""}, r"has tokenizer\.model but no tokenizer\.json; .*AutoTokenizer"),
        ({"qwen.tiktoken": ""}, r"has qwen\.tiktoken but no tokenizer\.json"),
        ({"tokenizer.json": "{"}, r"tokenizer\.json' cannot be read"),
        ({"tokenizer.json": '{"model": {"type": "Magic"}}'}, r"tokenizer\.json' cannot be read"),
        ({"tokenizer_config.json": "{"}, r"tokenizer_config\.json' is not valid JSON"),
        ({"special_tokens_map.json": "[]"}, r"special_tokens_map\.json' is not a JSON object"),
    ],
)
def test_broken_folder_is_one_clear_line(tmp_path: Path, files: dict[str, str], complaint: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelError, match=complaint) as caught:
        Tokenizer.from_folder(tmp_path)
    assert "\n" not in str(caught.value)


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read: No such file or directory"):
        Tokenizer.from_folder(tmp_path / "nowhere")


def test_bos_is_added_as_tokenizer_json_says_and_never_twice(trained: dict[str, tokenizers.Tokenizer]) -> None:
    for kind in ("byte_level", "byte_fallback"):
        plain = Tokenizer(trained[kind], NAMES)
        prepending = Tokenizer(with_bos(copy_of(trained[kind])), NAMES)
        bos, hello = plain.bos_token_id, plain.encode("Hello")
        assert plain.encode("Hello", add_special_tokens=True) == hello
        assert prepending.encode("Hello") == [bos, *hello]
        assert prepending.encode("Hello", add_special_tokens=False) == hello
        assert prepending.encode("") == [bos]
        assert prepending.encode("<s>Hello") == plain.encode("<s>Hello")
        assert prepending.encode("<s>Hello")[:2].count(bos) == 1
        # A second one that the text itself asks for stays.
        assert prepending.encode("<s><s>") == [bos, bos]


def test_bytes_of_tokens_are_exact(tokenizers_by_kind: dict[str, Tokenizer]) -> None:
    text = "naïve 🦜 今日\n x"
    for kind in ("byte_level", "byte_fallback", "metaspace"):
        tokenizer = tokenizers_by_kind[kind]
        known = text if kind != "metaspace" else "Hello world"
        joined = b"".join(map(tokenizer.token_bytes, tokenizer.encode(known)))
        assert joined.decode().removeprefix(" ") == known
    byte_tokens = tokenizers_by_kind["byte_fallback"]
    ids = ids_by_piece(byte_tokens)
    assert byte_tokens.token_bytes(ids["<0xE4>"]) == b"\xe4"
    assert byte_tokens.token_bytes(ids["<s>"]) == b"<s>"


def test_text_of_tokens_for_logprobs(tokenizers_by_kind: dict[str, Tokenizer]) -> None:
    for kind, mark in (("byte_level", "Ġ"), ("byte_fallback", "▁")):
        tokenizer = tokenizers_by_kind[kind]
        ids = ids_by_piece(tokenizer)
        assert tokenizer.token_text(ids[f"{mark}the"]) == (" the", b" the")
        assert tokenizer.token_text(ids["</s>"]) == ("</s>", b"</s>")
    byte_tokens = tokenizers_by_kind["byte_fallback"]
    assert byte_tokens.token_text(ids_by_piece(byte_tokens)["<0xF0>"]) == ("\ufffd", b"\xf0")
    word_piece = tokenizers_by_kind["word_piece"]
    ids = ids_by_piece(word_piece)
    whole = next(piece for piece in ids if piece and piece.isalpha())
    assert word_piece.token_text(ids[whole]) == (whole, whole.encode())


def test_ids_outside_the_vocabulary_leave_no_text(tokenizers_by_kind: dict[str, Tokenizer]) -> None:
    for tokenizer in tokenizers_by_kind.values():
        beyond = tokenizer.vocab_size + 7
        assert tokenizer.token(beyond) is None
        assert tokenizer.token_text(beyond) == ("", b"")
        assert tokenizer.decode([beyond]) == ""


def seconds_to_encode(tokenizer: Tokenizer, text: str) -> float:
    start = time.process_time()
    tokenizer.encode(text)
    return time.process_time() - start


@pytest.mark.parametrize("character", ["a", " "])
def test_time_grows_with_the_length_of_one_character_many_times(
    tokenizers_by_kind: dict[str, Tokenizer], character: str
) -> None:
    """Ten times as many take a hundred times as long where every one is compared with all before it."""
    for kind in ("byte_level", "byte_fallback"):
        least = [
            min(seconds_to_encode(tokenizers_by_kind[kind], character * count) for _ in range(3))
            for count in (100_000, 1_000_000)
        ]
        assert least[1] < 30 * least[0]


def test_text_that_cannot_fit_is_refused_unread(tokenizers_by_kind: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers_by_kind["byte_level"]
    room = 10
    longest = tokenizer.longest_token_chars
    assert len(tokenizer.encode("a" * (room * longest), max_tokens=room)) > room  # might have fitted: not ours to say
    with pytest.raises(RequestError, match=r"maximum context length is 10 tokens\. However, you requested") as caught:
        tokenizer.encode("a" * (room * longest + 1), max_tokens=room)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")


def test_half_a_surrogate_pair_is_refused(tokenizers_by_kind: dict[str, Tokenizer]) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        tokenizers_by_kind["byte_level"].encode("a\ud83d")


def test_wrapping_a_tokenizer_without_a_decoder() -> None:
    plain = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1, "<unk>": 2}, unk_token="<unk>"))
    assert Tokenizer(plain).decode([0, 1]) == "a b"
