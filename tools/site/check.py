"""What is wrong with a site that was built: links that lead nowhere, files that a reader's browser would load from
elsewhere, and pages that Python-Markdown read otherwise than GitHub does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt

PARTS = ("h2", "h3", "li", "pre", "table", "tr")
"""Elements of which a page has as many as GitHub would show."""
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """A page of the site, or the elements of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        # what a reader may follow
        self.links: list[str] = []
        # what the browser loads by itself
        self.loaded: list[str] = []
        # targets of fragments
        self.anchors: set[str] = set()
        # elements within the article, or anywhere if there is none
        self.elements: Counter[str] = Counter()
        self._has_article = "<article" in html
        self._inside = not self._has_article
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self._inside |= tag == "article"
        if self._inside:
            self.elements[tag] += 1
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if LOADED.get(tag) in attributes and attributes.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.append(attributes[LOADED[tag]])
        self.anchors |= {attributes[name] for name in ("id", "name") if attributes.get(name)}

    def handle_endtag(self, tag: str) -> None:
        self._inside &= not (self._has_article and tag == "article")


class Site:
    """folder: in which it was built."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    @cached_property
    def pages(self) -> dict[Path, Page]:
        return {path: Page(path.read_text(encoding="utf-8")) for path in sorted(self.folder.rglob("*.html"))}

    def broken_links(self) -> Iterator[str]:
        for path, page in self.pages.items():
            # The page of an error is served under any address, so its links begin at the site's root.
            folder = self.folder if path.name == "404.html" else path.parent
            for link in {*page.links, *page.loaded}:
                parts = urlsplit(link)
                if parts.scheme or parts.netloc:
                    continue
                local = unquote(parts.path)
                target = (folder / local.lstrip("/" if path.name == "404.html" else "")).resolve() if local else path
                target = target / "index.html" if target.is_dir() else target
                if not target.is_file():
                    yield f"{path.relative_to(self.folder)}: {link} is no file of the site"
                elif parts.fragment and target in self.pages and not self._has(target, unquote(parts.fragment)):
                    yield f"{path.relative_to(self.folder)}: {link} is no heading of that page"

    def _has(self, target: Path, fragment: str) -> bool:
        return fragment in self.pages[target].anchors

    def loaded_from_elsewhere(self) -> Iterator[str]:
        for path, page in self.pages.items():
            for address in page.loaded:
                if urlsplit(address).netloc:
                    yield f"{path.relative_to(self.folder)}: the browser would load {address}"

    def read_otherwise(self, root: Path) -> Iterator[str]:
        """Pages of which the site shows other lists, tables or blocks than GitHub. root: of the repository."""
        github = MarkdownIt("gfm-like", {"linkify": False})
        for path, page in self.pages.items():
            name = path.relative_to(self.folder)
            source = root / (name.with_name("README.md") if name.name == "index.html" else name.with_suffix(".md"))
            if source.is_file():
                expected = Page(github.render(source.read_text(encoding="utf-8"))).elements
                for part in PARTS:
                    if page.elements[part] != expected[part]:
                        yield f"{name}: {page.elements[part]} of <{part}>, where GitHub shows {expected[part]}"
