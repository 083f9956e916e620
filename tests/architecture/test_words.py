from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tools.checks.words import Offence, offences, words

FILE = "core/tessera/runner/rows.py"
OTHER = "core/tessera/server/openai/rows.py"
OPENAI, OLLAMA = "core/tessera/server/openai/protocol.py", "core/tessera/server/ollama/protocol.py"

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Call it with a path and a text: the file is written into a tree that was empty, whose root comes back."""

    def file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")
        return tmp_path

    return file


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("def tokens(found): ...", "parameter found"),
        ("def tokens(*, _asked=()): ...", "parameter _asked"),
        ("def tokens(*given): ...", "parameter given"),
        ("def tokens(**more): ...", "parameter more"),
        ("key = lambda one: one", "parameter one"),
        ("class Rows:\n    kept: int = 0", "attribute kept"),
        ("class Rows:\n    said = ()", "attribute said"),
        ("class Rows:\n    def __init__(self):\n        self._held = {}", "attribute _held"),
        ("class Rows:\n    def __init__(self):\n        self.tokens, self.most = [], 1", "attribute most"),
        ("class Rows:\n    @classmethod\n    def of(cls): ...", "function of"),
        ("async def shown(): ...", "function shown"),
        ("def tokens():\n    def left(): ...", "function left"),
        ("class Given: ...", "class Given"),
        ("_KNOWN = (1, 2)", "constant _KNOWN"),
        ("OWN: int = 1", "constant OWN"),
        ("class Deaths: ...", "class Deaths"),
        ("def end_guilty(): ...", "function end_guilty"),
        ("_LAST_WORDS_SECONDS = 1", "constant _LAST_WORDS_SECONDS"),
        ("class AsStored: ...", "class AsStored"),
    ],
)
def test_a_name_that_is_not_the_fields_is_reported(write: Write, code: str, named: str) -> None:
    (offence,) = offences(write(FILE, code))
    assert (offence.rule, offence.file) == ("names", FILE)
    assert offence.text.startswith(f"{named}: ")


def test_a_module_has_a_name_of_the_field(write: Write) -> None:
    (offence,) = offences(write("tools/gpu/kept.py", ""))
    assert offence.text == "module kept: say what it is"


@pytest.mark.parametrize(
    "code",
    [
        "def tokens(rows):\n    found = [one for one in rows]\n    for left in found:\n        print(left)",
        "def tokens(rows):\n    with rows as given:\n        return given",
        "def tokens(tree):\n    return tree.left, tree.known",
        "class QuantizeAtLoad: ...",
        "def num_known_tokens(has_more): ...",
        "class NotFoundError(Exception): ...",
        "def recharge(discharged): ...",
        "from numpy import asked",
    ],
)
def test_locals_and_names_with_a_noun_are_not(write: Write, code: str) -> None:
    assert offences(write(FILE, code)) == []


@pytest.mark.parametrize("name", ["Rows", "_Rows"])
def test_a_class_name_that_occurs_twice_is_reported_at_both(write: Write, name: str) -> None:
    write(FILE, f"class {name}: ...")
    first, second = offences(write(OTHER, f"def rows():\n    class {name}: ..."))
    assert first == Offence("classes", FILE, 1, name, f"class {name} is also in {OTHER}")
    assert second == Offence("classes", OTHER, 2, name, f"class {name} is also in {FILE}")


def test_two_apis_may_have_a_name_in_common_but_not_with_core(write: Write) -> None:
    write(OPENAI, "class Usage: ...")
    assert offences(write(OLLAMA, "class Usage: ...")) == []
    assert len(offences(write(OTHER, "class Usage: ..."))) == 3


def test_a_platform_may_call_a_class_as_core_does(write: Write) -> None:
    write(FILE, "class Rows: ...")
    assert offences(write("platforms/mine/tessera_mine/rows.py", "class Rows: ...")) == []


PACKED = "rows: in all. tokens: of all rows. blocks [R] int32, slots [T]: where they are."
FIELDS = ("rows", "tokens", "blocks", "slots")


@pytest.mark.parametrize(
    "body",
    [
        "\n".join(f"    {field}: int" for field in FIELDS),
        f"    def __init__(self, {', '.join(FIELDS)}): ...",
        f"    def __init__(self):\n        {' = '.join(f'self.{field}' for field in FIELDS)} = 1",
    ],
    ids=["dataclass", "parameters", "attributes"],
)
def test_a_paragraph_of_fields_is_reported(write: Write, body: str) -> None:
    (offence,) = offences(write(FILE, f'class Launch:\n    """A launch.\n\n    {PACKED}\n    """\n\n{body}'))
    assert offence.rule == "fields"
    assert offence.text == "the docstring of Launch describes fields: blocks, rows, slots, tokens"


@pytest.mark.parametrize(
    "docstring", ["rows: in all. tokens: of all rows. blocks: where they are.", "In short: a, launch: of rows, b: c."]
)
def test_up_to_three_fields_may_stand_in_the_docstring(write: Write, docstring: str) -> None:
    fields = "\n".join(f"    # What it is.\n    {field}: int" for field in FIELDS)
    assert offences(write(FILE, f'class Launch:\n    """{docstring}"""\n\n{fields}')) == []


def test_an_offence_is_a_line_of_the_check(write: Write) -> None:
    assert words(write(FILE, "def tokens(found): ...")) == [f"{FILE}:1: parameter found: say what it is"]
