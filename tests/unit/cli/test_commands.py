"""The program as a user runs it: lists, help, errors, exit codes."""

from __future__ import annotations

import json
import sys

import pytest

from tessera._version import __version__
from tessera.cli.commands import LazyGroup
from tessera.cli.flag_command import FlagCommand, option_usage
from tessera.cli.program import run, tessera
from tessera.cli.serve import TABLE
from tessera.errors import EXIT_CODES

MODEL = {"architectures": ["LlamaForCausalLM"], "vocab_size": 10, "max_position_embeddings": 32}
MODULES = "import sys; sys.argv[0] = 'tessera'\nfrom tessera.cli.program import run; run(sys.argv[1:])\n"
LOADED = (
    MODULES
    + "print(*sorted(set(sys.modules) & {'torch', 'transformers', 'numpy', 'fastapi', 'rich'}), file=sys.stderr)"
)
COUNTED = MODULES + "print(len(sys.modules), file=sys.stderr)"


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "models" / "tiny"
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(MODEL))
    return path


def test_the_version_and_how_little_it_loads(site):
    done = site.run("--version", program=LOADED)
    assert (done.stdout, done.stderr) == (f"tessera {__version__}\n", "\n")


def test_the_help_has_everything_and_loads_little(site):
    site.install("good", "extras")
    done = site.run("--help")
    assert done.returncode == 0
    assert all(f"\n  {name} " in done.stdout for name in ("serve", "platforms", "doctor"))
    assert all(f"  {code}  {meaning}" in done.stdout for code, meaning in EXIT_CODES.items())
    loaded = site.run("--help", program=LOADED).stderr.split()
    assert "torch" not in loaded
    assert "transformers" not in loaded
    # Loading modules is nearly all the help costs; torch alone has over 1,000.
    assert int(site.run("--help", program=COUNTED).stderr) < 600


