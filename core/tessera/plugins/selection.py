"""Selects the platform to run: the one that the user names, otherwise the one with the highest score. There is no
silent fallback to another. Each is probed in a child process with a time limit, so that a faulty probe does no harm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import get_close_matches

import msgspec

from tessera.config.environment import for_children, read_environment
from tessera.errors import PlatformError
from tessera.platform import DeviceInfo, Manifest, Probe
from tessera.plugins.discovery import Discovered, discover
from tessera.plugins.loading import load_plugins

PROBE_SECONDS = 60.0
"""Of the clock, not of the processor: a probe that waits for ever uses none. On a busy machine the import of a device
library alone has taken more than ten."""
MAX_SCORE = 100
CHILD = "tessera.plugins.probe_child"


class _ProbeAnswer(msgspec.Struct):
    """The child's output: the probe's answer, or why there is none."""

    score: int = 0
    reason: str = ""
    devices: tuple[DeviceInfo, ...] = ()
    error: str | None = None


def probe(manifest: Manifest, timeout: float = PROBE_SECONDS) -> Probe:
    """Asks the platform's probe. Raises PlatformError if it raises, crashes, hangs or does not return a Probe. timeout:
    seconds."""
    # -P: the child must not import modules from the user's working directory.
    command = [sys.executable, "-P", "-m", CHILD, manifest.probe]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        env=for_children(),
    )  # fmt: skip
    try:
        output, log = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise PlatformError(f"its probe {manifest.probe} did not answer within {timeout:g} s") from error
    finally:
        end(child)
    if child.returncode != 0:
        raise PlatformError(f"its probe {manifest.probe} ended with {_ending(child.returncode)}{_last_line(log)}")
    try:
        answer = msgspec.json.decode(output, type=_ProbeAnswer)
    except msgspec.MsgspecError as error:
        raise PlatformError(f"its probe {manifest.probe} gave no answer{_last_line(log)}") from error
    if answer.error is not None:
        raise PlatformError(f"its probe {manifest.probe} {answer.error}")
    if not 0 <= answer.score <= MAX_SCORE:
        raise PlatformError(
            f"its probe {manifest.probe} gave the score {answer.score}, which is not from 0 to {MAX_SCORE}"
        )
    return Probe(answer.score, answer.reason, answer.devices)


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _last_line(log: bytes) -> str:
    lines = [line.strip() for line in log.decode("utf-8", errors="replace").splitlines() if line.strip()]
    return f": {lines[-1][:200]}" if lines else ""


def end(child: subprocess.Popen[bytes]) -> None:
    """Kills the child and everything it started, and closes the pipes."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        child.wait()
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()


MAX_PROBES = 8


@dataclass(frozen=True)
class Candidate:
    """A discovered platform and its probe's answer. error: why there is none. A score of 0 is an answer."""

    platform: Discovered
    probe: Probe | None = None
    error: str | None = None

    @property
    def score(self) -> int:
        return 0 if self.probe is None else self.probe.score

    def __str__(self) -> str:
        return str(self.platform)


@dataclass(frozen=True)
class Selected:
    """The selected platform. platform: dotted path of its class. levels: the level of each facet and op group that it
    was written for, which load_platform() needs."""

    name: str
    platform: str
    distribution: str
    version: str
    probe: Probe
    levels: Mapping[str, int]


def select(name: str | None = None, *, timeout: float = PROBE_SECONDS) -> Selected:
    """The platform of that name, otherwise the best one. Probes only what the choice needs. Raises PlatformError."""
    plugins = load_plugins(read_environment())
    found = discover(plugins)
    if name is None and found:
        return choose(ask(found, timeout))
    kept_out = [f"{plugin.name} ({plugin.left_out})" for plugin in plugins if plugin.left_out is not None]
    try:
        return choose([]) if name is None else usable(_ask(named(name, found), timeout))
    except PlatformError as error:
        if not kept_out or any(one.name == name for one in found):
            raise
        raise PlatformError(f"{error.message} Plugins that are left out: {', '.join(kept_out)}.") from None


