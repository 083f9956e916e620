"""The marker of hook implementations."""

from __future__ import annotations

import pluggy

hookimpl = pluggy.HookimplMarker("tessera")
"""Marks a function of a plugin's module as an implementation of the hook of its name."""
