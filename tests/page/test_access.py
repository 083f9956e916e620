"""The page without a mouse, without eyes, on a phone, in both schemes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.page.conftest import PHONE, ended, send, until
from tests.page.stand_in import HOLD, text
from tests.page.test_markdown import RICH

CALL = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "get_weather", "arguments": "{}"}}]}
LONG = "word" * 60
ROW = " | ".join([LONG[:30]] * 8)
CODE = f"```\n{LONG}\n```"
TABLE = f"| {ROW} |\n|{'---|' * 8}\n| {ROW} |"
WIDE = f"{RICH}~~~\n\n{CODE}\n\n{TABLE}\n\n{LONG} `{LONG}`\n"
AUDIT = (Path(__file__).parent / "audit.js").read_text(encoding="utf-8")
FOCUSED = """(one => one.getAttribute("aria-label") ?? one.labels?.[0]?.textContent ?? one.textContent.trim())(
  document.activeElement)"""
# The composer shows its focus with a ring around the whole box.
RING = """(one => getComputedStyle(one).outlineStyle !== "none" && parseFloat(getComputedStyle(one).outlineWidth) >= 2
  || getComputedStyle(one.parentElement).boxShadow !== "none")(document.activeElement)"""


def audit(page):
    """What is wrong with the page, by kind."""
    names = ("unnamed", "small", "structure", "contrast", "overflow")
    found = {name: page.evaluate(f"({AUDIT}).{name}()") for name in names}
    return {name: wrong for name, wrong in found.items() if wrong}


def fill(page, stand_in):
    """A chat with something of everything."""
    stand_in.answer({"reasoning": "Hm."}, *text(WIDE), {**CALL}, finish="tool_calls")
    send(page, f"{LONG} and more")
    ended(page)
    page.locator("summary").first.click()
    page.locator("summary").nth(1).click()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_names_structure_contrast_and_width(stand_in, open_page, scheme, size):
    view = {"viewport": PHONE} if size == "phone" else {}
    page = open_page(stand_in.url, color_scheme=scheme, reduced_motion="reduce", **view)
    until(page, "document.querySelector('#model').value === 'scripted'")
    for prepare in (
        lambda: None,
        lambda: fill(page, stand_in),
        lambda: page.get_by_role("button", name="Edit your message").click(),
        lambda: page.get_by_role("button", name="Parameters", exact=True).click(),
        lambda: (page.keyboard.press("Escape"), page.get_by_role("button", name="Chats", exact=True).click()),
        lambda: (
            page.keyboard.press("Escape"),
            page.get_by_role("tab", name="Engine").click(),
            page.wait_for_timeout(1500),
        ),
    ):
        prepare()
        assert audit(page) == {}
        assert page.evaluate(f"({AUDIT}).texts().length") > 5


def test_the_toggle_changes_the_colors_and_the_tab_remembers(chat):
    def dark():
        return chat.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0] < 128")

    toggle = chat.get_by_role("button", name="Dark colors")
    assert (dark(), toggle.get_attribute("aria-pressed")) == (False, "false")
    toggle.click()
    assert (dark(), toggle.get_attribute("aria-pressed")) == (True, "true")
    chat.reload()
    until(chat, "document.querySelector('#model').value === 'scripted'")  # so that no request is cut at the end
    assert (dark(), toggle.get_attribute("aria-pressed")) == (True, "true")


def test_with_the_keyboard_alone(stand_in, open_page):
    page = open_page(stand_in.url)
    until(page, "document.querySelector('#model').value === 'scripted'")

    def focused():
        return page.evaluate(FOCUSED)

    def tab_to(name, key="Tab"):
        for _ in range(60):
            page.keyboard.press(key)
            if focused() == name:
                assert page.evaluate(RING), name
                return
        raise AssertionError(f"{key} never reaches {name}")

    tab_to("Skip to the content", "Shift+Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    tab_to("Message")
    page.keyboard.type("Hello")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("there")
    page.keyboard.press("Enter")
    ended(page)
    assert stand_in.requests[-1]["messages"][0]["content"] == "Hello\nthere"
    page.keyboard.press("Shift+Tab")
    assert focused() == "Regenerate this answer"
    page.keyboard.press("Enter")
    ended(page)
    assert focused() == "Message"
    page.evaluate("document.querySelector('#main').focus()")
    tab_to("Edit your message")
    page.keyboard.press("Enter")
    assert focused() == "Your message"
    page.keyboard.press("Escape")
    assert focused() == "Edit your message"
    tab_to("Temperature")
    page.keyboard.type("0.3")
    page.keyboard.press("Enter")
    page.evaluate("document.querySelector('#chat-tab').focus()")
    page.keyboard.press("ArrowRight")
    assert focused() == "Engine"
    page.get_by_text("Serving").wait_for()
    page.keyboard.press("ArrowLeft")
    assert focused() == "Chat"
    assert page.locator("#engine").is_hidden()


def test_panels_on_a_phone_open_over_the_chat_and_give_the_focus_back(stand_in, open_page):
    page = open_page(stand_in.url, viewport=PHONE)
    for name in ("Chats", "Parameters"):
        button = page.get_by_role("button", name=name, exact=True)
        assert button.get_attribute("aria-expanded") == "false"
        button.focus()
        page.keyboard.press("Enter")
        assert button.get_attribute("aria-expanded") == "true"
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == f"Close {name.lower()}"
        assert page.evaluate("document.querySelector('#conversation').inert")
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == name
        assert not page.evaluate("document.querySelector('#conversation').inert")


def test_an_answer_is_read_a_sentence_at_a_time_and_none_twice(chat, stand_in):
    chat.evaluate("""() => { window.spoken = []; new MutationObserver(changes => {
      for (const change of changes) for (const added of change.addedNodes) spoken.push(added.textContent);
    }).observe(document.querySelector("#spoken"), { childList: true, subtree: true, characterData: true }); }""")
    stand_in.answer(*text("One is ", "here. Two", " is too. Thr"), HOLD, *text("ee."))
    send(chat, "Hi")
    until(chat, "spoken.join(' ').endsWith('Two is too.')")
    assert chat.locator("#spoken").get_attribute("aria-live") == "polite"
    assert chat.locator("article.assistant").get_attribute("aria-busy") == "true"
    stand_in.release()
    ended(chat)
    assert " ".join(chat.evaluate("spoken")) == "One is here. Two is too. Three. End of the answer."
    assert chat.locator("article[aria-live], #messages[aria-live]").count() == 0


def test_nothing_moves_where_motion_is_unwanted(stand_in, open_page):
    page = open_page(stand_in.url, reduced_motion="reduce")
    stand_in.answer(HOLD, *text("x"))
    send(page, "Hi")
    page.locator(".wait").wait_for()
    assert page.evaluate("document.getAnimations().length") == 0
    stand_in.release()
    ended(page)
