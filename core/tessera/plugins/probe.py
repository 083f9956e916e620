"""Asking a platform whether it can run here: in a child process with a time limit, so that it can harm nobody."""

from __future__ import annotations

import signal
import subprocess
import sys

import msgspec

from tessera.errors import PlatformError
from tessera.platform import DeviceInfo, Manifest, Probe
from tessera.plugins.children import end

PROBE_SECONDS = 10.0
MAX_SCORE = 100
CHILD = "tessera.plugins.probe_child"


class _Answer(msgspec.Struct):
    """What the child writes: the probe's answer, or why there is none."""

    score: int = 0
    reason: str = ""
    devices: tuple[DeviceInfo, ...] = ()
    error: str | None = None


def probe(manifest: Manifest, timeout: float = PROBE_SECONDS) -> Probe:
    """The platform's own answer. Raises PlatformError where it raises, crashes, hangs or answers what is no Probe.
    timeout: seconds."""
    # -P: the child must not find modules in whatever folder the user stands in.
    command = [sys.executable, "-P", "-m", CHILD, manifest.probe]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        output, log = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise PlatformError(f"its probe {manifest.probe} gave no answer within {timeout:g} s") from error
    finally:
        end(child)
    if child.returncode != 0:
        raise PlatformError(f"its probe {manifest.probe} ended with {_ending(child.returncode)}{_last_line(log)}")
    try:
        answer = msgspec.json.decode(output, type=_Answer)
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
