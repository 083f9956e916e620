"""The Python for aarch64 that `make nightly` runs in an emulator: what goes into it, and what is said without it."""

from __future__ import annotations

import sys

import pytest

from tools.aarch64 import environment


def test_it_has_what_the_packages_need_but_nothing_for_this_machine() -> None:
    names = [one.partition("==")[0] for one in environment.dependencies()]
    assert {"numpy", "pyzmq", "safetensors", "sympy", "transformers"} <= set(names)
    assert not {"torch", "tessera-llm", "tessera-cpu", "triton", "pytest"} & set(names)
    assert not [name for name in names if name.startswith("nvidia-")]


def test_what_is_missing_is_said_in_one_line() -> None:
    failing = [sys.executable, "-c", "import sys; sys.exit('first\\nno route to the index')"]
    with pytest.raises(environment.UnavailableError) as raised:
        environment.run("wheels for aarch64", failing)
    assert str(raised.value) == f"wheels for aarch64: not available; {sys.executable} said: no route to the index"
