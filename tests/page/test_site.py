"""The documentation's site in a browser: its search answers, on a desk and on a phone, and nothing is loaded from
elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.page.conftest import DESKTOP, PHONE, Open
from tools.site.__main__ import SITE, build


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and says nothing of it."""

    def log_message(self, *_parts: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    build()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desk", "phone"])
def test_the_search_leads_to_the_page(site: str, open_page: Open, viewport: dict[str, int]) -> None:
    page = open_page(site, viewport=viewport)
    button = page.locator("label[for=__search]").first
    if button.is_visible():  # on a phone the field is behind it
        button.click()
    page.locator("input[name=query]").fill("requests_per_minute")
    page.locator(".md-search-result__item a").first.click()
    page.wait_for_url("**/docs/operating.html**")
    assert page.locator("h1").inner_text().startswith("Operating")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "it is as wide as the window"
