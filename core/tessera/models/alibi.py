"""The slopes of linear biases (ALiBi, arXiv:2108.12409), which follow from the number of heads."""

from __future__ import annotations


def alibi_slopes(heads: int, bias_max: float = 8.0) -> tuple[float, ...]:
    """Of each head, in falling powers of two down to 2**-bias_max. If the number of heads is no power of two: those of
    the power of two below it, then the ones that the next power has between them, from the largest on."""
    power = 1 << (heads - 1).bit_length()
    slopes = [2.0 ** (-bias_max * (number + 1) / power) for number in range(power)]
    return tuple(slopes) if power == heads else tuple((slopes[1::2] + slopes[::2])[:heads])