def test_a_broken_plugin_does_not_end_the_help(site):
    done = site.install("broken_import", "unknown_hook").run("--help")
    assert done.returncode == 0
    assert "\n  serve " in done.stdout
    assert "warning: plugin tessera-fixture-broken-import 1.0: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_plugins_command(site):
    site.install("extras")
    help_text = site.run("--help").stdout
    assert "Commands of plugins:\n  greet  Say hello." in help_text
    done = site.run("greet")
    assert (done.returncode, done.stdout) == (0, "hello from a plugin\n")


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["no-such-command"], 2, "No such command 'no-such-command'; see tessera --help."),
        (["sevre"], 2, "No such command 'sevre'. Did you mean 'serve'?"),
        (["bench", "sreve"], 2, "Did you mean 'serve'?"),
        (["serve", "--no-such-flag"], 2, "No such option '--no-such-flag'"),
        (["serve", "--max-model-length", "3"], 2, "Did you mean"),
        (["serve", "--max-model-len", "many"], 2, "'many' is not a number with an optional suffix, such as 4096, 32K"),
        (["serve", "--dtype", "int3"], 2, "'int3' is not one of"),
        (["serve", "--port", "99999"], 2, "--port must be from 0 to 65535, got 99999."),
        (["serve", "--nothing"], 2, "; see tessera serve --help-all."),
        (["serve", "a", "b"], 2, "Got unexpected extra argument (b); see tessera serve --help-all."),
        (["serve", "--port", "many"], 2, "Invalid value for '--port': 'many' is not a valid integer.\n"),
        (["bench", "x"], 2, "No such command 'x'; see tessera bench --help."),
        (["plugin", "new"], 2, "Missing argument 'NAME'; see tessera plugin new --help."),
        (["completion"], 2, "Choose from: bash, zsh, fish; see tessera completion --help."),
        (["help", "serve"], 2, "tessera --help lists the commands"),
        (["version"], 2, "tessera --version prints it."),
        (["serve", "--help", "nothing"], 2, "--help nothing: no group and no flag has that name; the groups are model"),
        (["serve", "--port", "0", "--lora-modules", "a=b"], 2, "lora_modules needs enable_lora."),
        (["serve", "--port", "0", "--enable-lora", "--lora-modules", "a"], 2, "lora_modules: 'a' is not NAME=FOLDER."),
        (["serve", "--enable-eplb", "awq"], 2, "--enable-eplb: experts are divided among devices in order"),
        (["serve", "--swap-space=awq"], 2, "--swap-space: the KV cache stays on the device;"),
        (["serve", "--quantization", "awq"], 2, "'awq' is not one of 'int8', 'int4', 'fp8'."),
        (["plan", "--quantization", "int3"], 2, "'int3' is not one of 'int8', 'int4', 'fp8'."),
        (["serve", "--model", "x"], 2, "--model: name the model right after serve"),
        (["serve", "no/such/folder", "--port", "0"], 3, "There is no folder 'no/such/folder'"),
        (["platforms", "--yaml"], 2, "No such option '--yaml'"),
        (["serve", "m", "-ngl", "99"], 2, "-ngl: all layers are on the device; remove it."),
        (["serve", "-np", "4"], 2, "-np is called --max-num-seqs here."),
        (["serve", "-c", "4096"], 2, "-c is called --max-model-len here."),
        (["serve", "-hf", "a/b"], 2, "-hf: name the model right after serve"),
        (["serve", "some/model.gguf", "--port", "0"], 3, "There is no file 'some/model.gguf'"),
        (["run", "llama3"], 2, "tessera chat MODEL chats"),
        (["list"], 2, "tessera serve takes a folder or ORGANIZATION/NAME."),
        (["ps"], 2, "each tessera serve is a process of its own"),
        (["pull", "a/b"], 2, "tessera serve ORGANIZATION/NAME downloads it."),
    ],
)
def test_what_a_user_does_wrong_is_one_line(site, arguments, code, what):
    done = site.run(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert what in done.stderr


def test_help_by_a_word_and_in_short(site):
    found = site.run("serve", "--help", "max_num").stdout
    assert "--max-num-seqs N" in found
    assert "--max-num-batched-tokens TOKENS" in found
    assert "--port" not in found
    for command in ((), ("bench",), ("plugins",), ("conformance",)):
        assert site.run(*command, "-h").stdout == site.run(*command, "--help").stdout != ""


def test_a_traceback_only_where_it_is_asked_for(site):
    for arguments in (["-v", "serve", "nowhere", "--port", "0"], ["serve", "nowhere", "--port", "0", "-v"]):
        done = site.run(*arguments)
        assert done.returncode == 3
        assert "Traceback" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("error: There is no folder 'nowhere'")


def test_no_platform_ends_serve_with_its_code(site, model):
    arguments = ("serve", str(model), "--port", "0", "--load-format", "dummy", "--skip-tokenizer-init")
    done = site.run(*arguments)
    assert (done.returncode, done.stderr) == (
        5,
        "error: No platform is installed; install the one for this machine, such as pip install tessera-cpu.\n",
    )
    tie = site.install("good", "rival").run(*arguments)
    assert tie.returncode == 5
    assert "share the score 50; choose one with --platform NAME." in tie.stderr


def test_underscores_and_suffixes_are_taken_as_vllm_takes_them(site, model):
    done = site.run(
        "serve", str(model), "--port=0", "--load_format=dummy", "--skip_tokenizer_init", "--max_model_len=1K"
    )
    assert "max_model_len is 1024, but the model supports at most 32 tokens" in done.stderr


def commands(group=tessera, path=()):
    """Every command of core with the words that name it, groups included."""
    yield path, group
    for name in group.table:
        command = group.get_command(None, name)
        if isinstance(command, LazyGroup):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


@pytest.mark.parametrize(
    ("words", "command"), [pytest.param(*one, id="-".join(one[0]) or "alone") for one in commands()]
)
def test_every_help_fits_a_screen(words, command, capsys):
    assert run([*words, "--help"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 100
    if isinstance(command, FlagCommand):
        assert all(option_usage(flag) in text for flag in command.table.flags if flag.common)
        assert "--config FILE" in text


def test_a_group_alone_shows_what_there_is(capsys):
    for words, first in (([], "tessera chat  "), (["bench"], "  throughput  ")):
        assert run(words) == 0
        output = capsys.readouterr()
        assert first in output.out
        assert output.err == ""


def test_every_flag_is_in_its_group_and_in_the_whole(site):
    whole = site.run("serve", "--help-all").stdout
    assert all(option_usage(flag) in whole for flag in TABLE.flags)
    for group in ("cache", "server"):
        text = site.run("serve", "--help", group).stdout
        listed = {flag.name for flag in TABLE.flags if option_usage(flag) in text}
        assert listed == {flag.name for flag in TABLE.flags if flag.group == group}


def test_the_table_of_flags_holds_together():
    assert {flag.group for flag in TABLE.flags} == set(TABLE.groups)
    assert len({flag.name for flag in TABLE.flags}) == len(TABLE.flags)


def test_python_runs_it_too(site):
    program = f"import runpy; runpy.run_module('tessera.cli', run_name='__main__')  # {sys.executable}"
    assert site.run("--version", program=program).stdout == f"tessera {__version__}\n"
