"""Numbers with suffixes."""

from __future__ import annotations

import pytest

from tessera.errors import ConfigError
from tessera.sizes import parse_size, show_bytes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("1k", 1000),
        ("1K", 1024),
        ("32K", 32768),
        ("25.6k", 25600),
        ("1.5K", 1536),
        ("2m", 2_000_000),
        ("4G", 4 * 2**30),
        ("4GiB", 4 * 2**30),
        ("4 GiB", 4 * 2**30),
        ("4GB", 4 * 10**9),
        ("512MiB", 2**29),
        ("10B", 10),
        ("1T", 2**40),
    ],
)
def test_what_people_write(text, value):
    assert parse_size(text) == value


@pytest.mark.parametrize("text", ["", "k", "4X", "4GiBs", "-1", "1e3", "0x10", "1.5", "0.3k5", "nan", "4 G B", "٣x"])
def test_everything_else_is_refused(text):
    with pytest.raises(ConfigError, match="number"):
        parse_size(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (5_347_737, "5.1 MiB"), (4 * 2**30, "4.0 GiB"), (300 * 2**20, "300 MiB")],
)
def test_bytes_for_people(count, text):
    assert show_bytes(count) == text
