"""docs/models.md lists every causal type of transformers as the code decides it."""

from __future__ import annotations

import zlib

import pytest
import torch
import transformers

from tessera.models.through_transformers.types import causal_types
from tools.causal_types import NATIVE, REFUSED, THROUGH, decide, native_architectures, read_rows, render, written
from tools.parity.through_transformers import THROUGH_TRANSFORMERS

ROWS = read_rows(written())
SHARES = 14
BY_DEFAULT_REFUSED = {"hrm_text"}
"""Compared with other fields than published models have: HRM-Text without prefix_lm."""
ALWAYS = ("gpt2", "opt", "starcoder2", "cohere2_moe", "olmoe", "bloom", "gpt_oss", "mamba", "bart", "lfm2", "axk1")


def share_of(number):
    return [row for row in ROWS if zlib.crc32(row.model_type.encode()) % SHARES == number]


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_every_type_has_a_row():
    assert {row.model_type: row.architecture for row in ROWS} == causal_types()


def test_native_is_what_the_registry_has():
    native = native_architectures()
    assert {row.architecture for row in ROWS if row.how == NATIVE} == native & set(causal_types().values())


def test_the_page_is_what_its_rows_render_to():
    assert written() == render(ROWS, transformers.__version__)
    assert {row.how for row in ROWS} == {NATIVE, THROUGH, REFUSED}
    assert all(row.reason for row in ROWS if row.how == REFUSED)


def test_what_runs_through_transformers_is_compared():
    compared = set(THROUGH_TRANSFORMERS)
    named = {row.model_type for row in ROWS if row.how == THROUGH}
    assert compared - BY_DEFAULT_REFUSED <= {row.model_type for row in ROWS if row.how != REFUSED}
    assert len(named & compared) >= 12


@pytest.mark.parametrize("row", [row for row in ROWS if row.model_type in ALWAYS], ids=lambda row: row.model_type)
def test_a_row_is_what_loading_decides(row):
    assert decide(row.model_type, row.architecture, native_architectures()) == row


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(SHARES))
def test_all_rows_are_what_loading_decides(number):
    native = native_architectures()
    assert [decide(row.model_type, row.architecture, native) for row in share_of(number)] == share_of(number)
