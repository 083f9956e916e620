"""What a shell offers behind a flag or for a model, where click does not know it by itself."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import CompletionItem

CONFIG = "config.json"


def model_folders(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Folders that begin so and hold a model; where none does, any folder, so that the user can go on into it."""
    head, separator, _ = incomplete.rpartition("/")
    parent = Path(head + separator).expanduser() if separator else Path()
    models = [
        f"{head}{separator}{folder.name}"
        for folder in _entries(parent)
        if (folder / CONFIG).is_file() and f"{head}{separator}{folder.name}".startswith(incomplete)
    ]
    return [CompletionItem(name) for name in models] or [CompletionItem(incomplete, type="dir")]


def platform_names(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """The installed ones; none is probed."""
    from tessera.plugins.discovery import discover

    names = [found.manifest.name for found in discover() if found.manifest is not None]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
