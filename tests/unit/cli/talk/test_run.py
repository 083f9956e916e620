"""chat and complete from their flags to who is asked, and what does not hold."""

from __future__ import annotations

import io
import signal
from functools import partial
from types import SimpleNamespace

import pytest

from tessera.cli.client.local import RequestDefaults
from tessera.cli.client.remote import connect
from tessera.cli.model_text import TemplateOptions
from tessera.cli.program import run
from tessera.cli.talk.commands import CHAT, COMPLETE, request_defaults
from tests.unit.cli.fake_server import URL, FakeServer, Timing


@pytest.fixture(autouse=True)
def handlers():
    """The commands set their own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def server(monkeypatch):
    server = FakeServer()
    monkeypatch.setattr("tessera.cli.talk.commands.connect", partial(connect, transport=server))
    return server


def test_one_question_to_a_server(server, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "openai's")
    monkeypatch.setenv("TESSERA_API_KEY", "ours")
    flags = ("--temperature", "0", "--top-p", "0.5", "--max-tokens", "3", "--seed", "7", "--stop", "x", "--stop", "y")
    assert run(["chat", "--url", URL, "--system", "Be kind.", *flags, "-q", "Hi"]) == 0
    assert capsys.readouterr().out == "t0 t1 t2 \n"
    (body,) = server.asked
    assert body["messages"] == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    assert [body[name] for name in ("temperature", "top_p", "max_tokens", "seed", "stop")] == [0, 0.5, 3, 7, ["x", "y"]]
    assert server.headers[0]["authorization"] == "Bearer ours"
    assert run(["complete", "--url", URL, "--quick", "Once", "--api-key", "mine"]) == 0
    assert server.asked[1]["prompt"] == "Once"
    assert "temperature" not in server.asked[1]
    assert server.headers[-1]["authorization"] == "Bearer mine"


def test_images_are_shown_with_the_question(server, tmp_path, capsys):
    names = [tmp_path / "a.jpg", tmp_path / "b"]
    for name in names:
        name.write_bytes(b"x")
    flags = [part for name in names for part in ("--image", str(name))]
    assert run(["chat", "--url", URL, *flags, "-q", "What?"]) == 0
    content = server.asked[0]["messages"][0]["content"]
    assert [part["type"] for part in content] == ["image_url", "image_url", "text"]
    assert [part["image_url"]["url"] for part in content[:2]] == [
        "data:image/jpeg;base64,eA==",
        "data:image/png;base64,eA==",
    ]
    assert run(["chat", "--url", URL, "--image", str(tmp_path / "c"), "-q", "What?"]) == 2
    assert "c cannot be read: No such file or directory." in capsys.readouterr().err
    (tmp_path / "big").write_bytes(bytes(20 * 2**20 + 1))
    assert run(["chat", "--url", URL, "--image", str(tmp_path / "big"), "-q", "What?"]) == 2
    assert "big has more than 20971520 bytes" in capsys.readouterr().err


def test_a_pipe_is_one_question(server, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("two\nlines\n"))
    assert run(["chat", "--url", URL, "--max-tokens", "1"]) == 0
    assert server.asked[0]["messages"] == [{"role": "user", "content": "two\nlines\n"}]
    assert capsys.readouterr().out == "t0 \n"


def test_flags_may_stand_in_a_file(server, tmp_path):
    (tmp_path / "c.yaml").write_text(f"url: {URL}\nmax-tokens: 2\ntop_p: 0.25\nquick: Hi\n")
    assert run(["chat", "--config", str(tmp_path / "c.yaml"), "--top-p", "0.75"]) == 0
    assert (server.asked[0]["max_tokens"], server.asked[0]["top_p"]) == (2, 0.75)


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["--url", URL, "m"], 2, "Give a MODEL to run here or the --url of a server, not both"),
        (["--url", URL, "--dtype", "float32"], 2, "--dtype is for a model that runs here; remove it, or --url."),
        (["--url", URL, "--generation-config", "none"], 2, "--generation-config is for a model that runs here"),
        (["--api-key", "k"], 2, "--api-key is for a server; add --url, or remove it."),
        (["--model-name", "k"], 2, "--model-name is for a server"),
        (["--url", URL, "--model-name", "k"], 2, "does not serve 'k'; it serves m."),
        (["--url", "nothing"], 2, "--url 'nothing' is not an HTTP URL"),
        (["no/such/folder"], 3, "There is no folder 'no/such/folder'"),
        (["--url", URL, "-q", " "], 2, "There is no input: give -q TEXT, or pipe a text to stdin."),
        (["--max-tokns", "3"], 2, "'--max-tokens'"),
    ],
)
@pytest.mark.usefixtures("server")
def test_what_does_not_hold_is_one_line(capsys, arguments, code, what):
    assert run(["chat", "-q", "Hi", *arguments]) == code
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert what in output.err


def test_what_a_server_refuses_is_one_line(server, capsys):
    server.timings = [Timing(status=401, error="wrong key.")]
    assert run(["chat", "--url", URL, "-q", "Hi"]) == 2
    assert "rejected the API key: wrong key. Set --api-key" in capsys.readouterr().err


def test_no_server_is_one_line_and_its_own_code(capsys):
    assert run(["chat", "--url", "http://127.0.0.1:1", "-q", "Hi"]) == 8
    output = capsys.readouterr()
    assert "error: Cannot connect to http://127.0.0.1:1/v1" in output.err
    assert (output.out, output.err.count("\n")) == ("", 1)


def test_what_a_model_here_does_unasked_is_what_a_server_of_the_same_flags_does():
    def config(**defaults):
        return SimpleNamespace(model=SimpleNamespace(sampling_defaults=defaults))

    given = dict.fromkeys(flag.name for flag in CHAT.flags)
    own = request_defaults(given, config(temperature=0.6, top_k=20, max_tokens=7))
    assert (own.sampling, own.chat_tokens, own.template) == ({"temperature": 0.6, "top_k": 20}, 7, TemplateOptions())
    asked = given | {
        "generation_config": "none", "override_generation_config": {"max_new_tokens": 5, "top_p": 0.5},
        "chat_template": "t.jinja", "chat_template_content_format": "openai",
        "default_chat_template_kwargs": {"think": False},
    }  # fmt: skip
    defaults = request_defaults(asked, config(max_tokens=5, top_p=0.5))
    assert defaults == RequestDefaults(TemplateOptions("t.jinja", "openai", {"think": False}), {"top_p": 0.5}, 5)
    assert request_defaults(dict.fromkeys(flag.name for flag in COMPLETE.flags), config()).template == TemplateOptions()
