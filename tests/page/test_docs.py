"""/docs in a browser: it shows each route of the document, and sends requests of each kind."""

from __future__ import annotations

from tests.e2e.served import Served
from tests.page.conftest import Open, until


def test_it_shows_each_route_and_sends_json_and_files(demo: Served, open_page: Open) -> None:
    page = open_page(demo.url)
    page.goto(f"{demo.url}/docs")
    until(page, "document.querySelectorAll('details').length > 30")
    listed = page.locator("summary code").all_inner_texts()
    assert {"/v1/chat/completions", "/v1/files", "/v1/batches/{id}/cancel", "/livez"} <= set(listed)

    tokenize = page.locator("details", has_text="/tokenize").first
    tokenize.locator("summary").click()
    tokenize.locator("button").click()
    until(page, "document.body.innerText.includes('200 OK')")

    upload = page.locator("details", has_text="Uploads a file, such as one of requests for a batch.")
    upload.locator("summary").click()
    assert upload.locator("input[name=purpose]").input_value() == "batch"
    upload.locator("input[type=file]").set_input_files(
        {"name": "in.jsonl", "mimeType": "application/jsonl", "buffer": b'{"custom_id": "a"}\n'}
    )
    upload.locator("button").click()
    until(page, 'document.body.innerText.includes(\'"filename":"in.jsonl"\')')
