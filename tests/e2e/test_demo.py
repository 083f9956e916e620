"""The bundled demo, served as `make serve` does, and the wheels, installed as a stranger does."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from importlib.metadata import distribution, distributions
from pathlib import Path

import openai
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.e2e.served import Served
from tools.build_dist import build_wheel

ROOT = Path(__file__).parents[2]
QUESTION = "What is the capital of France?"


def ask(url: str, question: str, **fields: object) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="tessera-demo", messages=[{"role": "user", "content": question}], temperature=0, extra_body=fields
        )
    return answer.choices[0].message.content or ""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory):
    with Served([], tmp_path_factory.mktemp("log") / "log") as served:
        yield served


def test_the_demo_is_served_when_nothing_is_named(demo: Served) -> None:
    assert "Paris" in ask(demo.url, QUESTION)
    report = demo.log.read_text()
    for said in ("device", "dtype", "weights", "KV cache", "requests of 1,024 tokens", "URL", "curl "):
        assert said in report


@pytest.mark.parametrize("word", ["capital", " capital"])
def test_a_bad_word_is_not_said_with_a_space_in_front_of_it(demo: Served, word: str) -> None:
    """It is a token then, and three tokens without."""
    assert " capital" in ask(demo.url, QUESTION)
    assert "capital" not in ask(demo.url, QUESTION, bad_words=[word])


def test_the_demo_scores_through_the_server(demo: Served) -> None:
    """200 held-out questions by the openai client at temperature 0."""
    command = [
        sys.executable,
        "-m",
        "tools.demo_model.evaluate",
        "--base-url",
        f"{demo.url}/v1",
        "--at-least",
        "0.9",
        "--each-at-least",
        "0.75",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("installed", ["by links", pytest.param("by pip", marks=pytest.mark.nightly)])
def test_the_wheels_alone_serve_a_right_answer(installed: str, tmp_path: Path) -> None:
    """Both wheels in a fresh environment outside the clone, with nothing of the clone on its path. What they declare
    that they need is there too: as pip finds it, which takes most of a minute, or as links to what is here."""
    wheels = tmp_path / "dist"
    for folder in (ROOT, ROOT / "platforms/cpu"):
        build_wheel(folder, wheels)
    environment = tmp_path / "environment"
    venv.create(environment)
    python = environment / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", "--no-compile", "--find-links", str(wheels)]
    if installed == "by pip":
        constraints = ["-c", str(ROOT / "constraints.txt")]
        subprocess.run([*install, *constraints, "tessera-llm[cpu]"], cwd=tmp_path, check=True)
    else:
        subprocess.run([*install, "--no-index", "--no-deps", "tessera-llm[cpu]", "tessera-cpu"], check=True)
        (site,) = environment.glob("lib/python*/site-packages")
        link_required(site)
        assert not (site / "pytest").exists(), "nothing declares it"
        subprocess.run([*pip, "check"], check=True)
    own = subprocess.run(
        [str(python), "-c", "import tessera; print(tessera.__file__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(own.stdout.strip()).is_relative_to(environment)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TESSERA_"))}
    with Served(
        [], tmp_path / "log", [str(environment / "bin/tessera")], environment=variables, folder=tmp_path
    ) as served:
        assert "Paris" in ask(served.url, QUESTION)


def link_required(site: Path) -> None:
    """Links to all that what is installed in a folder declares that it needs, at any depth, and to nothing else."""
    waiting = [(there, "") for there in distributions(path=[str(site)])]
    seen = {(canonicalize_name(there.name), "") for there, _ in waiting}
    while waiting:
        holder, extra = waiting.pop()
        for requirement in map(Requirement, holder.requires or ()):
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            for wanted in {(canonicalize_name(requirement.name), extra) for extra in ("", *requirement.extras)} - seen:
                seen.add(wanted)
                needed = distribution(wanted[0])
                waiting.append((needed, wanted[1]))
                for name in {file.parts[0] for file in needed.files or ()} - {"..", "__pycache__"}:
                    if not (site / name).exists():
                        (site / name).symlink_to(str(needed.locate_file(name)))
