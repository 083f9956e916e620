"""`serve` from its flags to the application it serves, with an engine that does nothing."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient

from tessera.cli.program import run

PLATFORM = "a_platform.module:Platform"


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "tiny"
    path.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": 10, "max_position_embeddings": 32}
    (path / "config.json").write_text(json.dumps(config))
    (path / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20}')
    return path


@pytest.fixture
def served(monkeypatch):
    """What the engine and the server were given, in place of running either."""
    given = SimpleNamespace()

    async def start(config, *, tokenizer, on_progress, supervision):
        given.config, given.tokenizer, given.supervision = config, tokenizer, supervision
        info = SimpleNamespace(
            device="chip", dtype="float32", platform="good", weight_bytes=1, cache_bytes=2, num_cache_tokens=64,
            max_model_len=32, phases={"load": 1.0}, fallback_ops=[], notes=[],
        )  # fmt: skip
        return SimpleNamespace(config=config, info=info, tokenizer=tokenizer, health=SimpleNamespace(alive=True))

    async def serve(starting, listener, settings):
        given.app, given.settings, given.address = (await starting).app, settings, listener.getsockname()
        return 0

    monkeypatch.setattr("tessera.engine.async_engine.AsyncEngine.start", start)
    monkeypatch.setattr("tessera.server.serve.serve", serve)
    return given


def serve(model, *flags):
    always = ("--port", "0", "--platform", PLATFORM, "--load-format", "dummy", "--skip-tokenizer-init")
    return run(["serve", str(model), *always, *flags])


def test_from_flags_to_engine_server_and_report(model, served, capsys):
    flags = ("--max-model-len", "16", "--no-enable-prefix-caching", "--api-key", "one", "--api-key", "two")
    names = ("--served-model-name", "first", "--served-model-name", "second", "--shutdown-timeout", "5")
    assert serve(model, *flags, *names) == 0
    assert (served.config.model.max_model_len, served.config.cache.prefix_caching) == (16, False)
    assert (served.config.model.served_name, served.config.platform) == ("first", PLATFORM)
    assert served.tokenizer is None
    assert served.settings.served_model_names == ("first", "second")
    assert (served.settings.api_keys, served.settings.drain_seconds) == (("one", "two"), 5.0)
    assert served.settings.default_sampling == {"temperature": 0.6, "top_k": 20}
    output = capsys.readouterr()
    assert "serves first" in output.out
    assert f"http://127.0.0.1:{served.address[1]}" in output.out
    assert "64 tokens = 2.0 requests of 32 tokens" in output.out
    assert output.err == ""


def test_what_is_not_given_comes_from_the_environment_or_is_off(model, served, monkeypatch, capsys):
    monkeypatch.setenv("TESSERA_API_KEY", "secret")
    monkeypatch.setenv("TESSERA_API_KEYS", "secret")
    assert serve(model, "--generation-config", "none", "--host", "0.0.0.0") == 0
    assert (served.settings.api_keys, served.settings.default_sampling) == (("secret",), {})
    assert served.settings.served_model_names == ("tiny",)
    assert capsys.readouterr().err == (
        "warning: the environment variable TESSERA_API_KEYS means nothing to Tessera; did it mean TESSERA_API_KEY?\n"
    )


def test_routes_of_a_plugin_are_served_only_where_they_are_named(model, served, site, monkeypatch):
    monkeypatch.syspath_prepend(site.install("extras").folder)
    monkeypatch.setenv("TESSERA_LOAD_PLUGINS", "extras")
    assert serve(model) == 0
    assert TestClient(served.app).get("/echo").status_code == 404
    assert serve(model, "--routes", "echo", "--api-key", "secret") == 0
    client = TestClient(served.app)
    assert client.get("/echo").status_code == 401
    assert client.get("/echo", headers={"Authorization": "Bearer secret"}).text == "tiny"


@pytest.mark.parametrize(
    ("flags", "code", "what"),
    [
        (["--shutdown-timeout", "-1"], 2, "--shutdown-timeout must be from 0"),
        (["--api-key", ""], 2, "--api-key must not be empty"),
        (["--chat-template", "x.jinja"], 2, "--chat-template needs a tokenizer"),
        (["--routes", "admin"], 2, "no routes 'admin'"),
    ],
)
@pytest.mark.usefixtures("served")
def test_what_does_not_hold_is_one_line(model, capsys, monkeypatch, flags, code, what):
    monkeypatch.setenv("TESSERA_LOAD_PLUGINS", "")
    assert serve(model, *flags) == code
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert what in error
    assert error.count("\n") == 1


def test_a_bug_is_shown_whole(model, monkeypatch, capsys):
    def broken(*_arguments, **_settings):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("tessera.cli.serve.build_config", broken)
    assert serve(model) == 1
    error = capsys.readouterr().err
    assert "ZeroDivisionError: a bug" in error
    assert error.endswith("error: That is a bug of Tessera; please report it with the lines above.\n")
