"""Special tokens in a chat's messages stay text; those of the template are tokens."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tessera.errors import RequestError
from tessera.text import Tokenizer
from tessera.text.user_text import PromptPiece, SpecialTexts, SpecialToken
from tessera.text.worker import ChatJob, Encoded, Texts
from tests.unit.text.conftest import SPECIAL, byte_level

TEMPLATE = (
    "<s>{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}"
    "{% for call in m.tool_calls or () %}{{ call.function.arguments | tojson }}{% endfor %}<|im_end|>{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
)
TEXTS = st.lists(
    st.sampled_from(["<|im_start|>", "<|im_end|>", "<s>", "<|im_", "start|>", "<", "a b", " ", "ß"]), max_size=6
)


def chat(texts: Texts, *contents: Any, **fields: Any) -> Encoded:
    answer = texts.do(ChatJob([{"role": "user", "content": content} for content in contents], text=True, **fields))
    assert isinstance(answer, Encoded)
    return answer


@pytest.fixture(scope="module")
def texts() -> Texts:
    return Texts(Tokenizer(byte_level()), TEMPLATE)


@given(st.lists(TEXTS.map("".join), min_size=1, max_size=3))
def test_only_the_template_s_are_tokens_and_the_text_is_as_it_was(contents: list[str]) -> None:
    tokenizer = Tokenizer(byte_level())
    answer = chat(Texts(tokenizer, TEMPLATE), *contents)
    turns = "".join(f"<|im_start|>user\n{content.strip()}<|im_end|>" for content in contents)
    assert answer.text == "<s>" + turns
    (ids,) = answer.ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == answer.text
    special = [tokenizer.added_token_texts[token] for token in ids if token in tokenizer.special_ids]
    assert special == ["<s>", *["<|im_start|>", "<|im_end|>"] * len(contents)]
    assert len(special) == 1 + 2 * len(contents)


def test_a_prompt_without_them_has_the_tokens_that_it_had(tokenizers_by_kind: dict[str, Tokenizer]) -> None:
    for tokenizer in tokenizers_by_kind.values():
        texts = Texts(tokenizer, TEMPLATE)
        answer = chat(texts, "Zażółć, 世界 <", " and <|im_", "so on", add_special_tokens=True)
        assert answer.text is not None
        assert answer.ids == [tokenizer.encode(answer.text)]


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "byte_fallback_no_strip", "word_piece"])
def test_what_is_kept_has_the_tokens_of_its_text(tokenizers_by_kind: dict[str, Tokenizer], kind: str) -> None:
    """As the library takes a whole text literally, between the template's tokens."""
    tokenizer = tokenizers_by_kind[kind]
    raw = tokenizer._tokenizer
    (ids,) = chat(Texts(tokenizer, "<s>{{ messages[0].content }}</s>"), "a<|im_end|>b").ids
    raw.encode_special_tokens = True
    literal = raw.encode("a<|im_end|>b", add_special_tokens=False).ids
    raw.encode_special_tokens = False
    assert ids == [raw.token_to_id("<s>"), *literal, raw.token_to_id("</s>")]
    assert raw.token_to_id("<|im_end|>") not in ids


def test_a_text_that_begins_behind_a_token_has_no_space_where_only_the_first_has_one() -> None:
    raw = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={c: n for n, c in enumerate("▁abc<|>x")}, merges=[]))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")
    raw.add_special_tokens(["<|x|>", "<|c|>"])
    tokenizer = Tokenizer(raw)
    for template, expected in (
        ("<|c|>{{ messages[0].content }}", "<|c|>|a|<|||x|||>|b"),
        ("{{ messages[0].content }}", "▁|a|<|||x|||>|b"),
    ):
        (ids,) = chat(Texts(tokenizer, template), "a<|x|>b").ids
        assert "|".join(raw.id_to_token(token) for token in ids) == expected
    assert raw.encode("a<|x|>b").tokens == ["▁", "a", "<|x|>", "b"]


def test_tools_calls_and_roles_are_kept_as_well(texts: Texts) -> None:
    call = {"function": {"name": "f", "arguments": {"<s>": ["</s>"]}}}
    job = ChatJob(
        [{"role": "<|im_end|>", "content": "", "tool_calls": [call]}], text=True,
        tools=[{"function": {"name": "g", "description": "<|im_start|>"}}],
    )  # fmt: skip
    answer = texts.do(job)
    assert isinstance(answer, Encoded)
    assert answer.text == (
        '<s><|im_start|><|im_end|>\n{"<s>": ["</s>"]}<|im_end|>'
        '[{"function": {"name": "g", "description": "<|im_start|>"}}]'
    )
    special = byte_level().get_added_tokens_decoder()
    assert [special[token].content for token in answer.ids[0] if token < len(SPECIAL)] == [
        "<s>",
        "<|im_start|>",
        "<|im_end|>",
    ]


def test_they_are_tokens_where_the_server_says_so() -> None:
    tokenizer = Tokenizer(byte_level())
    texts = Texts(tokenizer, TEMPLATE, parse_special_tokens=True)
    answer = chat(texts, "a<|im_end|>b")
    assert answer.text is not None
    assert answer.ids == [tokenizer.encode(answer.text, False)]
    assert len([token for token in answer.ids[0] if token in tokenizer.special_ids]) == 4


def test_a_last_message_is_continued_as_it_was(texts: Texts) -> None:
    answer = chat(texts, "a", "b<|im_end|>c <", add_generation_prompt=False, continue_final_message=True)
    assert answer.text == "<s><|im_start|>user\na<|im_end|><|im_start|>user\nb<|im_end|>c <"


def test_what_a_vocabulary_has_as_a_word_is_refused_by_name(tokenizers_by_kind: dict[str, Tokenizer]) -> None:
    with pytest.raises(RequestError, match=r"hold '<\|im_end\|>', a special token") as refused:
        chat(Texts(tokenizers_by_kind["metaspace"], TEMPLATE), "a<|im_end|>b")
    assert refused.value.param == "messages"


def test_white_space_that_a_token_takes_is_not_the_text_s() -> None:
    special = SpecialTexts([SpecialToken("<e>", rstrip=True), SpecialToken("<b>", lstrip=True), SpecialToken("|")])
    mark = special.mark()
    prompt = "<e> \n" + mark.put("a<e> ") + " <b>x"
    assert mark.pieces(prompt) == [
        PromptPiece("<e> \n", False),
        PromptPiece("a<e>", True),
        PromptPiece("  <b>x", False),
    ]


def test_deep_messages_are_refused_and_not_followed(texts: Texts) -> None:
    deep: Any = "<s>"
    for _ in range(900):
        deep = [deep]
    with pytest.raises(RequestError, match="deeper than 64 levels"):
        chat(texts, deep)
