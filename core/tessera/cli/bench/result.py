"""The result of a run as a file has it: its figures, every setting, versions, the machine."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tessera._version import __version__
from tessera.config.environment import allowed_cores
from tessera.errors import ConfigError

SECRETS = frozenset({"api_key", "hf_token"})
_NOT_SETTINGS = frozenset({"json"})


def machine() -> dict[str, Any]:
    """The one this program runs on."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": allowed_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
    }


def _processor() -> str:
    """As the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def settings_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of a run: those that were given or have a value, without secrets."""
    return {
        name: value for name, value in values.items() if value not in (None, ()) and name not in SECRETS | _NOT_SETTINGS
    }


def result(benchmark: str, settings: Mapping[str, Any], figures: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "benchmark": benchmark,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "tessera": __version__,
        "machine": machine(),
        "settings": dict(settings),
        **figures,
    }


def check_writable(file: str | None) -> None:
    """Before anything slow begins. Raises ConfigError."""
    if file is not None and not Path(file).expanduser().parent.is_dir():
        raise ConfigError(f"--json '{file}': there is no such folder.")


def write(file: str | None, content: Mapping[str, Any]) -> None:
    """Raises ConfigError."""
    if file is None:
        return
    try:
        Path(file).expanduser().write_text(json.dumps(_finite(content), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json '{file}' cannot be written: {error.strerror}.") from error


def _finite(value: Any) -> Any:
    """JSON has no infinity: it becomes "inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
