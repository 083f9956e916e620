"""README's first blocks, each a server and the answer that it must give."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.docs.steps import Shell, blocks, commands
from tests.e2e.served import free_port

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
INSTALLATION = ["git clone URL-OF-THIS-REPOSITORY tessera && cd tessera", "make install"]
"""What the first block begins with. It is not carried out: this environment has it."""


def carry_out(number: int, folder: Path, environment: Mapping[str, str]) -> None:
    """Carries out one of the page's blocks in a folder. Raises StepError if it is not as the page says."""
    programs = folder / ".venv/bin"
    programs.mkdir(parents=True)
    (programs / "tessera").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tessera.cli "$@"\n')
    (programs / "tessera").chmod(0o755)
    (folder / ".curlrc").write_text("silent\n")  # as it is at a terminal
    page = re.sub(r"(tessera serve.*) &", r"\1 --port 8000 &", README).replace("8000", str(free_port()))
    with Shell(folder, {**environment, "CURL_HOME": str(folder), "NO_PROXY": "127.0.0.1"}) as shell:
        for command in commands([*blocks(page)][number]):
            if command.text not in INSTALLATION:
                assert command.shown
                shell.run(command)
