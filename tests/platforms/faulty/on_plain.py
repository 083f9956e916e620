"""Mistakes in the platform that has a kernel for every op: "tests.platforms.faulty.on_plain:KeysOf1024"; "Plain" is the
platform without one."""

from __future__ import annotations

from tests.platforms.faulty import planted
from tests.platforms.faulty.making import Base
from tests.platforms.faulty.plain import PlainPlatform


def __getattr__(name: str) -> Base:
    return PlainPlatform if name == "Plain" else planted(name, PlainPlatform)
