"""The engine's tab: its figures are those of /metrics, they change, and nothing is read while nobody looks."""

from __future__ import annotations

import json
import urllib.request

from tests.page.conftest import until


def card(page, name):
    return page.locator(".card", has=page.get_by_role("heading", name=name, exact=True))


def figure(page, name):
    return card(page, name).locator(".value").inner_text()


def words(page, name):
    return card(page, name).locator("p").last.inner_text()


def test_figures_of_the_served_demo_change(open_page, demo):
    page = open_page(f"{demo.url}/")
    page.get_by_role("tab", name="Engine").click()
    page.get_by_text("Serving").wait_for()
    before = figure(page, "Requests done")
    body = {
        "model": "tessera-demo",
        "messages": [{"role": "user", "content": "Hello!"}],
        "max_tokens": 200,
        "ignore_eos": True,
    }
    headers = {"Content-Type": "application/json"}
    for _ in range(3):
        request = urllib.request.Request(f"{demo.url}/v1/chat/completions", json.dumps(body).encode(), headers)
        urllib.request.urlopen(request).close()
    until(page, "Number(document.querySelector('.value').textContent) > 0")  # the first is tokens generated
    card(page, "Requests done").get_by_text(str(int(before) + 3), exact=True).wait_for()
    assert "length" in words(page, "Requests done")
    assert page.locator(".column").count() >= 3
    labels = [one.get_attribute("aria-label") for one in page.get_by_role("img").all()]
    assert len(labels) == 5
    assert all("median" in label for label in labels[2:])


def test_figures_follow_from_the_metrics(stand_in, open_page):
    page = open_page(stand_in.url)
    page.get_by_role("tab", name="Engine").click()
    until(page, "Number(document.querySelector('.value').textContent) > 50")
    assert 70 < float(figure(page, "Tokens generated")) < 110  # 100 a reading, of which there is one a second
    assert figure(page, "Running") == "3"
    assert figure(page, "Waiting") == "12"
    assert (figure(page, "KV cache in use"), words(page, "KV cache in use")) == ("25%", "of 1,600 tokens")
    assert figure(page, "Drafts accepted") == "75%"
    assert (figure(page, "Requests done"), words(page, "Requests done")) == ("9", "7 stop, 2 abort")
    page.get_by_text("preemptions: 4 \u00b7 on the reference implementation: moe", exact=True).wait_for()
    chart = card(page, "Time to first token")
    assert chart.locator(".figures").inner_text() == "median 200 ms, 95% within 380 ms"
    assert chart.locator("title").all_text_contents() == [
        "0 to 100 ms: 0",
        "100 ms to 200 ms: 10",
        "200 ms to 400 ms: 10",
        "400 ms to more: 0",
    ]
    page.get_by_label("Latency of requests").select_option("in the last two minutes")
    assert chart.locator(".figures").inner_text() == "no requests yet"
    assert page.locator(".facts").inner_text() == "Tessera 1.2.3 \u00b7 scripted \u00b7 4,096 tokens of context"


def test_the_metrics_are_read_only_while_they_are_shown(stand_in, open_page):
    page = open_page(stand_in.url)
    page.wait_for_timeout(1200)
    assert "/metrics" not in stand_in.paths
    page.get_by_role("tab", name="Engine").click()
    page.wait_for_timeout(2300)
    assert 2 <= stand_in.paths.count("/metrics") <= 4
    page.get_by_role("tab", name="Chat").click()
    page.wait_for_timeout(100)
    count = stand_in.paths.count("/metrics")
    page.wait_for_timeout(1200)
    assert stand_in.paths.count("/metrics") == count


def test_a_server_that_is_gone_is_said(stand_in, open_page):
    page = open_page(stand_in.url, errors="ERR_")
    page.get_by_role("tab", name="Engine").click()
    page.get_by_text("Serving").wait_for()
    stand_in.stop()
    page.get_by_text("The server does not answer; trying again.").wait_for()
