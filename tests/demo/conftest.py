"""Makes the demo model's tools importable, as PYTHONPATH=tools does on the command line."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
