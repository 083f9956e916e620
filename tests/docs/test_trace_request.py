from __future__ import annotations

from pathlib import Path

from tools.trace_request import Sized, files_by_size, functions_by_size, phrase

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


def test_a_file_is_told_by_the_first_sentences_of_its_docstring(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('"""Steps: one\nafter the other.\n\nMore."""\n', encoding="utf-8")
    (tmp_path / "long.py").write_text(f'"""{"word " * 30}"""\n', encoding="utf-8")
    assert phrase(tmp_path / "a.py") == "Steps: one after the other."
    assert len(phrase(tmp_path / "long.py")) == 100


def test_sizes_count_decorators_and_name_methods(tmp_path: Path) -> None:
    (tmp_path / "core/tessera").mkdir(parents=True)
    (tmp_path / "core/tessera/engine.py").write_text(CODE, encoding="utf-8")
    assert files_by_size(tmp_path) == [Sized(11, "core/tessera/engine.py")]
    assert functions_by_size(tmp_path) == [
        Sized(6, "core/tessera/engine.py:2 Engine.step"),
        Sized(2, "core/tessera/engine.py:10 run"),
        Sized(2, "core/tessera/engine.py:4 Engine.step.inner"),
    ]
