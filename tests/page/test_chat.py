"""The chat: over the served demo, and over a stand-in where a test decides what comes and when."""

from __future__ import annotations

import json

from tests.page.conftest import PHONE, ended, last_answer, send, until
from tests.page.stand_in import HOLD, text

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}}


def roles(body):
    return [message["role"] for message in body["messages"]]


def answers(chat, stand_in, *turns):
    """Turns of a chat: what is sent, and what is answered."""
    for message, answer in turns:
        stand_in.answer(*text(answer))
        send(chat, message)
        ended(chat)


# ---- the served demo -------------------------------------------------------------------------------------------------


def test_a_served_model_answers(open_page, demo):
    page = open_page(f"{demo.url}/")
    until(page, "document.querySelector('#model').value === 'tessera-demo'")
    send(page, "What is the capital of France?")
    ended(page)
    assert last_answer(page) != ""
    assert "tokens" in page.locator(".message-actions .figures").inner_text()


def test_what_the_server_refuses_is_shown(open_page, demo):
    page = open_page(f"{demo.url}/", errors="400")
    until(page, "document.querySelector('#model').value === 'tessera-demo'")
    page.get_by_label("JSON schema of the answer").fill('{"not": {}}')
    send(page, "Hello!")
    ended(page)
    assert "schema cannot be used: no value is valid by it" in page.locator(".assistant .alert").inner_text()
    assert last_answer(page) == ""
    page.get_by_role("button", name="Reset").click()
    page.get_by_role("button", name="Regenerate this answer").click()
    ended(page)
    assert last_answer(page) != ""


# ---- a scripted server -----------------------------------------------------------------------------------------------


def test_an_answer_shows_as_it_comes_and_can_be_stopped(chat, stand_in):
    for stop in (
        lambda: chat.get_by_role("button", name="Stop the answer").click(),
        lambda: chat.keyboard.press("Escape"),
    ):
        stand_in.answer(*text("First. ", "Second"), HOLD, *text(" never"))
        send(chat, "Count")
        until(chat, "[...document.querySelectorAll('.assistant .markdown')].at(-1).innerText === 'First. Second'")
        assert chat.locator("article[aria-busy=true]").count() == 1
        assert chat.get_by_role("button", name="Send").count() == 0
        stop()
        ended(chat)
        assert last_answer(chat) == "First. Second"
        assert chat.locator(".assistant > .note").last.inner_text() == "You stopped this answer."
        assert chat.evaluate("document.activeElement.id") == "message"
        for _ in range(100):
            chat.wait_for_timeout(20)
            if stand_in.cut:
                break
        assert stand_in.cut == 1
        stand_in.cut = 0


def test_the_view_follows_an_answer_until_the_user_scrolls_away(stand_in, open_page):
    page = open_page(stand_in.url, viewport=PHONE)
    jump = page.get_by_role("button", name="Newest")
    assert jump.is_hidden()
    lines = [f"Line {number}\n\n" for number in range(60)]
    stand_in.answer(*text(*lines), HOLD, *text(*lines))
    send(page, "Count")
    scrolled = "(one => one.scrollHeight - one.scrollTop - one.clientHeight)(document.querySelector('#scroller'))"
    until(page, f"document.querySelectorAll('.assistant p').length > 60 && {scrolled} < 2")
    page.evaluate("document.querySelector('#scroller').scrollTop = 0")
    jump.wait_for()
    stand_in.release()
    ended(page)
    assert page.evaluate("document.querySelector('#scroller').scrollTop") == 0
    jump.click()
    until(page, f"{scrolled} < 2")
    assert jump.is_hidden()
    stand_in.answer(*text("".join(lines)))  # all at once
    send(page, "Again")
    ended(page)
    assert page.evaluate(scrolled) < 2


def test_an_answer_that_is_generated_again_is_a_version(chat, stand_in):
    answers(chat, stand_in, ("first", "One."))
    stand_in.answer(*text("Two."))
    chat.get_by_role("button", name="Regenerate this answer").click()
    ended(chat)
    assert last_answer(chat) == "Two."
    assert chat.get_by_role("group", name="Versions").inner_text() == "2 of 2"
    chat.get_by_role("button", name="Earlier version").click()
    assert last_answer(chat) == "One."
    send(chat, "second")
    ended(chat)
    assert roles(stand_in.requests[-1]) == ["user", "assistant", "user"]
    assert stand_in.requests[-1]["messages"][1]["content"] == "One."


