from __future__ import annotations

import os


def is_lazy():
    return os.environ.get("PT_HPU_LAZY_MODE") == "1"
