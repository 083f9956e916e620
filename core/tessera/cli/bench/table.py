"""Figures in two columns, for people."""

from __future__ import annotations

from collections.abc import Iterable

_LABEL = 34


def table(title: str, sections: Iterable[tuple[str, Iterable[tuple[str, str]]]]) -> str:
    """sections: a heading ("" for none) and its rows."""
    lines = [title]
    for heading, rows in sections:
        lines += ["", *([heading] if heading else [])]
        lines += [f"  {label:<{_LABEL}} {text:>12}" for label, text in rows]
    return "\n".join(lines)
