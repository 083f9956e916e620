"""`serve` from its flags to the application it serves, with an engine that does nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import ClassVar

import pytest
from starlette.testclient import TestClient

from tessera.cli.program import run
from tessera.engine.child import IN_PROCESS, WORKERS
from tessera.platform import Explained
from tessera.server.settings import AnswerLimits, CorsRules
from tests.certificates import Authority

PLATFORM = "a_platform.module:Platform"
LOCAL = ("localhost", "127.0.0.1", "[::1]", "0.0.0.0", "host.docker.internal")


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "tiny"
    path.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": 10, "max_position_embeddings": 32}
    (path / "config.json").write_text(json.dumps(config))
    (path / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20, "max_new_tokens": 24}')
    return path


@pytest.fixture
def served(monkeypatch):
    """What the engine and the server were given, in place of running either."""
    given = SimpleNamespace()

    async def start(config, *, text, media, on_progress, supervision, child):
        given.config, given.text, given.media, given.supervision = config, text, media, supervision
        given.child = child
        info = SimpleNamespace(
            device="chip", dtype="float32", platform="good", weight_bytes=1, cache_bytes=2, num_cache_tokens=64,
            max_model_len=32, max_num_seqs=4, phases={"load": 1.0}, fallback_ops=[], notes=[], num_weights=1,
            num_devices=1,
            choices=[Explained("linear", "n=8", "kernel Fast", (("reference", "a kernel comes first"),))],
        )  # fmt: skip
        health = SimpleNamespace(alive=True)
        return SimpleNamespace(config=config, info=info, text=text, media=media, tokenizer=None, health=health)

    async def serve(starting, listener, settings):
        given.app, given.settings, given.address = (await starting).app, settings, listener.getsockname()
        return 0

    monkeypatch.setattr("tessera.engine.async_engine.AsyncEngine.start", start)
    monkeypatch.setattr("tessera.server.serve.serve", serve)
    return given


class Child:
    """In place of an engine's process. seen: every one that began."""

    seen: ClassVar[list[Child]] = []

    def __init__(self, executor):
        self.executor, self.ended = executor, False
        self.seen.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.ended = True


@pytest.fixture(autouse=True)
def children(monkeypatch):
    monkeypatch.setattr(Child, "seen", [])
    monkeypatch.setattr("tessera.cli.serve.EngineChild", Child)
    return Child.seen


def serve(model, *flags):
    always = ("--port", "0", "--platform", PLATFORM, "--load-format", "dummy", "--skip-tokenizer-init")
    return run(["serve", str(model), *always, *flags])


def test_from_flags_to_engine_server_and_report(model, served, capsys):
    flags = ("--max-model-len", "16", "--no-enable-prefix-caching", "--api-key", "one", "--api-key", "two")
    names = ("--served-model-name", "first", "--served-model-name", "second", "--shutdown-timeout", "5")
    assert serve(model, *flags, *names) == 0
    assert (served.config.model.max_model_len, served.config.cache.prefix_caching) == (16, False)
    assert (served.config.model.served_name, served.config.platform) == ("first", PLATFORM)
    assert served.text is None
    assert served.settings.served_model_names == ("first", "second")
    assert (served.settings.api_keys, served.settings.drain_seconds) == (("one", "two"), 5.0)
    assert served.settings.default_sampling == {"temperature": 0.6, "top_k": 20}
    output = capsys.readouterr()
    assert "is serving first" in output.out
    assert f"http://127.0.0.1:{served.address[1]}" in output.out
    assert "64 tokens = 2.0 requests of 32 tokens" in output.out
    assert output.err == ""


def test_the_docs_are_served_unless_they_are_switched_off(model, served):
    for flags, status in (((), 200), (("--disable-fastapi-docs",), 404)):
        assert serve(model, *flags) == 0
        client = TestClient(served.app, base_url="http://127.0.0.1")
        assert [client.get(path).status_code for path in ("/docs", "/openapi.json")] == [status, status]


