"""`python -m tessera.testing.conformance.collective_process`: one rank of the group that collectives are tried with. A
Start on standard input; a Said a check on standard output."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TextIO

import msgspec
from safetensors.torch import save_file

from tessera.plugins import load_platform
from tessera.runner.collectives import join
from tessera.testing.conformance.case import ConformanceError, described
from tessera.testing.conformance.collective_checks import IN_EACH_DTYPE, ONCE, Group
from tessera.testing.conformance.collective_messages import Said, Start, checks_of


def main() -> None:
    """What a platform prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    start = msgspec.json.decode(sys.stdin.buffer.read(), type=Start)
    with answers:
        _run(start, answers)


def _run(start: Start, answers: TextIO) -> None:
    platform = load_platform(start.platform)
    platform.enter_process(start.spec)
    device = platform.open(start.spec.devices[0])
    communicator = join(platform, start.spec, start.rendezvous, device)
    for name, check, dtype in checks_of(start.dtypes):
        said = _checked(start, name, {**IN_EACH_DTYPE, **ONCE}[check], Group(communicator, device, dtype))
        answers.write(f"{msgspec.json.encode(said).decode()}\n")
        answers.flush()
        if said.ended:
            os._exit(1)  # the others may wait for this one for ever; whoever started them ends them
    communicator.close()


def _checked(start: Start, name: str, check: Callable[[Group], None], group: Group) -> Said:
    try:
        check(group)
    except ConformanceError as error:
        if error.tensors:
            save_file(dict(error.tensors), f"{start.folder}/{name}-{group.rank}.safetensors")
        return Said(name, error.text)
    except Exception as error:  # noqa: BLE001  # as Case.result
        return Said(name, f"{name}, rank {group.rank}: {described(error)}", ended=True)
    return Said(name)


if __name__ == "__main__":
    main()
