"""docs/models.md lists every type of transformers that reads images or hears as the code decides it."""

from __future__ import annotations

import zlib

import pytest
import torch
import transformers

from tools.causal_types import REFUSED
from tools.media_types import (
    FAMILIES,
    IMAGES,
    PAGE,
    SPEECH,
    TEXT_ALONE,
    causal_rows,
    decide,
    families_by_type,
    read_rows,
    render,
)

ROWS = read_rows(PAGE.written())
SHARES = 14
ALWAYS = ("muse_glimmer", "qwen3_asr", "mllama", "pix2struct")


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_every_type_has_a_row():
    assert [(row.model_type, row.architecture) for row in ROWS] == [*IMAGES.items(), *SPEECH.items()]


def test_the_page_is_what_its_rows_render_to():
    assert PAGE.written() == render(ROWS, transformers.__version__)


def test_what_is_served_is_compared_and_what_is_not_has_a_reason():
    for row in ROWS:
        assert bool(row.family) == bool(row.reads) == (row.how not in (REFUSED, TEXT_ALONE))
        assert row.family in FAMILIES if row.family else row.reason


@pytest.mark.parametrize("row", [row for row in ROWS if row.model_type in ALWAYS], ids=lambda row: row.model_type)
def test_a_row_is_what_loading_decides(row):
    assert decide(row.model_type, row.architecture, row.family or None, causal_rows()) == row


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(SHARES))
def test_all_rows_are_what_loading_decides(number):
    families, causal = families_by_type(), causal_rows()
    for row in ROWS:
        if zlib.crc32(row.model_type.encode()) % SHARES == number:
            assert decide(row.model_type, row.architecture, families.get(row.model_type), causal) == row
