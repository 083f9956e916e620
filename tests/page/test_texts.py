"""The view of models that answer with numbers: over a served embedder, and over a stand-in for the other kinds."""

from __future__ import annotations

import json
import urllib.request

import numpy as np
import pytest

from tests.e2e.served import Served
from tests.page.conftest import PHONE, until
from tests.page.test_access import audit

TEXTS = ["The cat sleeps.", "A cat naps <b>here</b>.", "Bread is baked."]
QUERY = "Where is the cat?"
RANKED = {"/rerank": {"results": [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.25}]}}
VECTORS = {"/v1/embeddings": {"data": [{"embedding": one} for one in ([3, 4], [4, 3], [-4, -3])]}}


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    """The bundled demo, which does nothing but embed."""
    arguments = ["--runner", "pooling", "--convert", "embed", "--max-model-len", "64"]
    with Served(arguments, tmp_path_factory.mktemp("log") / "log") as server:
        yield server


def post(server, path, **body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def enter(page, texts, query=None):
    page.get_by_role("textbox", name="Texts").fill("\n".join(texts))
    if query is not None:
        page.get_by_label("Query").fill(query)


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()
    until(page, "!document.querySelector('#texts .pulse')")


def number(text):
    return float(text.replace("\u2212", "-"))


def cells(page):
    """The numbers of the table, [texts, texts]."""
    rows = page.locator(".heat tbody tr").all()
    return [[number(cell) for cell in row.locator("td").all_inner_texts()] for row in rows]


def scores(page):
    """The texts of a list with their scores, in its order."""
    lines = zip(*(page.locator(f".scored .{name}").all_inner_texts() for name in ("text", "score")), strict=True)
    return [(text, number(score)) for text, score in lines]


def opened(open_page, stand_in, tasks, labels=()):
    stand_in.does = {"tasks": [*tasks], "labels": [*labels]}
    page = open_page(stand_in.url)
    until(page, "document.querySelector('#model').value === 'scripted'")
    return page


# ---- a served embedder -----------------------------------------------------------------------------------------------


def test_a_served_embedder_compares_and_ranks_instead_of_chatting(open_page, embedder):
    page = open_page(embedder.url + "/", errors="400")
    page.get_by_role("heading", name="How similar are these texts?").wait_for()
    assert [tab.inner_text() for tab in page.get_by_role("tab").all()] == ["Texts", "Engine"]
    enter(page, TEXTS, QUERY)
    press(page, "Compare")
    vectors = np.array([one["embedding"] for one in post(embedder, "/v1/embeddings", input=TEXTS)["data"]])
    np.testing.assert_allclose(cells(page), vectors @ vectors.T, atol=0.006)
    assert page.locator(".heat th[scope=row]").nth(1).inner_text().endswith(TEXTS[1])
    ranked = post(embedder, "/rerank", query=QUERY, documents=TEXTS)["results"]
    assert scores(page) == [(TEXTS[one["index"]], round(one["relevance_score"], 2)) for one in ranked]
    enter(page, [*TEXTS, "word " * 200])
    press(page, "Compare")
    assert "maximum context length is 64 tokens" in page.locator("#texts .alert").inner_text()
    assert page.locator(".heat").count() == 0


# ---- a stand-in ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_pairs_are_a_table_from_one_request(open_page, stand_in, scheme):
    stand_in.numbers, stand_in.does = VECTORS | RANKED, {"tasks": ["embed"]}
    page = open_page(stand_in.url, viewport=PHONE, color_scheme=scheme)
    enter(page, [f"{text} {'word' * 40}" for text in TEXTS], QUERY)
    press(page, "Compare")
    assert cells(page) == [[1, 0.96, -0.96], [0.96, 1, -1], [-0.96, -1, 1]]
    assert page.locator(".heat th[scope=col]").all_inner_texts() == ["1", "2", "3"]
    assert stand_in.paths.count("/v1/embeddings") == 1
    level = "[...document.querySelectorAll('.heat tbody td')].map(one => one.style.getPropertyValue('--level'))"
    assert page.evaluate(level)[:3] == ["", "100%", "2%"]
    assert audit(page) == {}
    page.reload()
    until(page, "document.querySelector('#model').value === 'scripted'")
    assert page.get_by_label("Query").input_value() == QUERY


def test_a_reranker_ranks_for_a_query_and_scores_without_one(open_page, stand_in):
    alone = [{"index": index, "probs": [0.1 + index / 2], "num_classes": 1} for index in (0, 1)]
    stand_in.numbers = RANKED | {"/classify": {"data": alone}}
    page = opened(open_page, stand_in, ["classify"], ["LABEL_0"])
    enter(page, TEXTS[:2], QUERY)
    press(page, "Rank")
    assert scores(page) == [(TEXTS[1], 0.9), (TEXTS[0], 0.25)]
    body = {"model": "scripted", "query": QUERY, "documents": TEXTS[:2], "return_documents": False}
    assert stand_in.requests == [body]
    enter(page, TEXTS[:2], "")
    press(page, "Rank")
    assert scores(page) == [(TEXTS[1], 0.6), (TEXTS[0], 0.1)]


def test_a_classifier_shows_the_likeliest_labels(open_page, stand_in):
    probs = [{"index": index, "probs": [0.2, 0.7, 0.1], "num_classes": 3} for index in (0, 1)]
    stand_in.numbers = {"/classify": {"data": probs}}
    page = opened(open_page, stand_in, ["classify", "token_classify"], ["sad", "glad", "mad"])
    assert page.get_by_label("Query").is_hidden()
    enter(page, TEXTS[:2])
    press(page, "Classify")
    assert scores(page) == [("glad", 0.7), ("sad", 0.2), ("mad", 0.1)] * 2
    assert page.locator(".labelled > p").all_inner_texts() == TEXTS[:2]


def test_what_is_not_sent_is_said(open_page, stand_in):
    page = opened(open_page, stand_in, ["token_embed"])
    for texts, query, problem in (
        (TEXTS, "", "Write a query."),
        ([" ", ""], QUERY, "Write some texts, one on each line."),
        (["text"] * 41, QUERY, "These are 41 texts; write at most 40."),
    ):
        enter(page, texts, query)
        press(page, "Rank")
        assert page.locator("#texts .alert").inner_text() == problem
    page = opened(open_page, stand_in, ["token_classify"])
    page.get_by_text("POST /pooling has them").wait_for()
    assert page.locator("#texts form").is_hidden()
    assert not stand_in.requests


def test_a_model_that_does_both_has_both_views(open_page, stand_in):
    page = opened(open_page, stand_in, ["generate", "embed"])
    tabs = page.get_by_role("tab")
    page.evaluate("document.querySelector('#chat-tab').focus()")
    for name in ("Texts", "Engine", "Chat", "Texts"):
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.textContent.trim()") == name
    assert [tab.inner_text() for tab in tabs.all()] == ["Chat", "Texts", "Engine"]
    assert page.locator("#chat").is_hidden()
    assert page.locator("#texts").is_visible()
    page.set_viewport_size(PHONE)
    assert audit(page) == {}
