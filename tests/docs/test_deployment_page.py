"""The files of deploy/ that docs/deployment.md is about: their flags, sizes and exit codes against the code."""

from __future__ import annotations

import re
from pathlib import Path

from tessera.cli.serve import serve
from tessera.errors import ConfigError, MemoryBudgetError, ModelError, PlatformError
from tessera.server.multipart import FORM_BYTES
from tessera.server.settings import Limits, ServerSettings

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = (DEPLOY / "systemd/tessera.service").read_text(encoding="utf-8")


def setting(name):
    (value,) = re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)
    return value


def test_the_unit_starts_a_server_with_flags_that_there_are():
    _, command, *arguments = setting("ExecStart").split()
    options = {option for parameter in serve.params for option in parameter.opts}
    assert command == "serve"
    assert {argument for argument in arguments if argument.startswith("--")} <= options


def test_the_unit_waits_for_the_drain_and_starts_nothing_that_cannot_start():
    delay = float(re.findall(r"--shutdown-delay (\d+)", UNIT)[0])
    assert float(setting("TimeoutStopSec")) > ServerSettings().drain_seconds + delay
    lasting = [error.exit_code for error in (ConfigError, ModelError, PlatformError, MemoryBudgetError)]
    assert setting("RestartPreventExitStatus") == " ".join(map(str, lasting))


def test_nginx_takes_the_largest_file():
    (mib,) = re.findall(r"client_max_body_size (\d+)m;", (DEPLOY / "nginx/tessera.conf").read_text(encoding="utf-8"))
    assert int(mib) * 2**20 >= Limits().file_bytes + FORM_BYTES
