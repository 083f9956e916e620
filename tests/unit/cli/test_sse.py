"""Events out of a stream that arrives in any pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.cli.client import remote
from tessera.cli.client.remote import EventReader
from tessera.errors import ServerError

STREAM = (
    b": a comment\r\n\r\ndata: one\r\nid: 7\r\n\r\ndata:two\ndata: more\n\n\n"
    b"event: x\n\ndata: \xc3\xa9 : y\n\ndata:\n\ndata: [DONE]\n\n"
)
EVENTS = [b"one", b"two\nmore", "é : y".encode(), b"", b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_the_pieces_do_not_matter(cuts):
    reader, found = EventReader(), []
    edges = [0, *sorted(cuts), len(STREAM)]
    for start, end in zip(edges, edges[1:], strict=False):
        found += reader.feed(STREAM[start:end])
    assert found == EVENTS


def test_an_event_is_there_as_soon_as_it_ends_and_not_before():
    reader = EventReader()
    assert list(reader.feed(b"data: a\n")) == []
    assert list(reader.feed(b"\ndata: b\n")) == [b"a"]


@pytest.mark.parametrize("content", [b"data: " + b"x" * 100, b"data: 0123456789\n" * 10])
def test_an_event_without_end_is_refused(monkeypatch, content):
    monkeypatch.setattr(remote, "MAX_EVENT_BYTES", 64)
    with pytest.raises(ServerError, match="more than 64 bytes"):
        list(EventReader().feed(content))
