"""What a new op costs: an edit of one file, the one of its group."""

from __future__ import annotations

import filecmp
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.conftest import Break

GROUP = "core/tessera/ops/mlp.py"

DECLARATION = '''
@dataclass(frozen=True)
class DoubleSpec:
    """2 x."""

    n: int
    dtype: str


def double(spec: DoubleSpec, x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """x [T, n] act -> [T, n] act; twice as much"""
    return into(2 * x, out)


def _double_inputs(spec: DoubleSpec, make: TrialInputs) -> tuple[Any, ...]:
    return (make.normal(make.tokens, spec.n, dtype=spec.dtype),)


'''
ROW = """
    Op(
        "double", "core", double,
        sample_specs=lambda: (DoubleSpec(40, dtype) for dtype in DTYPES), inputs=_double_inputs,
        served_spec=lambda dtype: DoubleSpec(HIDDEN, dtype),
    ),"""

VENDOR = """
from tessera.platform import DoubleSpec, replace
from tessera.testing import ReferencePlatform


def double(spec: DoubleSpec, x, *, out=None):
    return x + x if out is None else out.copy_(x + x)


def half(spec: DoubleSpec, x, *, out=None):
    return x / 2 if out is None else out.copy_(x / 2)


class Doubling(ReferencePlatform):
    def ops(self, reference):
        return replace(reference, double=double)


class Halving(ReferencePlatform):
    def ops(self, reference):
        return replace(reference, double=half)
"""

PROGRAM = """
import json
import torch
from tessera.ops import REFERENCE
from tessera.platform import BoundOps, DoubleSpec
from tessera.testing.conformance import Target, cases_of, chosen, matrix, perf_cases, tried
from tools.ops_table import table

found = {"rows": [line for line in table().splitlines() if "double" in line]}
for name in ("reference", "vendor:Doubling", "vendor:Halving"):
    target = Target.named(name)
    found[name] = [tried(case).status for case in chosen(cases_of(target, "bronze"), "op/double")]
    found[f"matrix of {name}"] = [line for line in matrix(target).splitlines() if "double" in line]
    found[f"speeds of {name}"] = [case.id for case in perf_cases(target) if "double" in case.id]
ops = BoundOps(REFERENCE, Target.named("reference").device)
found["result"] = ops.bind("double", DoubleSpec(1, "float32"))(torch.ones(2, 1)).tolist()
found["how"] = [choice.how for choice in ops.choices.values()]
print(json.dumps(found))
"""


@pytest.fixture
def added(broken: Break) -> Path:
    """A copy of the tree with one more op."""
    tree = broken(GROUP, "")
    text = (tree / GROUP).read_text(encoding="utf-8")
    for before, after in (
        ('"AddSpec", ', '"AddSpec", "DoubleSpec", '),
        ("\nOPS = (", f"{DECLARATION}OPS = ({ROW}"),
    ):
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    (tree / GROUP).write_text(text, encoding="utf-8")
    return tree


def changed(tree: Path, root: Path) -> list[str]:
    """Files of a copy that are not those of the tree."""
    files = [path.relative_to(tree) for path in (tree / "core").rglob("*.py")]
    return [str(file) for file in files if not filecmp.cmp(tree / file, root / file, shallow=False)]


def test_an_op_is_declared_in_one_file(added: Path, root: Path, tmp_path: Path) -> None:
    assert changed(added, root) == [GROUP]
    (tmp_path / "vendor.py").write_text(VENDOR, encoding="utf-8")
    path = os.pathsep.join(map(str, (added / "core", root, tmp_path)))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert (found["result"], found["how"]) == ([[2.0], [2.0]], ["reference"])
    assert found["rows"] == [
        "| `double` | core | DoubleSpec | x [T, n] act | [T, n] act; twice as much | yes | | |",
    ]
    assert found["reference"] == ["falls back"]
    assert found["vendor:Doubling"] == ["passed"] * 4
    assert found["vendor:Halving"] == ["failed"] * 4
    assert found["matrix of vendor:Doubling"] == ["| `double` | native | native | native |"]
    assert found["speeds of vendor:Doubling"] == [
        f"perf/double-{dtype}" for dtype in ("bfloat16", "float32", "float16")
    ]


def test_tessera_conformance_lists_it(added: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tessera.cli", "conformance", "--platform", "reference", "--case", "op/double"],
        env={**os.environ, "PYTHONPATH": str(added / "core")}, cwd=tmp_path,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "double" in done.stdout