def test_the_web_page_is_served_unless_it_is_switched_off(model, served, capsys):
    for flags, status in (((), 200), (("--disable-ui",), 404)):
        assert serve(model, *flags) == 0
        assert TestClient(served.app, base_url="http://127.0.0.1").get("/").status_code == status
        assert ("web page" in capsys.readouterr().out) == (status == 200)


def test_the_engines_process_begins_once_and_ends_with_the_command(model, served, children, tmp_path):
    assert serve(model) == 0
    assert serve(model, "--tensor-parallel-size", "2") == 0
    assert serve(model, "--pipeline-parallel-size", "2") == 0
    assert serve(tmp_path / "nowhere") == 3
    assert run(["serve", "--no-such-flag"]) == 2
    assert [child.executor for child in children] == [IN_PROCESS, WORKERS, WORKERS, IN_PROCESS]
    assert all(child.ended for child in children)
    assert served.child is children[2]


def test_the_engines_process_begins_before_the_front_loads_what_it_needs():
    program = """
import sys
from tessera.cli import serve
from tessera.cli.program import run

def begin(executor):
    print(*sys.modules)
    raise SystemExit

serve.EngineChild = begin
run(["serve", "--port", "0"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "tessera.engine.child" in loaded
    late = {"numpy", "msgspec", "zmq", "asyncio", "yaml", "tessera.platform", "tessera.config.build", "uvicorn"}
    assert not loaded & late


def test_what_is_chosen_is_said_before_it_serves_where_that_is_asked_for(model, served, capsys, caplog):
    assert serve(model) == 0
    assert "kernel Fast" not in capsys.readouterr().out
    assert serve(model, "--explain") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"Platform {PLATFORM}: given by its path."
    assert lines[2] == "WHAT    WHERE  CHOSEN       WHY NOT THE OTHERS"
    assert lines[3] == "linear  n=8    kernel Fast  reference: a kernel comes first"
    assert any("is serving tiny" in line for line in lines[4:])
    assert serve(model, "--explain", "--log-format", "json") == 0
    assert capsys.readouterr().out == ""
    assert "chosen: linear  n=8    kernel Fast" in caplog.text


def test_what_is_not_given_comes_from_the_environment_or_is_off(model, served, monkeypatch, capsys):
    monkeypatch.setenv("TESSERA_API_KEY", "secret\n")
    monkeypatch.setenv("TESSERA_API_KEYS", "secret")
    assert serve(model, "--generation-config", "none", "--host", "0.0.0.0") == 0
    assert (served.settings.api_keys, served.settings.default_sampling) == (("secret",), {})
    assert served.settings.served_model_names == ("tiny",)
    assert capsys.readouterr().err == (
        "warning: unknown environment variable TESSERA_API_KEYS; did you mean TESSERA_API_KEY?\n"
    )


def test_routes_of_a_plugin_are_served_only_where_they_are_named(model, served, site, monkeypatch):
    monkeypatch.syspath_prepend(site.install("extras").folder)
    monkeypatch.setenv("TESSERA_LOAD_PLUGINS", "extras")
    assert serve(model) == 0
    assert TestClient(served.app, base_url="http://localhost").get("/echo").status_code == 404
    assert serve(model, "--routes", "echo", "--api-key", "secret") == 0
    client = TestClient(served.app, base_url="http://localhost")
    assert client.get("/echo").status_code == 401
    assert client.get("/echo", headers={"Authorization": "Bearer secret"}).text == "tiny"


@pytest.fixture
def certificate(tmp_path):
    return Authority(tmp_path).issue("server")


def test_every_rule_of_the_server_has_its_flag(model, served, certificate, tmp_path, capsys):
    keys = tmp_path / "keys"
    keys.write_text("# of the first team\nfrom-file\n\n another \n")
    flags = [
        *("--api-key", "given", "--api-key-file", str(keys), "--max-requests-per-key", "3"),
        *("--allowed-hosts", '["a.example", "*.lan"]', "--allowed-hosts", "b,c", "--root-path", "/llm/"),
        *("--allowed-origins", "https://a,https://b", "--allowed-methods", '["GET"]', "--allowed-headers", "x-a"),
        *("--allow-credentials", "--enable-force-include-usage", "--sse-keep-alive-interval", "2.5", "--vllm-metrics"),
        *("--override-generation-config", '{"temperature": 0.1, "max_new_tokens": 99}'),
        *("--default-chat-template-kwargs", '{"enable_thinking": false}'),
        *("--ssl-certfile", str(certificate.certificate), "--ssl-keyfile", str(certificate.key)),
        *("--max-prompts", "100", "--max-n", "200", "--max-choices", "1000"),
        *("--enable-request-id-headers", "--enable-server-load-tracking", "--disable-uvicorn-access-log"),
    ]
    assert serve(model, *flags) == 0
    settings = served.settings
    assert settings.api_keys == ("given", "from-file", "another")
    assert settings.max_requests_per_key == 3
    assert (settings.limits.prompts, settings.limits.n, settings.limits.choices) == (100, 200, 1000)
    assert settings.allowed_hosts == ("a.example", "*.lan", "b", "c")
    assert settings.cors == CorsRules(("https://a", "https://b"), ("GET",), ("x-a",), credentials=True)
    assert (settings.root_path, settings.sse_keep_alive_seconds) == ("/llm", 2.5)
    assert settings.force_include_usage
    assert settings.vllm_metrics
    assert settings.default_sampling == {"temperature": 0.1, "top_k": 20}
    assert settings.answers == AnswerLimits(default=99, maximum=99)
    assert settings.chat_template_kwargs == {"enable_thinking": False}
    assert settings.tls is not None
    said = capsys.readouterr()
    assert f"https://127.0.0.1:{served.address[1]}" in said.out
    assert "warning: --enable-server-load-tracking has no effect: /load always counts\n" in said.err


def test_what_is_off_is_absent(model, served):
    assert serve(model, "--sse-keep-alive-interval", "0") == 0
    names = [middleware.cls.__name__ for middleware in served.app.user_middleware]
    assert names == ["ErrorForms", "Access", "Hosts", "BodyLimits"]
    assert served.settings.allowed_hosts == LOCAL
    assert served.settings.answers == AnswerLimits(default=24)


@pytest.mark.parametrize(
    ("flags", "hosts"),
    [
        (["--host", "localhost"], LOCAL),
        (["--host", "127.0.0.2"], (*LOCAL, "127.0.0.2")),
        (["--host", "0.0.0.0"], ()),
        (["--api-key", "key"], ()),
        (["--api-key", "key", "--allowed-hosts", "a"], ("a",)),
        (["--allowed-hosts", "*"], ()),
    ],
)
def test_names_the_server_goes_by(model, served, flags, hosts):
    assert serve(model, *flags) == 0
    assert served.settings.allowed_hosts == hosts


def test_a_unix_socket_in_place_of_a_port(model, served, tmp_path, capsys):
    path = tmp_path / "a socket"
    assert serve(model, "--host", "0.0.0.0", "--uds", str(path)) == 0
    assert served.address == str(path)
    assert served.settings.allowed_hosts == ()
    output = capsys.readouterr()
    assert f"over the Unix socket {path}" in output.out
    assert f"curl --unix-socket '{path}' http://localhost/v1/completions" in output.out
    assert output.err == ""
    assert not path.exists()


@pytest.mark.parametrize(
    ("source", "override", "sampling", "answers"),
    [
        ("auto", None, {"temperature": 0.6, "top_k": 20}, AnswerLimits(default=24)),
        ("vllm", None, {}, AnswerLimits()),
        ("none", '{"max_new_tokens": 5}', {}, AnswerLimits(default=5, maximum=5)),
        ("FOLDER", None, {"top_p": 0.5}, AnswerLimits(default=12, maximum=12)),
        ("FOLDER", '{"max_new_tokens": 50, "top_p": 0.9}', {"top_p": 0.9}, AnswerLimits(default=50, maximum=50)),
    ],
)
def test_whose_generation_defaults_hold(model, served, tmp_path, source, override, sampling, answers):
    (tmp_path / "generation_config.json").write_text('{"top_p": 0.5, "max_new_tokens": 12}')
    given = ("--override-generation-config", override) if override else ()
    assert serve(model, "--generation-config", source.replace("FOLDER", str(tmp_path)), *given) == 0
    assert (served.settings.default_sampling, served.settings.answers) == (sampling, answers)


@pytest.mark.parametrize(
    ("flags", "code", "what"),
    [
        (["--shutdown-timeout", "-1"], 2, "--shutdown-timeout must be from 0"),
        (["--api-key", ""], 2, "--api-key and TESSERA_API_KEY must not be empty"),
        (["--chat-template", "x.jinja"], 2, "--chat-template needs a tokenizer"),
        (["--routes", "admin"], 2, "no routes 'admin'"),
        (["--api-key", " "], 2, "must not be empty"),
        (["--api-key-file", "no/such"], 2, "--api-key-file 'no/such' cannot be read: No such file"),
        (["--api-key-file", "/dev/null"], 2, "contains no key; write one per line"),
        (["--max-requests-per-key", "3"], 2, "--max-requests-per-key needs --api-key"),
        (["--max-requests-per-key", "0", "--api-key", "k"], 2, "--max-requests-per-key must be at least 1"),
        (["--root-path", "llm"], 2, "--root-path must be a path such as /tessera"),
        (["--allow-credentials"], 2, "require --allowed-origins"),
        (["--allowed-methods", "GET"], 2, "require --allowed-origins"),
        (["--allowed-origins", "*", "--allow-credentials"], 2, "--allow-credentials needs explicit --allowed-origins"),
        (["--allowed-origins", "[1]"], 2, "is not a list of strings"),
        (["--allowed-hosts", "a,,b"], 2, "is not a list of strings"),
        (["--allowed-hosts", "[a"], 2, "is not valid JSON"),
        (["--sse-keep-alive-interval", "-1"], 2, "--sse-keep-alive-interval must be from 0 to"),
        (["--response-store", "no/such"], 2, "The file of --response-store cannot be used"),
        (["--batch-store", "/dev/null/x"], 2, "--batch-store '/dev/null/x' cannot be used: Not a directory."),
        (["--max-file-bytes", "0"], 2, "--max-file-bytes must be"),
        (["--ssl-keyfile", "x"], 2, "--ssl-keyfile requires --ssl-certfile"),
        (["--ssl-certfile", "no/such"], 2, "--ssl-certfile 'no/such' cannot be read"),
        (
            ["--generation-config", "no/such"],
            2,
            "must be auto, none or a folder with generation_config.json",
        ),
        (["--override-generation-config", "[]"], 2, "is not a JSON object"),
        (
            ["--override-generation-config", '{"temprature": 1}'],
            2,
            "has 'temprature'; it takes temperature",
        ),
        (
            ["--override-generation-config", '{"temperature": -1}'],
            2,
            "must be a number from 0",
        ),
        (["--override-generation-config", '{"top_p": "x"}'], 2, "top_p in override_generation_config is"),
        (
            ["--override-generation-config", '{"max_new_tokens": 0}'],
            2,
            "must be a whole number from 1",
        ),
        (["--uds", "no/such/socket"], 7, "--uds 'no/such/socket' cannot be created"),
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

    monkeypatch.setattr("tessera.cli.serving.build_config", broken)
    assert serve(model) == 1
    error = capsys.readouterr().err
    assert "ZeroDivisionError: a bug" in error
    assert error.endswith("error: This is a bug in Tessera; please report it with the lines above.\n")
