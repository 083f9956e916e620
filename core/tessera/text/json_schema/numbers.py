"""Numbers of a range, as regular expressions over how JSON writes them, with a bounded number of digits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

INTEGER_DIGITS = 19
"""Of an integer, and before the decimal point, unless the range of a schema says otherwise."""
FRACTION_DIGITS = 20
_LEAST_STEP = Decimal("0.01")
_EXPONENT = r"(?:[eE][+-]?[0-9]{1,2})?"
_DIGIT = "[0-9]"


@dataclass
class Numbers:
    """What a schema says of numbers."""

    low: Decimal | None = None
    high: Decimal | None = None
    # Whether the bound itself is excluded.
    low_open: bool = False
    high_open: bool = False
    # Only whole ones.
    integer: bool = False
    # Only those that are not whole.
    fractional: bool = False
    # Of each of these.
    multiples: list[Decimal] = field(default_factory=list)
    # None of these.
    excluded: list[Any] = field(default_factory=list)

    def at_least(self, bound: Decimal, *, is_open: bool = False) -> None:
        if self.low is None or (bound, is_open) > (self.low, self.low_open):
            self.low, self.low_open = bound, is_open

    def at_most(self, bound: Decimal, *, is_open: bool = False) -> None:
        if self.high is None or (bound, not is_open) < (self.high, not self.high_open):
            self.high, self.high_open = bound, is_open

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """The least and the greatest integer."""
        low = high = None
        closed = self._closed
        if closed.low is not None:
            low = int(closed.low.to_integral_value("ROUND_CEILING"))
            low += closed.low_open and low == closed.low
        if closed.high is not None:
            high = int(closed.high.to_integral_value("ROUND_FLOOR"))
            high -= closed.high_open and high == closed.high
        return low, high

    @property
    def none(self) -> bool:
        """Whether no number is of the range."""
        if self.integer and self.fractional:
            return True
        closed = self._closed
        low, high = self.bounds if self.integer else (closed.low, closed.high)
        if low is None or high is None:
            return False
        if self.step is not None and not self.integer:
            least = (low / self.step).to_integral_value("ROUND_CEILING") * self.step
            if least > high or (least == high and self.high_open and high == closed.high and closed.high_open):
                return True
        is_open = closed.low_open or closed.high_open or self.fractional
        return low > high or (not self.integer and low == high and is_open)

    @property
    def _closed(self) -> Numbers:
        """The same range for a reader that has binary numbers: what it would round to an open bound is not in it. A
        bound of 0 stays open, for no decimal of few digits is rounded to 0."""
        found = replace(self)
        if self.low_open and self.low and (low := _beside(self.low, math.inf)).is_finite():
            found.low, found.low_open = low, False
        if self.high_open and self.high and (high := _beside(self.high, -math.inf)).is_finite():
            found.high, found.high_open = high, False
        return found

    @property
    def step(self) -> Decimal | None:
        """Of what these are multiples, if 1 is one too, so that only the fraction tells them."""
        if not self.multiples:
            return None
        steps = [Decimal(str(each)) for each in self.multiples]
        if not all(step >= _LEAST_STEP and 1 % step == 0 for step in steps):
            return None
        scale = max(0, *(-int(step.normalize().as_tuple().exponent) for step in steps))
        return Decimal(math.lcm(*(int(step.scaleb(scale)) for step in steps))).scaleb(-scale)

    @property
    def writable(self) -> bool:
        """Whether a grammar can say it: not of multiples of which some are excluded."""
        return not self.multiples or self.step is not None or not (self.fractional or self.excluded)

    def regex(self) -> str:
        """A regular expression of the numbers in the range, whatever else is said of them."""
        if self.integer:
            return integers(*self.bounds)
        return _decimals(self._closed)


def multiples(step: Decimal) -> str:
    """A regular expression of the multiples of a step, of which 1 is one: their fraction says so."""
    scale = max(0, -int(step.normalize().as_tuple().exponent))
    fractions = [f"{place * int(step.scaleb(scale)):0{scale}}".rstrip("0") for place in range(int(1 / step))]
    zeros = rf"0{{0,{max(scale, 1)}}}"
    return rf"-?[0-9]+(?:\.(?:{'|'.join(each + zeros for each in fractions[1:])}{'|' * (len(fractions) > 1)}0{zeros}))?"


def _beside(bound: Decimal, towards: float) -> Decimal:
    """The binary number of 64 bits that is next to a bound."""
    return Decimal(repr(math.nextafter(float(bound), towards)))


def integers(low: int | None, high: int | None) -> str:
    """The integers from low to high, both included; None: as many digits as an integer may have."""
    most: int = 10**INTEGER_DIGITS - 1
    if low is None:
        low = -most if high is None or high > -most else 10 * high
    if high is None:
        high = most if low < most else 10 * low
    if low == -high:
        return f"(?:0|-?{_either(_between(1, high))})" if high else "0"
    forms = []
    if low < 0:
        forms.append(f"-{_either(_between(max(1, -high), -low))}")
    if high >= 0:
        forms += _between(max(0, low), high)
    return _either(forms)


def _between(low: int, high: int) -> list[str]:
    """Integers that are not negative."""
    forms = []
    if not low:
        forms, low = ["0"], 1
    while low <= high:
        digits = len(str(low))
        whole = len(str(high + 1)) - 1 if low == 10 ** (digits - 1) else 0
        if whole >= digits:  # all numbers of so many digits
            forms.append(f"[1-9][0-9]{{{digits - 1},{whole - 1}}}")
            low = 10**whole
        else:
            end = min(high, 10**digits - 1)
            forms += _same_length(str(low), str(end))
            low = end + 1
    return forms


def _either(forms: list[str]) -> str:
    return forms[0] if len(forms) == 1 else f"(?:{'|'.join(forms)})"


def _same_length(low: str, high: str) -> list[str]:
    """Texts of digits from low to high, which have the same length."""
    if not low:
        return [""]
    rest = len(low) - 1
    if low == "0" * len(low) and high == "9" * len(high):
        return [_digits(len(low))]
    if low[0] == high[0]:
        return [f"{low[0]}{_either(_same_length(low[1:], high[1:]))}"]
    forms, first, last = [], int(low[0]), int(high[0])
    if low[1:] != "0" * rest:
        above = _either(_same_length(low[1:], "9" * rest))
        forms.append(f"{first}{above}")
        first += 1
    whole_end = high[1:] == "9" * rest
    middle = last if whole_end else last - 1
    if first <= middle:
        head = f"[{first}-{middle}]" if first < middle else str(first)
        forms.append(f"{head}{_digits(rest)}")
    if not whole_end:
        below = _either(_same_length("0" * rest, high[1:]))
        forms.append(f"{last}{below}")
    return forms


def _digits(count: int) -> str:
    return _DIGIT * count if count < 2 else f"{_DIGIT}{{{count}}}"


# ---- decimals --------------------------------------------------------------------------------------------------------


def _decimals(numbers: Numbers) -> str:
    whole = rf"(?:0|[1-9][0-9]{{0,{INTEGER_DIGITS - 1}}})"
    fraction = rf"(?:\.[0-9]{{1,{FRACTION_DIGITS}}})?"
    low, high = numbers.low, numbers.high
    if numbers.fractional:
        fraction, exponent = rf"\.[0-9]{{0,{FRACTION_DIGITS - 1}}}[1-9]", ""
    else:
        exponent = _EXPONENT
    if low is None and high is None:
        return f"-?{whole}{fraction}{exponent}"
    if low == 0 and high is None and not numbers.low_open:
        return f"{whole}{fraction}{exponent}"
    forms = []
    if low is None or low < 0:
        top = None if low is None else -low
        bottom, bottom_open = (-high, numbers.high_open) if high is not None and high < 0 else (Decimal(0), True)
        if high == 0:
            bottom_open = True
        forms += [f"-{form}" for form in _of_range(bottom, bottom_open, top, numbers.low_open)]
    if high is None or high >= 0:
        bottom, bottom_open = (low, numbers.low_open) if low is not None and low >= 0 else (Decimal(0), False)
        forms += _of_range(bottom, bottom_open, high, numbers.high_open)
    return f"(?:{'|'.join(forms)})" if forms else "[]"


def _of_range(low: Decimal, low_open: bool, high: Decimal | None, high_open: bool) -> list[str]:
    """Decimals that are not negative: by their whole part, and where that is a bound's, by their fraction."""
    low_whole, low_fraction = _split(low)
    any_fraction = rf"(?:\.[0-9]{{1,{FRACTION_DIGITS}}})?"
    if high is None:
        above = integers(low_whole + 1, None)
        return [f"{above}{any_fraction}", *(f"{low_whole}{form}" for form in _from(low_fraction, low_open))]
    if (low, low_open or high_open) > (high, False):
        return []
    high_whole, high_fraction = _split(high)
    if low_whole == high_whole:
        return [f"{low_whole}{form}" for form in _fractions(low_fraction, low_open, high_fraction, high_open)]
    forms = [f"{low_whole}{form}" for form in _from(low_fraction, low_open)]
    if low_whole + 1 < high_whole:
        forms.append(f"{integers(low_whole + 1, high_whole - 1)}{any_fraction}")
    return forms + [f"{high_whole}{form}" for form in _up_to(high_fraction, high_open)]


