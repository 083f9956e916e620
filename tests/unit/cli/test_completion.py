"""Shell completion: what is offered, in a real bash, and what the installation writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tessera.cli.completion import SHELLS, install, script_of
from tessera.cli.program import run
from tessera.errors import ConfigError

ROOT = Path(__file__).parents[3]
BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_tessera_completion tessera
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def offered(tmp_path):
    """What bash offers for the last of some words, in a folder with models."""
    program = tmp_path / "bin" / "tessera"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from tessera.cli import main; main()" "$@"\n')
    program.chmod(0o755)
    (tmp_path / "script").write_text(script_of("bash"))
    for name in ("models/one/config.json", "models/other/config.json", "models/empty/readme"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    path = f"{program.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "core"), "TESSERA_LOAD_PLUGINS": ""}

    def complete(*words):
        command = ["bash", "--norc", "-c", BASH, "bash", str(tmp_path / "script"), "tessera", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60, check=False
        )
        return done.stdout.split()

    return complete


def test_a_shell_offers_what_click_finds(offered):
    assert offered("bench", "") == ["latency", "throughput", "embed", "serve"]
    assert offered("serve", "models/o") == ["models/one", "models/other"]


def complete(monkeypatch, capsys, *words):
    """The items (type, value) that click hands to bash."""
    monkeypatch.setenv("_TESSERA_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(["tessera", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    with pytest.raises(SystemExit):
        run([])
    return [tuple(line.split(",")) for line in capsys.readouterr().out.splitlines() if line]


def test_commands_flags_choices_and_groups_are_offered(monkeypatch, capsys):
    def offered(*words):
        return [value for _, value in complete(monkeypatch, capsys, *words)]

    monkeypatch.setenv("TESSERA_LOAD_PLUGINS", "")
    assert offered("s") == ["serve"]
    assert offered("c") == ["chat", "complete", "conformance", "completion"]
    assert offered("serve", "--max-num") == [
        "--max-num-seqs", "--max-num-batched-tokens", "--max-num-queued-reqs", "--max-num-queued-tokens",
    ]  # fmt: skip
    assert offered("serve", "--dtype", "b") == ["bfloat16"]
    assert offered("serve", "--help", "c") == ["cache"]
    assert offered("--inst") == ["--install-completion"]


def test_where_no_model_lies_folders_are_offered(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert complete(monkeypatch, capsys, "chat", "mo") == [("dir", "mo")]
    assert complete(monkeypatch, capsys, "serve", "--chat-template", "x") == [("file", "x")]
    assert complete(monkeypatch, capsys, "serve", "nowhere/at/all") == [("dir", "nowhere/at/all")]


def test_platforms_are_offered(monkeypatch, capsys, site):
    monkeypatch.syspath_prepend(site.install("good").folder)
    monkeypatch.setenv("TESSERA_LOAD_PLUGINS", "good")
    assert complete(monkeypatch, capsys, "serve", "--platform", "g") == [("plain", "good")]
    assert complete(monkeypatch, capsys, "serve", "--platform", "x") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_printed(shell, capsys):
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert script == script_of(shell) + "\n"
    assert f"_TESSERA_COMPLETE={shell}_complete" in script


@pytest.mark.parametrize(
    ("shell", "script", "start"),
    [
        ("bash", ".local/share/tessera/completion.bash", ".bashrc"),
        ("zsh", ".local/share/tessera/completion.zsh", ".zshrc"),
        ("fish", ".config/fish/completions/tessera.fish", ".config/fish/completions/tessera.fish"),
    ],
)
def test_an_installation_is_found_by_the_shell_and_can_be_repeated(tmp_path, shell, script, start):
    (tmp_path / ".bashrc").write_text("alias x=y")
    for _ in range(2):
        assert install(tmp_path, {"SHELL": f"/bin/{shell}"}) == (tmp_path / script, tmp_path / start)
    assert script_of(shell) in (tmp_path / script).read_text()
    if shell != "fish":
        text = (tmp_path / start).read_text()
        assert text.count(str(tmp_path / script)) == 2  # one line: is it there, then read it
    assert (tmp_path / ".bashrc").read_text().startswith("alias x=y")
    if shell == "bash":
        read = ["bash", "--norc", "-c", f'source "{tmp_path / start}"; complete -p tessera']
        done = subprocess.run(read, capture_output=True, text=True, timeout=30, check=False)
        assert done.stdout.strip().endswith("-F _tessera_completion tessera")


@pytest.mark.parametrize("shell", ["", "/bin/tcsh"])
def test_a_shell_that_is_not_known(tmp_path, shell):
    with pytest.raises(ConfigError, match="SHELL is none of bash, zsh, fish"):
        install(tmp_path, {"SHELL": shell})


def test_a_home_that_cannot_be_written(tmp_path):
    (tmp_path / ".local").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        install(tmp_path, {"SHELL": "/bin/bash"})