def test_a_message_that_is_edited_begins_the_chat_anew(chat, stand_in):
    answers(chat, stand_in, ("first", "One."), ("second", "Two."))
    chat.get_by_role("button", name="Edit your message").first.click()
    chat.locator(".edit textarea").fill("changed")
    chat.keyboard.press("Enter")
    ended(chat)
    assert [message["content"] for message in stand_in.requests[-1]["messages"]] == ["changed"]
    assert chat.locator("article").count() == 2


def test_what_followed_an_edited_message_is_its_earlier_version(chat, stand_in):
    answers(chat, stand_in, ("first", "One."), ("second", "Two."))
    chat.get_by_role("button", name="Edit your message").first.click()
    chat.locator(".edit textarea").fill("changed")
    chat.get_by_role("button", name="Send").first.click()
    ended(chat)
    chat.get_by_role("button", name="Earlier version").click()
    assert chat.locator("article").count() == 4
    assert last_answer(chat) == "Two."


def test_an_edit_that_is_given_up_changes_nothing(chat, stand_in):
    answers(chat, stand_in, ("first", "One."), ("second", "Two."))
    chat.get_by_role("button", name="Edit your message").first.click()
    chat.keyboard.press("Escape")
    assert chat.locator("article").count() == 4
    assert len(stand_in.requests) == 2


def test_every_parameter_is_sent_if_it_is_set_and_only_then(chat, stand_in):
    send(chat, "Hi")
    ended(chat)
    assert stand_in.requests[-1] == {
        "model": "scripted",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    values = {
        "Temperature": 0.5, "Top p": 0.9, "Top k": 40, "Min p": 0.05, "Max tokens": 64, "Seed": 7,
        "Presence penalty": -0.5, "Frequency penalty": 1.5,
    }  # fmt: skip
    for label, value in values.items():
        chat.get_by_label(label).fill(str(value))
    chat.get_by_label("System prompt").fill("Be brief.")
    chat.get_by_label("Tools").fill(json.dumps([TOOL]))
    chat.get_by_label("JSON schema of the answer").fill(json.dumps(SCHEMA))
    chat.get_by_label("Model").select_option("other")
    chat.reload()  # the tab remembers them
    until(chat, "document.querySelector('#model').value === 'other'")
    send(chat, "Again")
    ended(chat)
    body = stand_in.requests[-1]
    names = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "presence_penalty", "frequency_penalty"]
    assert [body[name] for name in names] == list(values.values())
    assert roles(body) == ["system", "user", "assistant", "user"]
    assert (body["model"], body["tools"]) == ("other", [TOOL])
    wanted = {"name": "answer", "schema": SCHEMA, "strict": True}
    assert body["response_format"] == {"type": "json_schema", "json_schema": wanted}


def test_a_parameter_that_is_none_is_not_sent_and_focused(chat, stand_in):
    for label, value, message in (("Tools", "[{", "not JSON"), ("Top p", "2", "Top p"), ("Tools", "3", "JSON object")):
        chat.get_by_label(label).fill(value)
        send(chat, "Hi")
        assert message in chat.locator("#alert").inner_text()
        assert chat.evaluate("document.activeElement.labels[0].textContent") == label
        chat.get_by_label(label).fill("")
    assert stand_in.requests == []


def test_an_error_within_a_stream_and_a_stream_that_breaks_off(chat, stand_in):
    stand_in.answer(*text("Half"), {"error": {"message": "The engine could not compute this request."}})
    send(chat, "Hi")
    ended(chat)
    assert chat.locator(".assistant .alert").inner_text() == "The engine could not compute this request."
    assert last_answer(chat) == "Half"
    stand_in.answer(*text("The end"), finish="length")
    chat.get_by_role("button", name="Regenerate this answer").click()
    ended(chat)
    assert chat.locator(".assistant > .note").inner_text() == "The answer ended at its limit of tokens."


def test_a_server_that_is_gone(chat, stand_in, open_page):
    page = open_page(stand_in.url, errors="ERR_CONNECTION_REFUSED")
    until(page, "document.querySelector('#model').value === 'scripted'")
    stand_in.stop()
    send(page, "Hi")
    ended(page)
    assert page.locator(".assistant .alert").inner_text() == "The server does not answer. Is it still running?"


