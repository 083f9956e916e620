"""A server with API keys: the page is shown, asks for the key once, and keeps it in the tab."""

from __future__ import annotations

import pytest

from tests.e2e.served import Served
from tests.page.conftest import ended, last_answer, send, until

KEY = "a-key-of-the-test-ü"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    with Served(["--api-key", KEY, "--root-path", "/llm"], tmp_path_factory.mktemp("log") / "log") as server:
        yield server


def give(page, key):
    page.get_by_label("API key", exact=True).fill(key)
    page.keyboard.press("Enter")


@pytest.mark.parametrize("prefix", ["/", "/llm/"])
def test_the_key_is_asked_for_once(open_page, guarded, prefix):
    page = open_page(guarded.url + prefix, errors="401")
    dialog = page.get_by_role("dialog", name="This server needs an API key")
    dialog.wait_for()
    assert page.evaluate("document.activeElement.id") == "key"
    page.keyboard.press("Escape")
    assert dialog.is_visible()
    give(page, "wrong")
    page.get_by_text("The server did not accept this key.").wait_for()
    give(page, KEY)
    until(page, "document.querySelector('#model').value === 'tessera-demo'")
    assert not dialog.is_visible()
    send(page, "What is the capital of France?")
    ended(page)
    assert "Paris" in last_answer(page)
    page.get_by_role("tab", name="Engine").click()
    page.get_by_text("Serving").wait_for()
    page.reload()
    until(page, "document.querySelector('#model').value === 'tessera-demo'")
    assert not dialog.is_visible()
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    assert KEY not in page.content()
    page.get_by_role("tab", name="Chat").click()
    page.get_by_role("button", name="Forget the API key").click()
    dialog.wait_for()
    assert KEY not in page.evaluate("JSON.stringify(sessionStorage)")
