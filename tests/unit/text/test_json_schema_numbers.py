"""Numbers beside a bound that is excluded: what a reader of binary numbers of 64 bits takes for the bound is none."""

from __future__ import annotations

import json
import math
from decimal import Decimal, localcontext
from typing import Any

import pytest

from tessera.errors import RequestError
from tessera.sampling_params import StructuredOutputsParams
from tessera.text.grammar import byte_tokenizer, compile_grammar

BYTES = byte_tokenizer()
BOUNDS = ["1", "-1", "0.5", "0.1", "-0.3", "2.75", "99.5", "100", "-1000", "1000000.01", "4503599627370497.5", "1e-7",
          "9007199254740993", "0.30000000000000004", "-12345.678901234567"]  # fmt: skip


def compiled(schema: dict[str, Any]) -> Any:
    return compile_grammar(StructuredOutputsParams(json=json.dumps(schema)), BYTES)


def takes(matcher: Any, text: str) -> bool:
    own = matcher.deep_copy()
    return bool(own.consume_tokens(list(text.encode())) and own.is_accepting())


def beside(bound: str) -> list[str]:
    """Decimals on both sides of a bound, ever closer to it."""
    with localcontext() as context:
        context.prec = 60
        steps = [Decimal(digit).scaleb(-place) for place in range(25) for digit in (1, 4, 9)]
        return [f"{Decimal(bound) + sign * step:f}" for step in steps for sign in (1, -1)]


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("keyword", ["exclusiveMinimum", "exclusiveMaximum"])
def test_what_is_read_as_an_excluded_bound_is_not_allowed(keyword: str, bound: str) -> None:
    limit, towards = float(bound), math.inf if keyword == "exclusiveMinimum" else -math.inf
    matcher = compiled({"type": "number", keyword: limit})
    inside = [text for text in beside(repr(limit)) if (float(text) > limit if towards > 0 else float(text) < limit)]
    taken = [text for text in beside(repr(limit)) if takes(matcher, text)]
    assert taken
    assert set(taken) <= set(inside)
    nearest = f"{Decimal(repr(math.nextafter(limit, towards))):f}"
    assert takes(matcher, nearest)
    assert [text for text in inside if len(text.strip("-0.")) < 15] == [
        text for text in taken if len(text.strip("-0.")) < 15
    ]


def test_an_integer_is_not_read_as_an_excluded_bound() -> None:
    large = 2**53
    below = compiled({"type": "integer", "exclusiveMaximum": large + 1})
    assert [takes(below, str(large + place)) for place in (-1, 0, 1)] == [True, False, False]
    above = compiled({"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 11})
    assert [takes(above, text) for text in ("9", "10", "11")] == [False, True, False]


def test_a_range_between_two_neighbouring_binary_numbers_is_empty() -> None:
    with pytest.raises(RequestError, match="no value is valid by it"):
        compiled({"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": math.nextafter(1, 2)})
    one = compiled({"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 1 + 2 * math.ulp(1)})
    assert takes(one, repr(math.nextafter(1, 2)))


def test_what_is_read_as_an_excluded_value_is_not_allowed() -> None:
    matcher = compiled({"type": "number", "not": {"enum": [1, 0.25]}})
    for text in (
        "1",
        "1.0",
        "0.25",
        "0.99999999999999999999",
        "1.00000000000000000001",
        "0.2500000000000000001",
        "1e0",
    ):
        assert not takes(matcher, text), text
    for text in ("0.99999999999999", "1.0000000000001", "0.2500000000001", "2", "-1", "12345678901234567"):
        assert takes(matcher, text), text


def test_a_bound_of_zero_is_excluded_by_its_sign_alone() -> None:
    matcher = compiled({"type": "number", "exclusiveMinimum": 0, "maximum": 1})
    assert takes(matcher, "0.00000000000000000001")
    assert not takes(matcher, "0.00000000000000000000")


MULTIPLES = [
    (0.25, ["2", "2.0", "2.25", "2.5", "2.50", "-0.75", "0"], ["0.2", "2.26", "2.125", "1e2", "02"]),
    (0.01, ["7", "7.0", "7.07", "7.7", "7.70", "-99.99"], ["7.001", "7.015"]),
    (1, ["3", "3.0", "-3.0"], ["3.5", "3.01"]),
    (0.5, ["3", "3.5", "3.50"], ["3.25"]),
    (0.2, ["0.2", "1.8", "2.40"], ["0.1", "0.25"]),
]


@pytest.mark.parametrize(("step", "right", "wrong"), MULTIPLES, ids=[str(step) for step, _, _ in MULTIPLES])
def test_multiples_may_have_zeros_at_the_end(step: float, right: list[str], wrong: list[str]) -> None:
    matcher = compiled({"type": "number", "multipleOf": step})
    assert [text for text in right + wrong if takes(matcher, text)] == right


def test_multiples_keep_to_what_else_is_said_of_a_number() -> None:
    bounded = compiled({"type": "number", "multipleOf": 0.25, "exclusiveMinimum": 1, "maximum": 2})
    assert [text for text in ("1", "1.0", "1.25", "2", "2.25") if takes(bounded, text)] == ["1.25", "2"]
    both = compiled({"type": "number", "allOf": [{"multipleOf": 0.5}, {"multipleOf": 0.2}]})
    assert [text for text in ("1", "0.5", "0.2", "2.0") if takes(both, text)] == ["1", "2.0"]
    whole = compiled({"type": "integer", "multipleOf": 0.5})
    assert [text for text in ("1", "1.0", "1.5") if takes(whole, text)] == ["1"]
    others = compiled({"type": "number", "multipleOf": 0.5, "not": {"const": 1}})
    assert [text for text in ("1", "1.0", "1.5") if takes(others, text)] == ["1.5"]


@pytest.mark.parametrize("bounds", [(0.1, 0.4), (0.51, 0.99), (-0.4, -0.1)])
@pytest.mark.parametrize("keywords", [("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")])
def test_a_range_without_a_multiple_is_empty(keywords: tuple[str, str], bounds: tuple[float, float]) -> None:
    with pytest.raises(RequestError, match="no value is valid by it"):
        compiled({"type": "number", "multipleOf": 0.5, **dict(zip(keywords, bounds, strict=True))})


def test_a_range_that_excludes_its_only_multiples_is_empty() -> None:
    with pytest.raises(RequestError, match="no value is valid by it"):
        compiled({"type": "number", "multipleOf": 0.5, "exclusiveMinimum": 0.5, "exclusiveMaximum": 1})
    zero = {"type": "number", "multipleOf": 0.5, "maximum": 0, "minimum": -0.4}
    assert takes(compiled(zero), "0")
    with pytest.raises(RequestError, match="no value is valid by it"):
        compiled({**zero, "exclusiveMaximum": 0})


def test_a_literal_with_a_point_may_be_written_without() -> None:
    matcher = compiled({"enum": [2.0, 1.5, [3.0]]})
    right = ["2", "2.0", "1.5", "[3]", "[3.0]"]
    assert [text for text in [*right, "1", "3"] if takes(matcher, text)] == right
