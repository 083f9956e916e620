"""What the loader's copies leave is what torch's would."""

from __future__ import annotations

import threading

import pytest
import torch

from tessera.loader.load import LEAST, CopyThreads


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


@pytest.mark.parametrize(
    "source",
    [
        torch.arange(LEAST, dtype=torch.int64).view(-1, 64),  # of several threads
        torch.arange(6, dtype=torch.bfloat16).view(2, 3),
        torch.arange(6, dtype=torch.float32).view(2, 3),  # of another dtype
        torch.arange(6, dtype=torch.bfloat16).view(3, 2).t(),  # not dense
        torch.arange(6, dtype=torch.float32).to(torch.float8_e4m3fn).view(2, 3),
        torch.empty(0, 3),
        torch.tensor(2.5),
    ],
)
def test_a_copy_is_the_source(source):
    to = torch.zeros(source.shape, dtype=torch.bfloat16 if source.dtype == torch.float32 else source.dtype)
    with CopyThreads() as copies:
        copies.put(to, source)
    assert torch.equal(to.to(torch.float64), source.to(torch.float64))


def test_a_place_without_memory_takes_nothing():
    with CopyThreads() as copies:
        copies.put(torch.empty(2, 3, device="meta"), torch.ones(2, 3))


def test_no_thread_is_left():
    before = threading.active_count()
    with CopyThreads() as copies:
        copies.put(torch.zeros(LEAST), torch.ones(LEAST))
        assert threading.active_count() > before
    assert threading.active_count() == before
