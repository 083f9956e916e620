"""The file of --models: what an entry may say, and what is wrong with it in one line."""

from __future__ import annotations

import pytest

from tessera.cli import serving_models
from tessera.cli.program import run
from tessera.config.flags import given_values, record_of
from tessera.server.settings import SERVER_FLAGS, OnDemandRules


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Runs `serve --models` with a file of this text; what it would have served."""
    served = []

    def run_models(entries, flags, ignored=()):
        served.append((entries, flags))
        return 0

    monkeypatch.setattr(serving_models, "run_models", run_models)

    def start(text, *flags):
        path = tmp_path / "models.yaml"
        path.write_text(text)
        code = run(["serve", "--models", str(path), *flags])
        return (code, *served[-1]) if served else (code, None, None)

    return start


def test_an_entry_has_a_name_a_model_and_flags_in_place_of_the_command_line_s(serve):
    text = """
- name: small
  model: some/folder
  max-model-len: 2K
  enforce_eager: true
  default-chat-template-kwargs: '{"enable_thinking": false}'
- {name: "007", features: [structured_outputs, "draft=3"], reasoning-parser: auto, enable-lora: true,
   lora-modules: [x=y]}
"""
    code, entries, flags = serve(text, "--max-model-len", "64", "--seed", "5", "--max-loaded-models", "1")
    small, other = entries
    assert (code, small.name, small.model, other.name, other.model) == (0, "small", "some/folder", "007", None)
    assert [entry.flags["max_model_len"] for entry in entries] == [2048, 64]
    assert [entry.flags["seed"] for entry in entries] == [5, 5]
    assert [entry.flags["served_model_name"] for entry in entries] == [("small",), ("007",)]
    assert small.flags["default_chat_template_kwargs"] == {"enable_thinking": False}
    assert small.flags["enforce_eager"] is True
    assert [(entry.adapters, entry.flags["lora_modules"]) for entry in entries] == [([], ()), (["x"], ("x=y",))]
    assert other.flags["features"] == ("structured_outputs", "draft=3")
    rules = record_of(OnDemandRules, SERVER_FLAGS, given_values(SERVER_FLAGS, flags, as_options=True))
    assert (rules.max_loaded, rules.memory_bytes, rules.idle_seconds, rules.start_seconds) == (1, None, 0.0, 300.0)


WRONG = [
    ("", (), "must be a list of models, each with a name and a model."),
    ("[]", (), "must be a list of models, each with a name and a model."),
    ("name: a", (), "must be a list of models"),
    ("- a", (), "must have lines of the form flag: value."),
    ("- model: x", (), "entry 1 needs a name of at most 256 characters."),
    ("- {name: a}\n- {name: a}", (), "has two models or adapters with the name 'a'; rename one."),
    ("- {name: a, port: 1}", (), "line 1: unknown flag 'port'"),
    ("- {name: a, max-modellen: 1}", (), "did you mean max-model-len?"),
    ("- {name: a, max-model-len: x}", (), "line 1: 'max-model-len'"),
    ("- {name: a, lora-modules: [x=y]}\n- {name: x}", (), "has two models or adapters with the name 'x'; rename one."),
    ("- {name: a, lora-modules: [x]}", (), "lora_modules: 'x' is not NAME=FOLDER."),
    ("- {name: a, name: b}", (), "'name' appears twice."),
    ("- {name: a", (), "invalid YAML"),
    ("- {name: a}", ("some/folder",), "Give MODEL or --models, not both."),
    (
        "- {name: a}",
        ("--enable-lora", "--lora-modules", "x=y"),
        "--lora-modules cannot be used with --models; give it to a model of the file.",
    ),
    ("- {name: a}", ("--nnodes", "2"), "--nnodes above 1 cannot be used with --models; remove it."),
    ("- {name: a, nnodes: 2}", (), "line 1: unknown flag 'nnodes'"),
    ("- {name: a}", ("--served-model-name", "b"), "--served-model-name cannot be used with --models; remove it."),
]


@pytest.mark.parametrize(("text", "flags", "what"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_one_line(serve, capsys, text, flags, what):
    code, entries, _ = serve(text, *flags)
    assert (code, entries) == (2, None)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert what in line


def test_a_group_of_one_host_in_the_environment_is_none(serve, monkeypatch):
    for name, value in {"GROUP_SIZE": "1", "WORKER_INDEX": "0", "LEADER_ADDRESS": "leader"}.items():
        monkeypatch.setenv(f"LWS_{name}", value)
    _, entries, _ = serve("- {name: a}")
    assert [entry.name for entry in entries] == ["a"]


def test_what_belongs_to_one_model_is_refused(tmp_path, capsys):
    path = tmp_path / "models.yaml"
    path.write_text("- {name: a}")
    assert run(["serve", "--models", str(path), "--port", "0", "--enable-sleep-mode"]) == 2
    assert "--enable-sleep-mode cannot be used with --models; remove it." in capsys.readouterr().err
    assert run(["serve", "--models", str(tmp_path / "none")]) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err
