"""MkDocs reads this file by `hooks` of mkdocs.yml. Pages lie in the site as they lie in the repository, so that a link
which works there works here. A source file or a folder that a page links to becomes a page too, with its text or with
the names of its files."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from posixpath import normpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

PAGES = ("*.md", "docs/**/*.md", "benchmarks/*.md", "tools/demo_model/*.md")
ASSETS = ("docs/images/*", "tools/site/*.css")
LANGUAGES = {".conf": "nginx", ".json": "json", ".md": "markdown", ".py": "python", ".yaml": "yaml"}
"""In which a source file is highlighted."""
_EXIT = re.compile(r"^(```console) exit=\d+$", re.MULTILINE)
_LINK = re.compile(r"\]\((?:<([^>#]+)>|([^)\s#]+))")


class SourcePage(File):
    """A page of a path that is not Markdown."""

    def is_documentation_page(self) -> bool:
        return True

    def _get_dest_path(self, use_directory_urls: bool | None = None) -> str:
        return f"source/{self.src_uri}.html"

    @property
    def dest_uri(self) -> str:
        return self._get_dest_path()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """In place of the files of docs_dir; the theme's stay."""
    root = Path(config.config_file_path).parent
    pages = {path.relative_to(root).as_posix(): path for pattern in PAGES for path in sorted(root.glob(pattern))}
    assets = {path.relative_to(root).as_posix(): path for pattern in ASSETS for path in sorted(root.glob(pattern))}
    theme = [file for file in files if file.src_dir != config.docs_dir]
    ours = [File.generated(config, name, abs_src_path=str(path)) for name, path in {**pages, **assets}.items()]
    linked = {name for page, path in pages.items() for name in _linked(page, path)}
    for name in sorted(linked - {*pages, *assets}):
        if (root / name).exists():
            ours.append(_source_page(config, root / name, name))
    return Files([*theme, *ours])


def on_page_markdown(markdown: str, **_context: object) -> str:
    """Without the exit codes of blocks, which tests/docs/steps.py reads and the highlighter does not know."""
    return _EXIT.sub(r"\1", markdown)


def _linked(page: str, path: Path) -> Iterator[str]:
    """What the page links to, as seen from the root."""
    folder = Path(page).parent.as_posix()
    for bracketed, plain in _LINK.findall(path.read_text(encoding="utf-8")):
        if not re.match(r"\w+:", bracketed or plain):
            yield normpath(f"{folder}/{bracketed or plain}")


def _source_page(config: MkDocsConfig, path: Path, name: str) -> SourcePage:
    text = _listing(path) if path.is_dir() else path.read_text(encoding="utf-8")
    fence = "`" * 8
    language = LANGUAGES.get(path.suffix, "text") if path.is_file() else "text"
    content = f"---\nsearch:\n  exclude: true\n---\n\n# {name}\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"
    page = SourcePage(name, None, config.site_dir, use_directory_urls=False, inclusion=InclusionLevel.NOT_IN_NAV)
    page.generated_by, page.abs_src_path, page.content_string = "hook", None, content
    return page


def _listing(folder: Path) -> str:
    """The files of a folder that git has."""
    return subprocess.run(["git", "ls-files"], cwd=folder, check=True, capture_output=True, text=True).stdout
