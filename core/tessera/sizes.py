"""Human-readable sizes: 32K tokens, 4GiB of memory."""

from __future__ import annotations

import re
from decimal import Decimal

from tessera.errors import ConfigError

_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<suffix>[A-Za-z]*)")
_POWERS = "kmgt"


def parse_size(text: str, *, param: str | None = None) -> int:
    """Parses a whole number with an optional suffix as vLLM does: k, m, g, t and KB, MB, ... are powers of 1000;
    K, M, G, T and KiB, MiB, ... powers of 1024.

    Raises ConfigError for anything else, and if the result is not a whole number.
    """
    match = _SIZE.fullmatch(text.strip())
    factor = _factor(match["suffix"]) if match else None
    if match is None or factor is None:
        raise ConfigError(f"'{text}' is not a number with an optional suffix, such as 4096, 32K or 4GiB.", param=param)
    value = Decimal(match["number"]) * factor
    if value != value.to_integral_value():
        raise ConfigError(f"'{text}' is not a whole number.", param=param)
    return int(value)


def _factor(suffix: str) -> int | None:
    if suffix in ("", "B"):
        return 1
    letter, unit = suffix[0], suffix[1:]
    power = _POWERS.find(letter.lower()) + 1
    if power == 0 or unit not in ("", "B", "iB"):
        return None
    binary = unit == "iB" or (unit == "" and letter.isupper())
    return int((1024 if binary else 1000) ** power)


def show_weights(count: int, numbers: int) -> str:
    """Formats the bytes of `numbers` weights: "5.1 MiB, 8.50 bits each". numbers: 0 if unknown."""
    return f"{show_bytes(count)}, {8 * count / numbers:.2f} bits each" if numbers else show_bytes(count)


def show_bytes(count: int) -> str:
    """Formats a number of bytes: "5.1 MiB"."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
