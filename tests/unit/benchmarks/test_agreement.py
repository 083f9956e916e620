from __future__ import annotations

import pytest
from benchmarks.agreement import Agreement, Reference, agreement, worst

REFERENCE = Reference(
    "transformers",
    [[1], [2]],
    [[5, 6, 7], [8, 9, 10]],
    [[{5: 0.0, 1: 0.02}, {6: 0.0, 2: 0.2}, {7: 0.0}], [{8: 0.0, 3: 2.0}, {9: 0.0}, {10: 0.0}]],
)


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ([[5, 6, 7], [8, 9, 10]], Agreement(6, 6, 0.0, "transformers")),
        ([[5, 6, 7]], Agreement(3, 3, 0.0, "transformers")),
        ([[1, 99, 99]], Agreement(0, 1, 0.02, "transformers")),
        ([[5, 2, 99], [8, 9, 10]], Agreement(4, 5, 0.2, "transformers")),
        ([[5, 6, 99], [3, 9, 10]], Agreement(2, 4, None, "transformers")),
    ],
)
def test_an_answer_is_followed_until_it_parts(answers: list[list[int]], found: Agreement):
    assert agreement(answers, REFERENCE) == found


def test_fewer_bits_may_part_wider():
    apart = Agreement(3, 4, 0.2, "")
    assert [apart.holds(precision) for precision in ("plain", "int8", "int4")] == [False, True, True]


def test_what_is_further_than_the_reference_looked_never_holds():
    assert not Agreement(3, 4, None, "").holds("int4")


def test_several_are_as_wide_apart_as_the_widest():
    found = [Agreement(3, 4, 0.2, "one"), Agreement(8, 8, 0.0, "one")]
    assert worst(found) == Agreement(11, 12, 0.2, "one")
    assert worst([*found, Agreement(0, 1, None, "one")]).gap is None
