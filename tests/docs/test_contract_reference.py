"""docs/plugins/reference.md is what the contract's docstrings say; `python -m tools.contract_reference` writes it."""

from __future__ import annotations

import ast

import pytest

from tessera.ops import REFERENCE
from tessera.platform import Communicator, Device, GraphRunner, Kernel, MixerBackend, ModelRunner, Platform
from tools.contract_names import Name, names
from tools.contract_reference import PAGE, reference

CONTRACTS = [name for name in names() if isinstance(name.node, ast.ClassDef) and name.facet != "testing"]


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "run python -m tools.contract_reference"


def test_it_says_what_is_required() -> None:
    page = reference()
    for contract in (Platform, Device, MixerBackend, GraphRunner, Communicator, ModelRunner, Kernel):
        part = page.partition(f"\n### {contract.__name__}\n")[2].partition("\n### ")[0]
        required = {line.split("`")[1].split("(")[0] for line in part.splitlines() if line.endswith("**required**  ")}
        assert required == set(contract.__abstractmethods__), contract
    for op in REFERENCE.names():
        assert f"| `{op}` | `" in page


def test_a_field_comes_with_the_comments_above_it_and_beside_it() -> None:
    text = "class Rows:\n    count: int\n\n    # By group,\n    # of the device.\n    slots: list[int]  # [T]\n"
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.ClassDef)
    rows = Name("launch", "rows", "Rows", node, "", text)
    assert rows.source_lines(node.body[0]) == ["count: int"]
    assert rows.source_lines(node.body[1]) == ["# By group,", "# of the device.", "slots: list[int]  # [T]"]


@pytest.mark.parametrize("name", CONTRACTS, ids=lambda name: name.name)
def test_whatever_a_vendor_writes_or_reads_is_described(name: Name) -> None:
    """A class says what it is; a required member says what it must do."""
    assert isinstance(name.node, ast.ClassDef)
    assert name.doc or name.name == "RegisterRoutes", name.name
    for member in name.node.body:
        if isinstance(member, ast.FunctionDef) and any("abstract" in ast.unparse(one) for one in member.decorator_list):
            assert ast.get_docstring(member), f"{name.name}.{member.name}"
