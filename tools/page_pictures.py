"""Takes the pictures of the server's web page for docs/web-page.md: starts the demo, drives Chromium, writes PNG files.

The chat's answer is scripted, because the demo model writes one line at most. The engine's figures are the demo's own,
under load. Texts are compared by --embedder, because the demo finds little more than the same words.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, Route, sync_playwright

from tools.local_server import ROOT, TESSERA, started

PORT = 8765
DRAFTS = '{"method": "ngram", "num_speculative_tokens": 3}'
URL = f"http://127.0.0.1:{PORT}/"
SIZES = {"desktop": (1280, 832), "phone": (375, 760)}
SCHEMES = ("light", "dark")
WINDOWS = [(size, scheme) for size in SIZES for scheme in SCHEMES]
VIEWS = ("chat", "texts", "engine")
MAX_BYTES = 150_000
HIGH = {"desktop": 1240, "phone": 1000}
"""Of the windows with texts and their numbers."""
LOAD_CLIENTS = 12
LOAD_SECONDS = 125.0  # before the pictures of the engine, whose charts show two minutes
QUESTION = "How do I stream an answer in Python?"
REASONING = "The openai package streams with `stream=True`; the pieces are in `delta.content`."
ANSWER = """\
Ask for a stream and print each piece as it arrives:

```python
from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
stream = client.chat.completions.create(
    model="tessera-demo",
    messages=[{"role": "user", "content": "Hello!"}],
    stream=True,  # events, not one body
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="")
```

Two things to know:

1. The status line comes **with the first token**, so an early failure is an HTTP error.
2. `stream_options` can add the usage as a last event.
"""


@contextmanager
def load() -> Iterator[None]:
    """Clients that ask for capitals one after the other, more of them now and fewer then."""
    ended = threading.Event()
    clients = [threading.Thread(target=_ask, args=(number, ended)) for number in range(LOAD_CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        ended.set()
        for client in clients:
            client.join()


def _ask(number: int, ended: threading.Event) -> None:
    countries = ("France", "Italy", "Norway", "Japan", "Kenya", "Peru", "Canada", "Egypt")
    for turn in range(1_000_000):
        if ended.wait(0.1 + 0.3 * (number % 4)):
            return
        if number * 4 > 10 + (turn // 8) % 40:
            continue
        question = f"What is the capital of {countries[(turn + number) % len(countries)]}?"
        body = {
            "model": "tessera-demo",
            "messages": [{"role": "user", "content": question}],
            "max_tokens": 40 + 20 * (turn % 8),
            "ignore_eos": True,
        }
        httpx.post(f"{URL}v1/chat/completions", json=body, timeout=60).raise_for_status()


def scripted(route: Route) -> None:
    """Answers a chat with ANSWER, as an event stream."""
    deltas = [{"role": "assistant"}, {"reasoning": REASONING}, *({"content": piece} for piece in ANSWER.split(" "))]
    for delta in deltas[2:-1]:
        delta["content"] += " "
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    route.fulfill(body=f"{body}data: [DONE]\n\n", content_type="text/event-stream")


def opened(browser: Browser, size: str, scheme: str) -> Page:
    """The page in a window of its own."""
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        reduced_motion="reduce",
        device_scale_factor=1 if size == "desktop" else 1.5,
    )
    page = context.new_page()
    page.goto(URL)
    return page


def chat(page: Page) -> None:
    """Asks QUESTION and waits for the answer."""
    page.route("**/v1/chat/completions", scripted)
    page.get_by_label("Message", exact=True).fill(QUESTION)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Regenerate this answer").wait_for()
    # Measured on an answer that came at once, they would say nothing.
    page.evaluate("document.querySelectorAll('.message-actions .figures').forEach(one => one.remove())")


def compare(page: Page, size: str) -> None:
    """Compares the texts of the page's example, in a window that is high enough for the answer."""
    page.get_by_role("button", name="Use an example").click()
    page.get_by_role("table").wait_for()
    page.set_viewport_size({"width": page.evaluate("innerWidth"), "height": HIGH[size]})
    page.locator("#texts").evaluate("one => one.scrollTop = one.scrollHeight")


def take(page: Page, path: Path) -> None:
    page.screenshot(path=path)
    page.context.close()
    size = path.stat().st_size
    print(f"{path.name}  {size / 1000:.0f} kB")
    if size > MAX_BYTES:
        sys.exit(f"{path.name} is larger than {MAX_BYTES / 1000:.0f} kB; show less in it")


@contextmanager
def served(*arguments: str) -> Iterator[None]:
    with tempfile.TemporaryFile() as log, started((*TESSERA, *arguments, "--port", str(PORT)), PORT, log=log):
        yield


def take_chat(browser: Browser, into: Path) -> None:
    with served("--speculative-config", DRAFTS):
        for size, scheme in WINDOWS:
            page = opened(browser, size, scheme)
            chat(page)
            take(page, into / f"page-chat-{size}-{scheme}.png")


def take_engine(browser: Browser, into: Path) -> None:
    with served("--speculative-config", DRAFTS):
        engines = {window: opened(browser, *window) for window in WINDOWS}
        for page in engines.values():
            page.get_by_role("tab", name="Engine").click()
        with load():
            page.wait_for_timeout(LOAD_SECONDS * 1000)
            for (size, scheme), page in engines.items():
                take(page, into / f"page-engine-{size}-{scheme}.png")


def take_texts(browser: Browser, into: Path, embedder: str) -> None:
    with served(embedder):
        for size, scheme in WINDOWS:
            page = opened(browser, size, scheme)
            compare(page, size)
            take(page, into / f"page-texts-{size}-{scheme}.png")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=ROOT / "docs/images")
    parser.add_argument("--views", nargs="+", choices=VIEWS, default=VIEWS, help="the views to take pictures of")
    parser.add_argument("--embedder", metavar="MODEL", help="a model that embeds; needed for the view of texts")
    arguments = parser.parse_args()
    if "texts" in arguments.views and arguments.embedder is None:
        parser.error("the view of texts needs --embedder")
    arguments.into.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        if "chat" in arguments.views:
            take_chat(browser, arguments.into)
        if "texts" in arguments.views:
            take_texts(browser, arguments.into, arguments.embedder)
        if "engine" in arguments.views:
            take_engine(browser, arguments.into)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
