"""A page whose steps do not do what it says is found out, by step and line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs.steps import Shell, StepError, blocks, follow


def followed(page: str, folder: Path) -> int:
    with Shell(folder, os.environ) as shell:
        return follow(page, shell)


def test_steps_are_carried_out_in_one_shell(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/said.py").touch()
    page = (
        '# Page\n\n```console\n$ cd deep\n```\n\n```python title="said.py"\nprint("said")\n```\n'
        "\n```console\n$ cat \\\n> said.py\n"
        'print(...)\n$ sleep 0.1 && echo "much   later" &\nmuch later\n$ kill %1 2>/dev/null; wait\n```\n\n'
        "```console exit=3\n$ (exit 3)\n```\n\n```bash\nexit 1\n```\n"
    )
    assert followed(page, tmp_path) == 6


def test_a_log_in_the_background_does_not_run_into_the_answer(tmp_path: Path) -> None:
    page = (
        "```console\n$ touch on && (while test -e on; do echo log; done; touch off) &\nlog\n"
        "$ printf one && sleep 0.1\none\n$ rm on; while ! test -e off; do sleep 0.01; done\n```\n"
    )
    assert followed(page, tmp_path) == 3


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        (
            "```console\n$ true\n$ echo one\ntwo\n```\n",
            r"step 2, line 3: \$ echo one\ndid not print: two\n.*\n  \| one",
        ),
        ("```console\n$ printf '1\\n2\\n'\n2\n1\n```\n", r"step 1, line 2: .*\ndid not print: 1"),
        ("\n```console\n$ false\n```\n", r"step 1, line 3: \$ false\nended with 1, not 0"),
        ("```console exit=1\n$ true\n```\n", r"ended with 0, not 1"),
        ("```console\nsaid\n```\n", "line 2: a console block begins with a command"),
        ('```python title="no.py"\nX = 1\n```\n', r"step 1, line 2: there is no file no.py to write"),
        ("text\n```python\nX = 1\n", "the block of line 2 is not closed"),
    ],
)
def test_what_is_not_as_the_page_says_is_named(page: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(StepError, match=problem):
        followed(page, tmp_path)


def test_a_block_says_where_it_is_and_what_belongs_to_it() -> None:
    (block,) = blocks('one\n```python title="a/b.py" exit=2\nX = 1\n```\n')
    assert (block.kind, block.facts, block.lines, block.line) == (
        "python", {"title": "a/b.py", "exit": "2"}, ("X = 1",), 3,
    )  # fmt: skip
