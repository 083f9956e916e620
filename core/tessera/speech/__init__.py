"""Speech written down: long recordings window after window, with what a window's answer says of its quality."""

from __future__ import annotations
