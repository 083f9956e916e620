"""`python -m tessera.cli` is the command line."""

from __future__ import annotations

from tessera.cli import main

if __name__ == "__main__":
    main()
