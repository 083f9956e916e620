"""That docs/evidence/platforms.md says of a platform what it answers where it is tested."""

from __future__ import annotations

from tools.platform_answers import answers
from tools.platform_table import PAGE, on_page


def answers_as_the_page_says(name: str) -> None:
    said = on_page(PAGE.read_text(encoding="utf-8"))[name]
    assert answers(name) == said, f"run python -m tools.platform_table --ask {name}"
