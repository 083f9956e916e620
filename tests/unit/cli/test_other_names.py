"""Flags of other programs: each of vLLM's is served, accepted without effect, or refused in one line that helps. Names
in Python are in tests/unit/test_vllm_names.py."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tessera.cli.flag_command import ignored
from tessera.cli.program import run
from tessera.cli.serve import serve
from tessera.config.other_names import _table, other_flag

LIST = Path(__file__).with_name("vllm_flags.txt").read_text(encoding="utf-8").splitlines()[1:]
FLAGS = sorted(name for name in _table() if name.startswith("-"))
SERVED = {name: param for param in serve.params for name in (*param.opts, *param.secondary_opts)}
LOADED = """
import sys
from tessera.cli.program import run
run(sys.argv[1:])
print("tessera.config.other_names" in sys.modules)
"""


def vllm_options():
    """Pairs of an option of vLLM's and whether it has a value."""
    for line in LIST:
        for word in line.removesuffix(" VALUE").split():
            plain = word.replace("[no-]", "")
            yield plain, line.endswith(" VALUE")
            if plain != word:
                yield f"--no-{plain[2:]}", False


VLLM = dict(vllm_options())


def parsed(*arguments):
    return serve.make_context("serve", list(arguments))


def test_each_of_vllm_s_flags_is_served_or_known_but_not_both():
    assert len(LIST) == 321
    unknown = [name for name in VLLM if name not in SERVED and other_flag(name) is None]
    assert unknown == []
    assert [name for name in _table() if name in SERVED] == []


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_is_refused_in_one_line_that_names_it_or_leaves_the_model_alone(name):
    other = other_flag(name)
    if other.reason:
        value = (*(other.values or ()), "anything")[0]
        context = parsed(name, value, "the-model") if other.takes_value else parsed(name, "the-model")
        assert context.params["model"] == "the-model"
        assert ignored(context) == [f"{name} has no effect: {other.reason}"]
    if other.refusal:
        with pytest.raises(click.UsageError) as refused:
            parsed("the-model", name, "no such value")
        assert refused.value.message == other.refusal
        assert re.fullmatch(rf"{re.escape(name)}(:| is called) .+\.", other.refusal)
    assert other.reason or other.refusal


def test_whether_a_flag_has_a_value_is_as_in_vllm():
    accepted = {name: other_flag(name) for name in VLLM if name not in SERVED and other_flag(name).reason}
    assert len(accepted) > 100
    assert {name for name, other in accepted.items() if other.takes_value != VLLM[name]} == set()
    switches = {name for name, has_value in VLLM.items() if name in SERVED and not has_value}
    assert {name for name in switches if not SERVED[name].is_flag} == set()


def test_what_a_message_advises_exists():
    for name, other in _table().items():
        advised = re.findall(r"(?<!\S)--[a-z][a-z-]+", other.refusal.removeprefix(name))
        assert set(advised) <= set(SERVED), other.refusal


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--compilation-config.level", "3"], "--compilation-config.level: models are not compiled;"),
        (["-cc.mode=3"], "-cc.mode: models are not compiled;"),
        (["-O3"], "-O3: models are not compiled;"),
        (["-O", "2"], "-O: models are not compiled;"),
        (["--data_parallel_rank=2"], "--data-parallel-rank: use --data-parallel-size in one server"),
        (["--tokenizer-mode"], "--tokenizer-mode: the tokenizer is the model's"),
        (["-sc.method"], "-sc.method requires a value."),
        (["-sc.method", "--", "m"], "-sc.method requires a value."),
        (["-sc.method=ngram", "-sc.method=x"], "-sc.method cannot be set here; write the whole value as one JSON"),
        (["-sc.method+", "ngram"], "-sc.method+ cannot be set here;"),
        (["-sc.a", "1", "-sc.a.b", "1"], "-sc.a.b cannot be set here;"),
        (["-sc..b", "1"], "-sc..b cannot be set here;"),
        (["-sc.method=ngram", "--speculative-config={}"], "Give --speculative-config as one JSON object or by its"),
        (["--block-size.x", "1"], "No such option"),
    ],
)
def test_forms_in_which_a_flag_is_refused(arguments, what):
    with pytest.raises(click.UsageError) as refused:
        parsed(*arguments)
    assert what in refused.value.format_message()


def test_a_value_that_asks_for_what_is_done_anyway_is_accepted():
    context = parsed("-dpl=1", "--distributed-executor-backend", "mp", "the-model", "--no-enable-eplb")
    assert context.params["model"] == "the-model"
    assert ignored(context) == [
        "-dpl has no effect: that is how it is here",
        "--distributed-executor-backend has no effect: that is how it is here",
        "--no-enable-eplb has no effect: that is off here",
    ]


def test_a_switch_of_ours_has_the_opposite_that_vllm_s_has():
    assert parsed("--no-enforce-eager").params["enforce_eager"] is False
    assert parsed("--enforce-eager", "--no-enforce-eager").params["enforce_eager"] is False
    assert "--no-no-fallback" not in SERVED


def test_a_json_object_may_be_given_key_by_key():
    given = parsed(
        "m", "-sc.method", "ngram", "--port", "1", "--speculative_config.num_speculative_tokens=4", "-sc.a.b=[1, 2]",
        "--default-chat-template-kwargs.thinking", "false", "--",
    ).params  # fmt: skip
    assert given["speculative_config"] == {"method": "ngram", "num_speculative_tokens": 4, "a": {"b": [1, 2]}}
    assert given["default_chat_template_kwargs"] == {"thinking": False}
    assert (given["model"], given["port"]) == ("m", 1)


def test_aliases_of_vllm_s():
    given = parsed("m", "-q", "int8", "--device-memory-utilization", "0.5", "--lora-modules", "a=b", "c=d").params
    assert (given["quantization"], given["gpu_memory_utilization"]) == ("int8", 0.5)
    assert given["lora_modules"] == ("a=b", "c=d")
    assert given["model"] == "m"


def test_a_configuration_file_may_have_them(tmp_path, capsys):
    file = tmp_path / "c.yaml"
    file.write_text("enable-auto-tool-choice: true\nenable_eplb: false\ndata-parallel-size-local: 1\nmodel: m\n")
    context = parsed("--config", str(file))
    assert context.params["model"] == "m"
    assert [line.partition(" ")[0] for line in ignored(context)] == [
        "--enable-auto-tool-choice", "--no-enable-eplb", "--data-parallel-size-local",
    ]  # fmt: skip
    file.write_text("port: 0\nenable-eplb: true\n")
    assert run(["serve", "--config", str(file)]) == 2
    assert "line 2: --enable-eplb: experts are divided among devices" in capsys.readouterr().err


def test_the_table_is_only_loaded_for_such_a_flag(site):
    assert site.run("serve", "--help", program=LOADED).stdout.endswith("False\n")
    assert site.run("serve", "--no-such-flag", program=LOADED).stdout.endswith("True\n")
