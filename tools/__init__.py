"""The repository's own programs: `python -m tools.NAME`, from its root."""
