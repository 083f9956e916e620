"""Prompts with images: where a template or a text shows one, the text for it, and the same tokens as transformers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tessera.errors import RequestError
from tessera.text import Tokenizer
from tessera.text.worker import ChatJob, Encoded, EncodeJob, Texts
from tests.processor_folders import FOLDERS

PARTS = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)
STRING = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
PAD = "<|image_pad|>"


def texts(folder: Path, template: str, **options: Any) -> Texts:
    return Texts(Tokenizer.from_folder(FOLDERS["qwen2_vl"].write(folder)), template, **options)


def done(texts: Texts, job: ChatJob | EncodeJob) -> Encoded:
    encoded = texts.do(job)
    assert isinstance(encoded, Encoded)
    return encoded


def chat(*parts: str | None, **fields: Any) -> ChatJob:
    """None is an image."""
    content = [{"type": "image"} if part is None else {"type": "text", "text": part} for part in parts]
    return ChatJob([{"role": "user", "content": content}], placeholders={"image": PAD}, text=True, **fields)


def test_each_image_is_where_the_template_shows_it_and_its_tokens_are_tokens(tmp_path: Path) -> None:
    loaded = texts(tmp_path, PARTS)
    encoded = done(loaded, chat("a", None, "b", None, replacements={"image": [PAD * 2, PAD * 3]}))
    expected = f"[user]a<|vision_start|>{PAD * 2}<|vision_end|>b<|vision_start|>{PAD * 3}<|vision_end|>"
    assert encoded.text == expected
    assert encoded.ids == done(loaded, EncodeJob([expected], add_special_tokens=False)).ids
    assert encoded.ids[0].count(Tokenizer.from_folder(tmp_path).encode(PAD, False)[0]) == 5


def test_a_placeholder_in_a_clients_text_is_text(tmp_path: Path) -> None:
    loaded = texts(tmp_path, PARTS)
    said = done(loaded, chat(f"what is {PAD}?", None, replacements={"image": [PAD]}))
    assert said.ids[0].count(Tokenizer.from_folder(tmp_path).encode(PAD, False)[0]) == 1
    assert said.text is not None
    assert said.text.count(PAD) == 2
    with pytest.raises(RequestError, match="1 images, and its prompt has places for 2"):
        done(texts(tmp_path, PARTS, parse_special_tokens=True), chat(PAD, None, replacements={"image": [PAD]}))


def test_a_placeholder_that_is_no_token_is_not_taken_from_a_clients_text_either(tmp_path: Path) -> None:
    job = chat("what is (here)?", None, replacements={"image": ["(pixels)"]})
    job.placeholders = {"image": "(here)"}
    assert done(texts(tmp_path, STRING), job).text == "[user]what is (here)?\n(pixels)"


def test_a_template_for_strings_gets_a_line_for_an_image(tmp_path: Path) -> None:
    assert (
        done(texts(tmp_path, STRING), chat(None, "a", replacements={"image": [PAD * 2]})).text == f"[user]{PAD * 2}\na"
    )


def test_a_template_that_does_not_show_images_is_one_clear_error(tmp_path: Path) -> None:
    blind = PARTS.replace(PAD, "")
    with pytest.raises(RequestError, match="2 images, and its prompt has places for 0"):
        done(texts(tmp_path, blind), chat(None, "a", None, replacements={"image": [PAD, PAD]}))


def test_images_are_refused_without_a_placeholder(tmp_path: Path) -> None:
    job = chat(None)
    job.placeholders = {}
    with pytest.raises(RequestError, match="is 'image'; only parts of type 'text' are supported"):
        done(texts(tmp_path, PARTS), job)


def test_a_final_message_that_ends_with_an_image_is_not_continued(tmp_path: Path) -> None:
    job = chat("a", None, replacements={"image": [PAD]}, add_generation_prompt=False, continue_final_message=True)
    with pytest.raises(RequestError, match="ends with text"):
        done(texts(tmp_path, PARTS), job)


def test_the_limit_of_characters_is_of_what_the_client_wrote(tmp_path: Path) -> None:
    assert done(texts(tmp_path, PARTS), chat("a", None, replacements={"image": [PAD * 100]}, max_chars=100)).text
    with pytest.raises(RequestError, match="at most 10 characters"):
        done(texts(tmp_path, PARTS), chat("a", None, replacements={"image": [PAD]}, max_chars=10))


def test_a_text_has_its_placeholders_itself(tmp_path: Path) -> None:
    loaded = texts(tmp_path, PARTS)
    job = EncodeJob([f"a{PAD}b"], placeholders={"image": PAD}, replacements={"image": [PAD * 3]})
    assert done(loaded, job).ids == done(loaded, EncodeJob([f"a{PAD * 3}b"])).ids
    for some in ([], [PAD, PAD]):
        with pytest.raises(RequestError, match="its prompt has places for 1"):
            done(loaded, EncodeJob([f"a{PAD}b"], placeholders={"image": PAD}, replacements={"image": some}))
