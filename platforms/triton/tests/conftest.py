from __future__ import annotations

import os

# Triton reads this when it decorates a function, so it must be set before a test file imports kernels.
os.environ["TRITON_INTERPRET"] = "1"
