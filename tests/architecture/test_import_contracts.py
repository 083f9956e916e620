from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from tests.architecture.conftest import Break
from tools.checks.import_contracts import import_contracts

FRONT = "The front stack and what both stacks stand on"
DEVICE = "The device stack"
DOTTED_PATH = "The front stack reaches the device stack by dotted path only"
NOT_UPWARDS = "The device stack knows nothing of the front stack"
NO_TORCH = "The front stack does not import torch or transformers"
TESTING = "Only tests and cli.conformance import testing"
PLATFORM = "A platform package imports tessera.platform and nothing else of core"
SHARED = "Platform packages share the library of kernels and nothing of one another"

BREAKS = [
    (FRONT, "core/tessera/engine/broken.py", "import tessera.server"),
    (FRONT, "core/tessera/server/broken.py", "import tessera.llm"),
    (FRONT, "core/tessera/scheduler/broken.py", "import tessera.engine"),
    (FRONT, "core/tessera/kvcache/broken.py", "import tessera.scheduler"),
    (FRONT, "core/tessera/text/broken.py", "import tessera.kvcache"),
    (FRONT, "core/tessera/hookspecs.py", "import tessera.plugins"),
    (FRONT, "core/tessera/platform/broken.py", "import tessera.hookspecs"),
    (FRONT, "core/tessera/config/broken.py", "import tessera.platform"),
    (FRONT, "core/tessera/newcomer.py", "NOWHERE = 1"),
    (DEVICE, "core/tessera/loader/broken.py", "import tessera.runner"),
    (DEVICE, "core/tessera/models/broken.py", "import tessera.loader"),
    (DEVICE, "core/tessera/layers/broken.py", "import tessera.models"),
    (DEVICE, "core/tessera/reference/broken.py", "import tessera.layers"),
    (DEVICE, "core/tessera/scheduler/broken.py", "import tessera.reference"),
    (DOTTED_PATH, "core/tessera/engine/broken.py", "import tessera.runner"),
    (DOTTED_PATH, "core/tessera/server/broken.py", "def f():\n    import tessera.reference"),
    (DOTTED_PATH, "core/tessera/llm/llm.py", "import tessera.loader"),
    (DOTTED_PATH, "core/tessera/executor/base.py", "import tessera.runner"),
    (NOT_UPWARDS, "core/tessera/runner/broken.py", "import tessera.engine"),
    (NOT_UPWARDS, "core/tessera/executor/broken.py", "import tessera.engine"),
    *((NO_TORCH, f"core/tessera/{package}/broken.py", "import torch.nn") for package in ("config", "platform", "text")),
    *((NO_TORCH, f"core/tessera/{package}/broken.py", "import transformers") for package in ("scheduler", "kvcache")),
    *((NO_TORCH, f"core/tessera/{package}/broken.py", "import torch") for package in ("engine", "server", "cli")),
    (TESTING, "core/tessera/runner/broken.py", "import tessera.testing"),
    (TESTING, "core/tessera/cli/broken.py", "import tessera.testing"),
    (PLATFORM, "platforms/cpu/tessera_cpu/broken.py", "import tessera.config"),
    (PLATFORM, "platforms/cpu/tessera_cpu/broken.py", "from tessera.reference import anything"),
    (PLATFORM, "platforms/rocm/tessera_rocm/broken.py", "import tessera.config"),
    (PLATFORM, "platforms/gaudi/tessera_gaudi/broken.py", "import tessera.ops"),
    (PLATFORM, "platforms/neuron/tessera_neuron/broken.py", "import tessera.runner"),
    (PLATFORM, "platforms/spyre/tessera_spyre/broken.py", "import tessera.models"),
    (PLATFORM, "platforms/xla/tessera_xla/broken.py", "import tessera.layers"),
    (SHARED, "platforms/rocm/tessera_rocm/broken.py", "import tessera_cuda"),
    (SHARED, "platforms/triton/tessera_triton/broken.py", "import tessera_xpu"),
    (SHARED, "core/tessera/runner/broken.py", "import tessera_triton"),
]


def test_each_breach_is_reported_under_its_contract(broken: Break) -> None:
    """All in one copy: each is a line of its own in the report."""
    for _, file, text in BREAKS:
        tree = broken(file, f"\n{text}\n")
    chains = _chains(import_contracts(tree))
    missing = [(contract, file, text) for contract, file, text in BREAKS if _chain(file, text) not in chains[contract]]
    assert not missing, chains


def _chains(report: list[str]) -> dict[str, set[str]]:
    """The imports, or modules, that a report lists under each contract, as `a -> b`."""
    chains: dict[str, set[str]] = {}
    for line, following in pairwise(report):
        if following == "-" * len(line):
            found = chains.setdefault(line, set())
        elif following.startswith("- "):
            found.add(following.removeprefix("- ").strip().partition(" (l.")[0])
    return chains


def _chain(file: str, text: str) -> str:
    """How the report spells what a file breaks with a text."""
    parts = Path(file).with_suffix("").parts
    module = ".".join(parts[1 if parts[0] == "core" else 2 :])
    if "import" not in text:
        return module
    imported = text.removeprefix("def f():\n    ").split()[1]
    return f"{module} -> {imported.partition('.')[0] if imported.startswith('torch') else imported}"


def test_the_front_stack_may_not_import_an_executor_but_base(broken: Break) -> None:
    broken("core/tessera/executor/broken.py", "")
    report = import_contracts(broken("core/tessera/engine/broken.py", "import tessera.executor.broken\n"))
    assert any(line.startswith(f"{DOTTED_PATH} BROKEN") for line in report), report


def test_cli_conformance_may_import_testing(broken: Break) -> None:
    assert import_contracts(broken("core/tessera/cli/conformance.py", "import tessera.testing\n")) == []


def test_an_upper_layer_may_be_named_for_a_type_checker(broken: Break) -> None:
    text = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import torch\n    from tessera import engine\n"
    assert import_contracts(broken("core/tessera/platform/broken.py", text)) == []
