"""--config: which value holds, and what a file may not say."""

from __future__ import annotations

import json

import click
import pytest

from tessera.cli.flag_command import FlagCommand
from tessera.cli.program import run
from tessera.cli.serve import TABLE
from tessera.config.flags import given_values

BOMB = "&a [" * 2000


@pytest.fixture
def given(tmp_path):
    """What serve is called with, of a file and a command line."""
    values = {}

    @click.command(cls=FlagCommand, table=TABLE)
    @click.argument("model", required=False)
    def command(**flags):
        values.update(flags)

    def parse(text, *arguments):
        values.clear()
        (tmp_path / "c.yaml").write_text(text)
        command.main(["--config", str(tmp_path / "c.yaml"), *arguments], standalone_mode=False)
        return {name: value for name, value in values.items() if value not in (None, ())}

    return parse


def test_the_command_line_goes_before_the_file_and_the_file_before_the_default(given):
    text = "max-model-len: 4K\nmax_num_seqs: 8\nmodel: here\nport: 9000\n"
    assert given(text, "--max-model-len", "16") == {
        "max_model_len": 16, "max_num_seqs": 8, "model": "here", "port": 9000
    }  # fmt: skip
    assert given(text, "there")["model"] == "there"
    assert given("") == given("# nothing\n") == {}


def test_values_are_read_as_on_the_command_line(given):
    text = (
        "api_key: 0123\nserved-model-name: [first, 2]\nenforce_eager: yes\nenable-prefix-caching: false\n"
        "kv_cache_memory_bytes: 1.5GiB\ngpu-memory-utilization: .5\nchat_template: no\n"
    )
    assert given(text) == {
        "api_key": ("0123",), "served_model_name": ("first", "2"), "enforce_eager": True,
        "enable_prefix_caching": False, "kv_cache_memory_bytes": 3 * 2**29, "gpu_memory_utilization": 0.5,
        "chat_template": "no",
    }  # fmt: skip
    text = "allowed-hosts: a.b,*.lan\nallowed_origins: [x, y]\ndefault-chat-template-kwargs: '{\"think\": false}'\n"
    assert given(text) == {
        "allowed_hosts": ("a.b", "*.lan"), "allowed_origins": ("x", "y"),
        "default_chat_template_kwargs": {"think": False},
    }  # fmt: skip
    assert given("enable-prefix-caching: false", "--enable-prefix-caching") == {"enable_prefix_caching": True}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("port: many", "line 1: 'port': 'many' is not a valid integer."),
        ("port: 3.5", "'3.5' is not a valid integer."),
        ("max-model-len: -3", "'-3' is not a number with an optional suffix"),
        ("dtype: int3", "line 1: 'dtype': 'int3' is not one of"),
        ("enforce-eager: perhaps", "'perhaps' is not a valid boolean"),
        ("\nmax-model-length: 3", "line 2: unknown flag 'max-model-length'; did you mean max-model-len?"),
        ("zzz: 3", "unknown flag 'zzz'."),
        ("group: cache", "unknown flag 'group'"),
        ("config: other.yaml", "unknown flag 'config'"),
        ("swap-space: awq", "line 1: --swap-space: the KV cache stays on the device;"),
        ("port: 1\nport: 2", "line 2: 'port' appears twice."),
        ("max-num-seqs: 1\nmax_num_seqs: 2", "line 2: 'max_num_seqs' appears twice."),
        ("cache:\n  block_size: 16", "unknown flag 'cache'"),
        ("port: {a: 1}", "'port' has nested keys; the flag takes one value."),
        ("default_chat_template_kwargs: {a: 1}", "has nested keys; the flag takes a quoted JSON string."),
        ("default_chat_template_kwargs: '[1]'", "'[1]' is not a JSON object"),
        ("api_key: [[a]]", "'api_key' has nested lists or keys; the flag takes a value or a list of values."),
        ("port: [1, 2]", "'port' is a list; the flag takes one value."),
        ("port:", "'port' has no value; give one, or remove the line."),
        ("api_key: [a, ~]", "'api_key' has no value"),
        ("- port", "must have lines of the form flag: value."),
        ("port", "must have lines of the form flag: value."),
        ("[a]: 1", "line 1: a key must be the name of a flag."),
        ("port: 'x", "invalid YAML:"),
        ("a: 1\n---\nb: 2", "invalid YAML:"),
        ("port: !!python/object/apply:os.getpid []", "'port' is a list"),
        ("a\0b: 1", "is not valid YAML"),
        (BOMB, "invalid YAML"),
    ],
)
def test_what_does_not_hold_is_one_line(tmp_path, capsys, text, what):
    file = tmp_path / "c.yaml"
    file.write_text(text)
    assert run(["serve", "--config", str(file)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert what in error
    assert error.count("\n") == 1


def test_a_file_that_cannot_be_read(tmp_path, capsys):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "long").write_bytes(b"#" * (2**20 + 1))
    for name, what in (
        ("gone", "No such file"),
        (".", "is a directory"),
        ("binary", "not UTF-8"),
        ("long", "larger than"),
    ):
        assert run(["serve", "--config", str(tmp_path / name)]) == 2
        assert what in capsys.readouterr().err


def test_paths_are_relative_to_the_working_directory(tmp_path, monkeypatch, capsys):
    """Not to the file."""
    (tmp_path / "settings").mkdir()
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps({"architectures": ["X"], "vocab_size": 0}))
    (tmp_path / "settings" / "c.yaml").write_text("model: tiny\nport: 0\nload-format: dummy\n")
    monkeypatch.chdir(tmp_path)
    assert run(["serve", "--config", "settings/c.yaml"]) == 3
    assert (
        "vocab_size is not a positive whole number below 2,147,483,648 in 'tiny/config.json'" in capsys.readouterr().err
    )


# ---- several values of one flag ----------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["m", "--api-key", "a", "b", "--port", "1"], {"model": "m", "api_key": ("a", "b"), "port": 1}),
        (["m", "--served-model-name", "a", "b", "c"], {"model": "m", "served_model_name": ("a", "b", "c")}),
        (["m", "--api-key", "a", "--api-key", "b", "c"], {"model": "m", "api_key": ("a", "b", "c")}),
        (["--api-key", "a", "m"], {"model": "m", "api_key": ("a",)}),
        (["--api-key", "a", "m", "--api-key", "b"], {"model": "m", "api_key": ("a", "b")}),
        (["m", "--api-key", "-c"], {"model": "m", "api_key": ("-c",)}),
        (["--port", "1", "--api-key", "a", "m"], {"model": "m", "api_key": ("a",), "port": 1}),
    ],
)
def test_values_after_a_flag_are_its_own_once_there_is_a_model(given, arguments, expected):
    assert given("", *arguments) == expected


def test_a_flag_with_an_equals_sign_has_one_value(given):
    with pytest.raises(click.UsageError, match="unexpected extra argument"):
        given("", "m", "--api-key=a", "b")


def test_short_names_of_vllm(given):
    assert given("", "-tp", "2", "-pp", "3") == {"tensor_parallel_size": 2, "pipeline_parallel_size": 3}


def test_auto_is_the_model_s_length(given):
    values = given("max-model-len: auto\n")
    assert given_values(TABLE.flags, values) == {}
    assert given("max-model-len: auto\n", "--max-model-len", "1K") == {"max_model_len": 1024}
