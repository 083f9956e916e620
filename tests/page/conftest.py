"""The page in a headless Chromium. Each test ends with a look at what must not have happened: a script of the model's,
a violation of the policy, an error of the page's own, a request to another server."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.e2e.served import Served
from tests.page.stand_in import StandIn

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 375, "height": 720}
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", event => violations.push(event.effectiveDirective));
"""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    assert program, "these tests need Debian's package chromium"
    with sync_playwright() as playwright:
        # The sandbox of Chromium does not start for root, as which CI runs.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


Open = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """open_page(url, **options of the browser's context) opens it. errors: of the console, that the test expects."""
    opened: list[tuple[Page, BrowserContext, list[str], str]] = []

    def open_one(url: str, *, errors: str = "", **options: object) -> Page:
        context = browser.new_context(**{"viewport": DESKTOP, "color_scheme": "light", **options})
        context.set_default_timeout(10_000)
        page, problems = context.new_page(), []
        page.add_init_script(WATCH)
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: (problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on(
            "request", lambda request: None if request.url.startswith((url, "data:")) else problems.append(request.url)
        )
        opened.append((page, context, problems, errors))
        page.goto(url)
        return page

    yield open_one
    for page, context, problems, errors in opened:
        violations = page.evaluate("window.violations")
        context.close()
        assert violations == []
        assert [problem for problem in problems if not errors or errors not in problem] == []


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn() as server:
        yield server


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served([], tmp_path_factory.mktemp("log") / "log") as server:
        yield server


@pytest.fixture
def chat(stand_in: StandIn, open_page: Open) -> Page:
    """The page over the stand-in, which is asked for first so that it outlives the page."""
    page = open_page(stand_in.url)
    until(page, "document.querySelector('#model').value === 'scripted'")
    return page


def until(page: Page, condition: str, seconds: float = 60.0) -> None:
    """Waits until an expression is true in the page. Playwright's own way evaluates text there, which the page's policy
    forbids."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, f"not in {seconds:g} s: {condition}"
        page.wait_for_timeout(20)


def send(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def ended(page: Page) -> None:
    """Waits until no answer is being generated."""
    until(page, "document.querySelector('#stop').hidden && !document.querySelector('[aria-busy=true]')")


def last_answer(page: Page) -> str:
    return page.locator("article.assistant").last.locator(".markdown:not(.quiet)").inner_text()
