from __future__ import annotations

from pathlib import Path

from tools.trace_request import (
    PATH_OF_A_REQUEST,
    ROOT,
    Sized,
    Step,
    files_by_size,
    functions_by_size,
    missing_files,
    read_path,
)

CODE = '''\
class Engine:
    @property
    def step(self):
        def inner():
            pass

        return inner


async def run():
    """Run."""
'''


def test_each_file_of_the_path_exists_once_and_says_what_happens_there() -> None:
    steps = read_path(PATH_OF_A_REQUEST)
    assert missing_files(steps, ROOT) == []
    assert len({step.file for step in steps}) == len(steps)
    assert all(step.phrase for step in steps)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "here.py").touch()
    assert missing_files([Step("here.py", "a"), Step("gone.py", "b")], tmp_path) == ["gone.py"]


def test_the_table_is_read_in_order(tmp_path: Path) -> None:
    table = tmp_path / "path.txt"
    table.write_text("# title\n\nb.py: first: of all\na.py: then\n", encoding="utf-8")
    assert read_path(table) == [Step("b.py", "first: of all"), Step("a.py", "then")]


def test_sizes_count_decorators_and_name_methods(tmp_path: Path) -> None:
    (tmp_path / "core/tessera").mkdir(parents=True)
    (tmp_path / "core/tessera/engine.py").write_text(CODE, encoding="utf-8")
    assert files_by_size(tmp_path) == [Sized(11, "core/tessera/engine.py")]
    assert functions_by_size(tmp_path) == [
        Sized(6, "core/tessera/engine.py:2 Engine.step"),
        Sized(2, "core/tessera/engine.py:10 run"),
        Sized(2, "core/tessera/engine.py:4 Engine.step.inner"),
    ]
