"""The only code that reads the process's environment: TESSERA_ variables, and the cores the process may use."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

PREFIX = "TESSERA_"
VARIABLES: Mapping[str, str] = {
    "TESSERA_API_KEY": "the key that clients must send, like --api-key",
    "TESSERA_CACHE": "the folder for what later starts use again (default: ~/.cache/tessera)",
    "TESSERA_DISABLE_PLUGINS": "comma-separated names of plugins that are never loaded",
    "TESSERA_LOAD_PLUGINS": "comma-separated names of the entry points to load; empty loads none (default: all)",
    "TESSERA_TRACE_PLUGINS": "1 logs every call of a plugin's hook",
}
"""All environment variables that core reads, and what they do. Those of platforms are in Manifest.variables."""
SECRET = frozenset({"TESSERA_API_KEY"})
"""Those that only the front end may know."""

# Kubernetes sets such variables in every container; a service called tessera is not a mistake.
_SERVICE = re.compile(r"TESSERA_(.*_)?(SERVICE_(HOST|PORT)(_.*)?|PORT(_\d+_(TCP|UDP)(_.*)?)?)")


@dataclass(frozen=True)
class Environment:
    api_key: str | None = None
    load_plugins: frozenset[str] | None = None  # names of entry points; None for all
    others: tuple[str, ...] = ()  # names with the prefix that core does not read
    openai_api_key: str | None = None  # what clients of OpenAI's API send by default
    disable_plugins: frozenset[str] = frozenset()  # names that are never loaded
    trace_plugins: bool = False  # log every hook call


def read_environment(variables: Mapping[str, str] | None = None) -> Environment:
    """Reads the variables; by default those of this process."""
    given = os.environ if variables is None else variables
    chosen = given.get("TESSERA_LOAD_PLUGINS")
    return Environment(
        api_key=given.get("TESSERA_API_KEY") or None,
        load_plugins=None if chosen is None else _names(chosen),
        others=tuple(sorted(name for name in given if _is_other(name))),
        openai_api_key=given.get("OPENAI_API_KEY") or None,
        disable_plugins=_names(given.get("TESSERA_DISABLE_PLUGINS", "")),
        trace_plugins=given.get("TESSERA_TRACE_PLUGINS", "0") not in ("", "0"),
    )


RESTING: Mapping[str, str] = {"OMP_WAIT_POLICY": "passive"}
"""Variables of OpenMP (OpenMP 5.2, 21.7) under which its threads sleep while they wait for work and for each other.
Otherwise they may spin for milliseconds in each loop, on processors that other threads of the same loop need if
anything else runs there."""


def for_children() -> dict[str, str]:
    """The environment of processes that need no key: they run a model folder's or a plugin's code. Unless the user says
    otherwise, no thread of theirs spins for long."""
    return {**RESTING, **{name: value for name, value in os.environ.items() if name not in SECRET}}


@contextmanager
def resting_threads() -> Iterator[None]:
    """Has the libraries that are loaded meanwhile read RESTING, in a process that is the user's. Its environment is the
    same afterwards."""
    added = {name: value for name, value in RESTING.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def cache_folder() -> Path:
    """The folder for what later starts use again; it may not exist yet. It can be deleted at any time."""
    named = os.environ.get("TESSERA_CACHE")
    users = os.environ.get("XDG_CACHE_HOME")
    return Path(named).expanduser() if named else Path(users or "~/.cache").expanduser() / "tessera"


def artifacts_folder() -> Path:
    """The folder of what platforms keep for later starts; it may not exist yet."""
    return cache_folder() / "artifacts"


def _names(listed: str) -> frozenset[str]:
    return frozenset(name.strip() for name in listed.split(",") if name.strip())


def _is_other(name: str) -> bool:
    return name.startswith(PREFIX) and name not in VARIABLES and _SERVICE.fullmatch(name) is None


def unknown_variable(name: str, declared: Iterable[str] = ()) -> str:
    """The warning about an unknown variable with the prefix. declared: the names that platform packages read."""
    known = [*VARIABLES, *declared]
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(known)}"
    return f"unknown environment variable {name}; {hint}"


def allowed_cores(system: Path = Path("/")) -> int:
    """Cores this process may use: the smaller of its CPU affinity and its cgroup quota (v1 and v2), at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(system)
    return max(1, affinity if quota is None else min(affinity, int(quota)))


def default_threads(system: Path = Path("/")) -> int:
    """Number of threads for host computation: OMP_NUM_THREADS, or the allowed cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(asked) if asked.isdecimal() and int(asked) > 0 else allowed_cores(system)


def _quota(system: Path) -> float | None:
    """Cores granted by the tightest cgroup above this process; None if no cgroup has a quota."""
    quotas = [quota for folder in _group_folders(system) if (quota := _quota_of(folder)) is not None]
    return min(quotas, default=None)


def _group_folders(system: Path) -> list[Path]:
    """Folders of the cgroups that limit this process's cores, including ancestors."""
    folders = []
    for line in _text(system / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            roots = [system / "sys/fs/cgroup", system / "sys/fs/cgroup/unified"]
        elif "cpu" in controllers.split(","):
            roots = [system / "sys/fs/cgroup" / name for name in {controllers, "cpu"}]
        else:
            continue
        # In a container the path is often the host's. Then only the root exists here, and it is the container's.
        parts = Path(group.lstrip("/")).parts
        folders += [root.joinpath(*parts[:depth]) for root in roots for depth in range(len(parts) + 1)]
    return folders


def _quota_of(folder: Path) -> float | None:
    quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = _text(folder / "cpu.cfs_quota_us").strip(), _text(folder / "cpu.cfs_period_us").strip()
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:
        return None
    return int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
