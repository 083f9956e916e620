"""Pictures in messages: chosen, pasted and dropped, and what becomes of them."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image

from tests.page.conftest import ended, send, until
from tests.page.test_access import audit

ADD = """
([how, data]) => {
  const bytes = Uint8Array.from(atob(data), one => one.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], "it.png", { type: "image/png" }));
  const options = { bubbles: true, cancelable: true };
  const event = how === "paste" ? new ClipboardEvent("paste", { ...options, clipboardData: transfer })
    : new DragEvent("drop", { ...options, dataTransfer: transfer });
  document.querySelector("#message").dispatchEvent(event);
}
"""


def png(color: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (60, 40), color).save(file, format="PNG")
    return file.getvalue()


def url_of(file: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"


RED, GREEN, BLUE = (png(color) for color in ("red", "green", "blue"))


@pytest.fixture
def seeing(stand_in, open_page):
    """The page of a model that takes pictures."""
    stand_in.does = {"tasks": ["generate"], "input_modalities": ["text", "image"]}
    page = open_page(stand_in.url)
    until(page, "!document.querySelector('#attach').hidden")
    return page


def pending(page):
    return page.locator("#pictures img").evaluate_all("all => all.map(one => one.src)")


def add(page, how, file):
    number = len(pending(page))
    page.evaluate(ADD, [how, base64.b64encode(file).decode()])
    until(page, f"document.querySelectorAll('#pictures img').length === {number + 1}")


def test_pictures_are_shown_sent_and_kept(seeing, stand_in):
    seeing.locator("#picture-file").set_input_files(
        [{"name": "r.png", "mimeType": "image/png", "buffer": RED}, {"name": "b", "mimeType": "", "buffer": BLUE}]
    )
    until(seeing, "document.querySelectorAll('#pictures img').length === 2")
    seeing.get_by_role("button", name="Remove picture 2").click()
    add(seeing, "paste", GREEN)
    add(seeing, "drop", BLUE)
    assert pending(seeing) == [url_of(file) for file in (RED, GREEN, BLUE)]
    assert audit(seeing) == {}
    send(seeing, "What are these?")
    ended(seeing)
    shown = [{"type": "image_url", "image_url": {"url": url_of(file)}} for file in (RED, GREEN, BLUE)]
    first = {"role": "user", "content": [*shown, {"type": "text", "text": "What are these?"}]}
    assert stand_in.requests[-1]["messages"] == [first]
    assert pending(seeing) == []
    assert seeing.locator(".user .picture").evaluate_all("all => all.map(one => one.naturalWidth)") == [60, 60, 60]
    assert audit(seeing) == {}

    seeing.get_by_role("button", name="Edit your message").click()
    seeing.locator(".edit textarea").fill("And now?")
    seeing.locator(".edit").get_by_role("button", name="Send").click()
    ended(seeing)
    assert stand_in.requests[-1]["messages"] == [{**first, "content": [*shown, {"type": "text", "text": "And now?"}]}]

    add(seeing, "paste", RED)
    seeing.get_by_role("button", name="Send").click()
    ended(seeing)
    assert stand_in.requests[-1]["messages"][-1]["content"] == shown[:1]
    seeing.reload()
    assert seeing.locator(".user .picture").count() == 4


def test_a_model_of_text_is_offered_none(chat, stand_in):
    chat.evaluate(ADD, ["drop", base64.b64encode(RED).decode()])
    assert not chat.locator("#attach").is_visible()
    send(chat, "Hello")
    ended(chat)
    assert stand_in.requests[-1]["messages"] == [{"role": "user", "content": "Hello"}]


def test_a_file_that_is_too_large_is_refused_before_it_is_sent(seeing):
    seeing.locator("#picture-file").set_input_files(
        {"name": "huge.png", "mimeType": "image/png", "buffer": bytes(20 * 2**20 + 1)}
    )
    until(seeing, "!document.querySelector('#alert').hidden")
    assert seeing.locator("#alert").inner_text() == "huge.png has more than 20 MiB."
    assert pending(seeing) == []