def _split(number: Decimal) -> tuple[int, str]:
    """The whole part, and the digits of the fraction without zeros at the end."""
    whole, _, fraction = f"{number:f}".partition(".")
    return int(whole), fraction.rstrip("0")


def _from(low: str, low_open: bool) -> list[str]:
    """Fractions, with the point or empty, that are at least 0.low, or more."""
    more = max(FRACTION_DIGITS - len(low), 1)
    if not low:
        if low_open:
            return [rf"\.[0-9]{{0,{more - 1}}}[1-9][0-9]{{0,{more}}}"]
        return [rf"(?:\.[0-9]{{1,{FRACTION_DIGITS}}})?"]
    forms = [
        rf"\.{low[:place]}[{int(digit) + 1}-9][0-9]{{0,{FRACTION_DIGITS}}}"
        for place, digit in enumerate(low)
        if digit != "9"
    ]
    end = rf"[0-9]{{0,{more}}}[1-9][0-9]{{0,{more}}}" if low_open else rf"[0-9]{{0,{more}}}"
    return [*forms, rf"\.{low}{end}"]


def _up_to(high: str, high_open: bool) -> list[str]:
    """Fractions that are at most 0.high, or less."""
    if not high:
        return [] if high_open else [rf"(?:\.0{{1,{FRACTION_DIGITS}}})?"]
    forms = ["", *(rf"\.{high[:place]}" for place in range(1, len(high)))]
    forms += [
        rf"\.{high[:place]}[0-{int(digit) - 1}][0-9]{{0,{FRACTION_DIGITS}}}"
        for place, digit in enumerate(high)
        if digit != "0"
    ]
    return forms if high_open else [*forms, rf"\.{high}0{{0,{FRACTION_DIGITS}}}"]