def test_reasoning_is_folded(chat, stand_in):
    for field in ("reasoning", "reasoning_content"):
        stand_in.answer({field: "Let me "}, {field: "think."}, HOLD, *text("Done."))
        send(chat, "Why?")
        summary = chat.locator("details summary").last
        summary.get_by_text("Thinking").wait_for()
        stand_in.release()
        ended(chat)
        assert summary.inner_text() == "Reasoning"
        thoughts = chat.locator("details .quiet").last
        assert not thoughts.is_visible()
        summary.click()
        assert thoughts.inner_text() == "Let me think."
        assert last_answer(chat) == "Done."
    assert stand_in.requests[-1]["messages"][1] == {
        "role": "assistant",
        "content": "Done.",
        "reasoning": "Let me think.",
    }


def test_so_is_what_a_model_thinks_in_tags(chat, stand_in):
    stand_in.answer(*text("<think>\nLet ", "me think."), HOLD, *text("\n</think>\n\n", "Done."))
    send(chat, "Why?")
    chat.locator("summary", has_text="Thinking").wait_for()
    assert last_answer(chat) == ""
    stand_in.release()
    ended(chat)
    assert last_answer(chat) == "Done."
    chat.locator("summary").click()
    assert chat.locator("details .quiet").inner_text() == "Let me think."


def test_the_page_waits_until_the_model_is_loaded(stand_in, open_page):
    stand_in.loading = True
    page = open_page(stand_in.url, errors="503")
    page.get_by_text("The model is still loading.").wait_for()
    stand_in.loading = False
    until(page, "document.querySelector('#model').value === 'scripted'")
    assert page.locator("#alert").is_hidden()
    send(page, "Hi")
    ended(page)
    assert last_answer(page) == "Hello."


def test_tool_calls_are_folded_and_their_results_sent(chat, stand_in):
    def part(index, **function):
        return {"index": index, "function": function}

    stand_in.answer(
        {"tool_calls": [{"id": "a", "type": "function", **part(0, name="get_weather", arguments="")}]},
        {"tool_calls": [part(0, arguments='{"city": ')]},
        {"tool_calls": [part(0, arguments='"Oslo"}')]},
        {"tool_calls": [{"id": "b", "type": "function", **part(1, name="get_time", arguments="{}")}]},
        finish="tool_calls",
    )
    send(chat, "Weather?")
    ended(chat)
    folds = chat.locator(".calls details")
    assert folds.locator("summary").all_inner_texts() == ["Tool call: get_weather", "Tool call: get_time"]
    assert not folds.locator("pre").first.is_visible()
    folds.locator("summary").first.click()
    assert json.loads(folds.locator("pre").first.inner_text()) == {"city": "Oslo"}
    stand_in.answer(*text("It is cold."))
    chat.get_by_label("Result of get_weather").fill("-3")
    chat.get_by_label("Result of get_time").fill("noon")
    chat.get_by_role("button", name="Send the results").click()
    ended(chat)
    assert last_answer(chat) == "It is cold."
    assert stand_in.requests[-1]["messages"][1:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}},
                {"id": "b", "type": "function", "function": {"name": "get_time", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "-3"},
        {"role": "tool", "tool_call_id": "b", "content": "noon"},
    ]


def test_chats_are_kept_in_the_tab_and_nowhere_else(chat, stand_in, open_page):
    send(chat, "Remember this")
    ended(chat)
    chat.get_by_role("button", name="New chat").first.click()
    assert chat.locator("article").count() == 0
    send(chat, "Another")
    ended(chat)
    chat.reload()
    assert chat.locator(".chat-link").all_inner_texts() == ["Another", "Remember this"]
    chat.get_by_role("button", name="Remember this", exact=True).click()
    assert chat.locator(".bubble").inner_text() == "Remember this"
    other = open_page(stand_in.url)
    assert other.locator(".chat-link").all_inner_texts() == ["New chat"]
    assert chat.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    chat.get_by_role("button", name="Delete the chat: Another").click()
    assert chat.locator(".chat-link").all_inner_texts() == ["Remember this"]


def test_the_next_request_can_be_copied_as_a_command(chat):
    chat.context.grant_permissions(["clipboard-read", "clipboard-write"])
    chat.get_by_label("Message", exact=True).fill("It's me")
    chat.get_by_role("button", name="Copy as curl").click()
    chat.get_by_role("button", name="Copied").wait_for()
    command = chat.evaluate("navigator.clipboard.readText()")
    assert command.startswith(f"curl -N {chat.url}v1/chat/completions -H 'Content-Type: application/json' -d '{{")
    assert '"content": "It\'\\\'\'s me"' in command