def ask(platforms: Sequence[Discovered], timeout: float = PROBE_SECONDS) -> list[Candidate]:
    """Probes all of them in parallel. timeout: seconds for each."""
    with ThreadPoolExecutor(max_workers=MAX_PROBES) as threads:
        return list(threads.map(lambda platform: _ask(platform, timeout), platforms))


def choose(candidates: Sequence[Candidate]) -> Selected:
    """The candidate with the highest score. Raises PlatformError if there is none, if several share the score, or if
    one could not be probed: ignoring it could silently replace the right platform."""
    if not candidates:
        raise PlatformError(
            "No platform is installed; install the one for this machine, such as pip install tessera-cpu."
        )
    failed = next((one for one in candidates if one.error is not None), None)
    able = sorted((one for one in candidates if one.score > 0), key=lambda candidate: -candidate.score)
    if failed is not None:
        others = " or ".join(f"--platform {one.platform.name}" for one in able)
        escape = f", or choose with {others}" if others else ""
        raise PlatformError(f"Platform {failed} cannot be used: {failed.error}. Repair or uninstall it{escape}.")
    if not able:
        reasons = "; ".join(f"{one}: {one.probe.reason}" for one in candidates if one.probe is not None)
        raise PlatformError(f"No installed platform can run here. {reasons}.")
    tied = [one for one in able if one.score == able[0].score]
    if len(tied) > 1:
        names = ", ".join(str(one) for one in tied)
        raise PlatformError(f"Platforms {names} share the score {able[0].score}; choose one with --platform NAME.")
    return selected(able[0])


def verdict(candidate: Candidate, chosen: Selected | None, name: str | None = None) -> str:
    """Why a candidate was chosen, or was not. name: the one that the user gave."""
    if candidate.error is not None:
        return "cannot be used"
    if candidate.score == 0:
        return "cannot run here"
    if chosen is None:
        return "nothing is chosen"
    if (chosen.name, chosen.distribution) == (candidate.platform.name, candidate.platform.distribution):
        return "chosen: the highest score" if name is None else f"chosen: --platform {name}"
    if name is not None:
        return f"--platform names '{name}'"
    return f"below the {chosen.probe.score} of '{chosen.name}'"


def selected(candidate: Candidate) -> Selected:
    found, answer = candidate.platform, candidate.probe
    assert found.manifest is not None
    assert answer is not None
    manifest = found.manifest
    return Selected(found.name, manifest.platform, found.distribution, found.version, answer, manifest.api_levels)


def named(name: str, platforms: Sequence[Discovered]) -> Discovered:
    """The platform of that name. Raises PlatformError with similar names if there is none."""
    same = [one for one in platforms if one.name == name]
    if not same:
        near = get_close_matches(name, [one.name for one in platforms], n=1) or [one.name for one in platforms]
        there = f"there is {', '.join(near)}" if near else "none is installed; try pip install tessera-cpu"
        raise PlatformError(f"There is no platform '{name}'; {there}.")
    return next((one for one in same if one.error is None), same[0])


def usable(candidate: Candidate) -> Selected:
    """Selects the candidate that the user named. Raises PlatformError if it cannot run."""
    if candidate.error is not None:
        raise PlatformError(f"Platform {candidate} cannot be used: {candidate.error}.")
    if candidate.score == 0:
        assert candidate.probe is not None
        raise PlatformError(f"Platform {candidate} cannot run here: {candidate.probe.reason}.")
    return selected(candidate)


def _ask(platform: Discovered, timeout: float) -> Candidate:
    if platform.error is not None:
        return Candidate(platform, error=platform.error)
    manifest: Manifest | None = platform.manifest
    assert manifest is not None
    try:
        return Candidate(platform, probe=probe(manifest, timeout))
    except PlatformError as error:
        return Candidate(platform, error=error.message)
