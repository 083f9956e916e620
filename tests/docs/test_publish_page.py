"""docs/plugins/publish.md: the workflow is the template's own, and what it tells a vendor to run and write holds."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from tessera.cli.program import run
from tessera.plugins.template import TemplateAnswers, generate
from tests.docs.steps import Block, blocks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/plugins/publish.md"
TEXT = PAGE.read_text(encoding="utf-8")
WORKFLOWS = {block.facts["title"]: block for block in blocks(TEXT) if block.kind == "yaml"}


def said(block: Block) -> str:
    return "".join(f"{line}\n" for line in block.lines)


def commands() -> list[str]:
    """Of all blocks, those of tessera."""
    lines = (line.strip().removeprefix("- run: ") for block in blocks(TEXT) for line in block.lines)
    return sorted({line for line in lines if line.startswith("tessera ")})


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("publish") / "tessera-mychip"
    generate(TemplateAnswers("mychip", "op", "mychip", "torch_mychip", ("bfloat16",)), folder)
    return folder


def test_the_workflow_is_the_one_that_is_generated(generated: Path) -> None:
    path = ".github/workflows/ci.yml"
    assert said(WORKFLOWS[path]) == (generated / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_is_one(name: str) -> None:
    workflow = yaml.safe_load(said(WORKFLOWS[name]))
    (job,) = workflow["jobs"].values()
    assert all({"uses", "run"} & set(step) for step in job["steps"])
    assert "tessera plugin check ." in [step.get("run") for step in job["steps"]]


@pytest.mark.parametrize("command", commands())
def test_a_command_has_the_flags_that_are_shown(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command)[1:]
    name = words[: 2 if words[0] == "plugin" else 1]
    assert run([*name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert [flag for flag in words if flag.startswith("--") and flag not in shown] == []


def test_what_is_said_of_the_generated_package_holds(generated: Path) -> None:
    project = tomllib.loads((generated / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["name"] == "tessera-mychip"
    assert 'mychip = "tessera_mychip"' in TEXT
    assert project["project"]["entry-points"]["tessera"] == {"mychip": "tessera_mychip"}
    torch, core = (
        next(one for one in project["project"]["dependencies"] if one.startswith(name))
        for name in ("torch", "tessera-llm")
    )
    assert f"`{torch}`" in TEXT
    assert core.startswith("tessera-llm>=")
    assert not any("torch" in one for one in project["build-system"]["requires"])


def test_its_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (PAGE.parent / target).exists(), target
