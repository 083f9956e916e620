"""The workflow that makes a release: its commands, paths and versions are the repository's. It runs elsewhere."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from packaging.requirements import Requirement

from tessera.cli.program import tessera
from tools.build_dist import ARCHITECTURES, NATIVE, distributions
from tools.sbom.__main__ import BILL, TABLE

ROOT = Path(__file__).parents[2]
FILE = ROOT / ".github/workflows/release.yml"
TEXT = FILE.read_text(encoding="utf-8")
WORKFLOW = yaml.safe_load(TEXT)
JOBS = WORKFLOW["jobs"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def steps() -> Iterator[dict[str, Any]]:
    for job in JOBS.values():
        yield from job["steps"]


COMMANDS = [shlex.split(line, comments=True) for step in steps() for line in step.get("run", "").splitlines()]


def commands(*begin: str) -> list[list[str]]:
    """What follows of each command that begins so."""
    return [command[len(begin) :] for command in COMMANDS if command[: len(begin)] == [*begin]]


def matrix(job: str) -> Any:
    return JOBS[job]["strategy"]["matrix"]


def test_each_action_is_pinned_by_commit_with_its_version_beside_it() -> None:
    named = re.findall(r"uses: (.*)", TEXT)
    assert len(named) == sum("uses" in step for step in steps()) > 8
    assert [name for name in named if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", name)] == []


def test_each_target_of_make_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    used = {word for command in commands("make") for word in command}
    assert {"install-dev", "test", "dist"} <= used <= targets


def test_each_module_is_there() -> None:
    used = [module for module in re.findall(r"-m (tools[\w.]*)", TEXT) if find_spec(module) is None]
    assert used == []
    assert "-m tools.version" in TEXT


def test_each_path_is_there() -> None:
    (built,) = commands("python", "-m", "cibuildwheel")
    assert Path(built[0]) == NATIVE
    assert (ROOT / built[0] / "pyproject.toml").is_file()
    installs = commands(".venv/bin/python", "-m", "pip", "install")
    assert all((ROOT / words[words.index("-c") + 1]).is_file() for words in installs)


def test_the_files_of_the_list_of_components_are_what_it_writes() -> None:
    uploads = [step["with"] for step in steps() if "upload-artifact" in step.get("uses", "")]
    (paths,) = [upload["path"].split() for upload in uploads if upload["name"] == "components"]
    assert paths == [f"dist/{BILL}", f"dist/{TABLE}"]


def test_pythons_are_those_that_the_package_names() -> None:
    prefix = "Programming Language :: Python :: "
    versions = [line.removeprefix(prefix) for line in PROJECT["classifiers"] if re.fullmatch(rf"{prefix}\d\.\d+", line)]
    assert matrix("trial")["python"] == versions
    oldest = PROJECT["requires-python"].removeprefix(">=")
    given = {step["with"]["python-version"] for step in steps() if "setup-python" in step.get("uses", "")}
    assert given == {oldest, "${{ matrix.python }}"}
    (build,) = {step["env"]["CIBW_BUILD"] for step in steps() if "CIBW_BUILD" in step.get("env", {})}
    assert build == f"cp{oldest.replace('.', '')}-${{{{ matrix.wheel }}}}"


def test_kernels_are_built_for_each_architecture_on_a_machine_of_its_own() -> None:
    wheels = {row["wheel"]: row["runner"] for row in matrix("kernels")["include"]}
    linux = {f"{system}_{name}" for system in ("manylinux", "musllinux") for name in ARCHITECTURES}
    assert set(wheels) == {*linux, "macosx_arm64"}
    assert all(runner.endswith("-arm") == ("aarch64" in wheel) for wheel, runner in wheels.items())
    # All but musl, for which there is no torch.
    tried = {runner for wheel, runner in wheels.items() if "musl" not in wheel}
    assert set(matrix("trial")["runner"]) == tried


@pytest.mark.parametrize("words", commands("tessera"), ids=" ".join)
def test_each_command_of_ours_is_understood(words: list[str]) -> None:
    command = tessera.get_command(click.Context(tessera), words[0])
    assert command is not None
    with command.make_context(words[0], words[1:]):
        pass


def test_the_installation_names_an_extra_that_there_is() -> None:
    (words,) = commands("python", "-m", "pip", "install", "--find-links")
    requirement = Requirement(words[-1])
    assert requirement.name == PROJECT["name"]
    assert requirement.extras <= set(PROJECT["optional-dependencies"])


def test_what_is_downloaded_was_uploaded() -> None:
    uploaded = [step["with"]["name"] for step in steps() if "upload-artifact" in step.get("uses", "")]
    assert sorted(uploaded) == ["components", "kernels-${{ matrix.wheel }}", "packages"]
    downloads = [step["with"] for step in JOBS["publish"]["steps"] if "download-artifact" in step.get("uses", "")]
    assert [one.get("pattern") or one["name"] for one in downloads] == ["{packages,kernels-*}", "components"]
    assert set(JOBS["publish"]["needs"]) == set(JOBS) - {"publish"}


def test_only_the_last_job_may_write_and_only_for_a_tag() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert [name for name, job in JOBS.items() if "permissions" in job] == ["publish"]
    publish = JOBS["publish"]
    assert publish["permissions"] == {"attestations": "write", "contents": "write", "id-token": "write"}
    assert publish["if"] == "github.ref_type == 'tag'"
    assert publish["environment"] == "release"
    assert "secrets." not in TEXT
    checkouts = [step["with"] for step in steps() if "actions/checkout" in step.get("uses", "")]
    assert all(checkout["persist-credentials"] is False for checkout in checkouts)


def test_the_page_names_each_distribution_that_needs_a_publisher() -> None:
    page = (ROOT / "docs/releases.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"each distribution \((.*?)\)", page, re.DOTALL)
    manifests = [folder / "pyproject.toml" for folder in distributions(ROOT)]
    names = [tomllib.loads(file.read_text(encoding="utf-8"))["project"]["name"] for file in manifests]
    assert sorted(re.findall(r"`([\w-]+)`", listed)) == sorted(names)
