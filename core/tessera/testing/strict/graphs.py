"""Captured launches, whose tensors must stay where they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import Tensor

from tessera.platform.graph import GraphRunner
from tessera.platform.launch import Buffers, Launch, LaunchKey


@dataclass
class Current:
    """The launch under way, for the kernels that poison its padding."""

    launch: Launch | None = None


class RecordingGraphs(GraphRunner):
    """Remembers where every tensor of a captured launch lies, and fails where a replay brings one that lies elsewhere
    or has another shape."""

    def __init__(self, current: Current) -> None:
        self.current = current
        self.replays = 0

    def capture(self, key: LaunchKey, forward: Callable[[Launch], Any], launch: Launch, buffers: Buffers) -> Any:
        self._run(forward, launch)
        return forward, _addresses(launch)

    def replay(self, executable: Any, launch: Launch) -> Any:
        forward, addresses = executable
        found = _addresses(launch)
        moved = [name for name in found | addresses if found.get(name) != addresses.get(name)]
        assert not moved, f"a captured launch was replayed with other buffers: {', '.join(moved)}"
        self.replays += 1
        return self._run(forward, launch)

    def _run(self, forward: Callable[[Launch], Any], launch: Launch) -> Any:
        self.current.launch = launch
        return forward(launch)


def _addresses(value: Any, name: str = "launch") -> dict[str, tuple[int, tuple[int, ...]]]:
    """Where each tensor of a launch lies, those of its plans too."""
    if isinstance(value, Tensor):
        return {name: (value.data_ptr(), tuple(value.shape))}
    parts: dict[Any, Any] = {}
    if is_dataclass(value):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, dict):
        parts = value
    elif isinstance(value, list | tuple):
        parts = dict(enumerate(value))
    found = {}
    for key, part in parts.items():
        found.update(_addresses(part, f"{name}.{key}"))
    return found
