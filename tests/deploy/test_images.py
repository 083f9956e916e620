"""The Dockerfile and the images that docker-bake.json makes of it; tools.deploy.image builds one."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tessera._version import __version__
from tessera.cli.serve import serve
from tessera.server.security import OPEN_PATHS
from tools.deploy.chart import Rendering, installed
from tools.deploy.image import USER, findings, sizes


@pytest.fixture(scope="module")
def dockerfile(root: Path) -> str:
    return (root / "deploy/docker/Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")


@pytest.fixture(scope="module")
def bake(root: Path) -> dict[str, Any]:
    return json.loads((root / "deploy/docker/docker-bake.json").read_text(encoding="utf-8"))


def list_of(dockerfile: str, instruction: str) -> list[str]:
    (written,) = re.findall(rf"^\s*{instruction} (\[.*\])", dockerfile, re.MULTILINE)
    return json.loads(written)


def test_hadolint_has_nothing_against_the_dockerfile(root: Path, tmp_path: Path) -> None:
    command = [str(installed().with_name("hadolint")), "--config", str(root / "deploy/docker/hadolint.yaml")]
    path = root / "deploy/docker/Dockerfile"
    linted = subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)
    assert (linted.returncode, linted.stdout) == (0, "")
    worse = tmp_path / "Dockerfile"
    worse.write_text(path.read_text(encoding="utf-8").replace("--no-install-recommends", ""), encoding="utf-8")
    assert subprocess.run([*command, str(worse)], capture_output=True, check=False).returncode == 1


def test_the_server_understands_what_the_image_runs(dockerfile: str) -> None:
    assert list_of(dockerfile, "ENTRYPOINT") == ["tini", "--", "tessera"]
    command, *arguments = list_of(dockerfile.partition("ENTRYPOINT")[2], "CMD")
    assert command == "serve"
    context = serve.make_context("serve", arguments)
    assert f"EXPOSE {context.params['port']}" in dockerfile


def test_the_health_check_asks_a_path_that_needs_no_key(dockerfile: str) -> None:
    (code,) = re.findall(r'HEALTHCHECK .*"-c", "(.*)"\]', dockerfile)
    compile(code, "health check", "exec")
    (path,) = re.findall(r"127\.0\.0\.1:8000(/\w+)", code)
    assert path in OPEN_PATHS


def test_the_image_and_the_chart_agree_on_user_and_folders(dockerfile: str, rendered: Callable[..., Rendering]) -> None:
    assert f"USER {USER}:{USER}" in dockerfile
    spec = rendered().get("Deployment")["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["runAsGroup"] == USER
    (written,) = re.findall(r"^ENV (.*)$", dockerfile, re.MULTILINE)
    environment = dict(word.split("=", 1) for word in written.split())
    for variable in spec["containers"][0]["env"]:
        assert environment[variable["name"]] == variable["value"]


def test_targets_name_arguments_of_the_dockerfile_and_extras_of_core(
    root: Path, dockerfile: str, bake: dict[str, Any]
) -> None:
    known = set(re.findall(r"^ARG (\w+)", dockerfile, re.MULTILINE))
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"])
    assert bake["variable"]["VERSION"]["default"] == __version__
    for name, target in bake["target"].items():
        assert set(target.get("args", {})) <= known
        assert set(target.get("args", {}).get("EXTRAS", "cpu").split(",")) <= extras
        assert name == "image" or target["tags"] == [f"tessera:${{VERSION}}-{name}"]


def test_files_that_nobody_should_find_are_named(tmp_path: Path) -> None:
    site = tmp_path / "opt/tessera/lib/python3.11/site-packages/torch"
    site.mkdir(parents=True)
    for name, mode, content in (("su", 0o4755, "a"), ("open", 0o666, "bc"), ("right", 0o644, "def")):
        (site / name).write_text(content, encoding="utf-8")
        (site / name).chmod(mode)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    place = f"/{site.relative_to(tmp_path)}"
    assert sorted(findings(tmp_path)) == [f"{place}/open can be written by anybody", f"{place}/su has another's rights"]
    assert sizes(tmp_path) == {"torch": 6, "(Debian)": 0}