def _fractions(low: str, low_open: bool, high: str, high_open: bool) -> list[str]:
    """Fractions between two, digit by digit while these are the same."""
    if not low and not low_open:
        return _up_to(high, high_open)
    size = max(len(low), len(high))
    forms = [] if low_open else [rf"\.{low}0{{0,{size - len(low)}}}"]
    low, high = low.ljust(size, "0"), high.ljust(size, "0")
    place = next((at for at in range(size) if low[at] != high[at]), size)
    shared = low[:place]
    if place == size:
        return (
            [] if low_open or high_open else [rf"\.{low}0{{0,{FRACTION_DIGITS}}}" if low.strip("0") else r"(?:\.0+)?"]
        )
    first, last = int(low[place]) + 1, int(high[place]) - 1
    if first <= last:
        forms.append(rf"\.{shared}[{first}-{last}][0-9]{{0,{FRACTION_DIGITS}}}")
    forms += [_after_point(rf"{shared}{low[place]}", form) for form in _from(low[place + 1 :].rstrip("0"), low_open)]
    forms += [
        _after_point(rf"{shared}{high[place]}", form) for form in _up_to(high[place + 1 :].rstrip("0"), high_open)
    ]
    return forms


def _after_point(digits: str, fraction: str) -> str:
    """A form of a fraction, to stand after these digits of the fraction."""
    return rf"\.{digits}{fraction.replace('.', '', 1).replace(chr(92), '', 1) if fraction else ''}"
