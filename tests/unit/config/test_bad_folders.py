"""A model's folder that is broken, odd or hostile is refused at once and in one line, whatever its files are."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tessera.config import build_config
from tessera.config.model_folder import INDEX
from tessera.config.weight_files import find_weights
from tessera.errors import ModelError, TesseraError
from tessera.text import Tokenizer, Vocabulary
from tessera.text.worker import ChatJob, Texts
from tests.unit.config.conftest import CONFIG

SECONDS = 20.0
"""Of the processor; what waits for ever takes none, so there is a limit to the time that passes too."""
HANGS = 30.0
HELLO = ChatJob([{"role": "user", "content": "hello"}], text=True)
MEMORY = 200 * 2**20
DEEP = 10**5
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [{"id": 1, "content": "<|end|>", "special": True}],
    "model": {"type": "BPE", "vocab": {"a": 0, "<|end|>": 1}, "merges": []},
}
for flag in ("single_word", "lstrip", "rstrip", "normalized"):
    TOKENIZER["added_tokens"][0][flag] = False
SETTINGS = {"eos_token": "<|end|>", "chat_template": "{{ messages[0].content }}"}
FILES = ("config.json", "tokenizer_config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja")
READ = (*FILES, "special_tokens_map.json", INDEX, "model.safetensors", "additional_chat_templates/tools.jinja")


@pytest.fixture
def good(folder):
    """A folder of which every file that a start reads is there; nothing is wrong with it."""
    path = folder(
        tokenizer__json=TOKENIZER,
        tokenizer_config__json=SETTINGS,
        special_tokens_map__json={},
        generation_config__json={"temperature": 0.5},
        chat_template__jinja="{{ messages[0].content }}",
    )
    (path / INDEX).write_text(json.dumps({"weight_map": {"a.weight": "model.safetensors"}}))
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "tools.jinja").write_text("{{ tools }}")
    return path


def start(folder):
    """What every start reads before the engine does: the configuration; the vocabulary in the front; the tokenizer and
    the chat template in the text worker."""
    config = build_config(model=str(folder), platform="a.module:Platform")
    Vocabulary.from_folder(config.model.tokenizer)
    return Texts(Tokenizer.from_folder(config.model.tokenizer))


def refusal(folder, call=start):
    """The line that a folder is refused with, within SECONDS and MEMORY."""

    def late(number, frame):
        raise TimeoutError

    before = resource.getrlimit(resource.RLIMIT_AS)
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, HANGS)
    began = time.process_time()
    try:
        if sys.platform == "linux":
            resource.setrlimit(resource.RLIMIT_AS, (_mapped() + MEMORY, before[1]))
        with pytest.raises(TesseraError) as caught:
            call(folder)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert time.process_time() - began < SECONDS
    message = caught.value.message
    assert caught.value.exit_code == ModelError.exit_code
    assert message.isprintable()
    assert len(message) < 300
    return message


def _mapped():
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def test_a_good_folder_starts(good):
    assert start(good).do(HELLO).text == "hello"


# ---- what is no regular file -----------------------------------------------------


def pipe(path):
    os.mkfifo(path)


def unix_socket(path):
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's own path may have a hundred characters
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


KINDS = {
    "pipe": (pipe, "is a named pipe, not a file"),
    "socket": (unix_socket, "is a socket, not a file"),
    "folder": (Path.mkdir, "is a folder, not a file"),
    "zeros": (lambda path: path.symlink_to("/dev/zero"), "is a link out of the model's folder"),
    "link to a pipe": (lambda path: (pipe(path.parent / "p"), path.symlink_to("p")), "is a named pipe, not a file"),
    "secret": (lambda path: path.symlink_to("/etc/passwd"), "is a link out of the model's folder"),
    "above": (lambda path: path.symlink_to(f"{'../' * 40}etc/passwd"), "is a link out of the model's folder"),
    "dangling": (lambda path: path.symlink_to("gone"), "is a link to what is not there"),
    "circle": (lambda path: path.symlink_to(path.name), "go in a circle"),
}
OUT_OF_THE_FOLDER = ("zeros", "secret", "above")


@pytest.mark.parametrize(
    ("file", "kind"),  # weights may be links to elsewhere; what they lead to is read when the model is loaded
    [
        (file, kind)
        for file in READ
        for kind in KINDS
        if kind not in OUT_OF_THE_FOLDER or not file.endswith(".safetensors")
    ],
)
def test_only_regular_files_of_the_folder_are_opened(good, file, kind):
    make, what = KINDS[kind]
    (good / file).unlink()
    make(good / file)
    message = refusal(good)
    assert file in message
    assert what in message


def test_a_folder_of_templates_elsewhere_is_not_read(good, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (good / "additional_chat_templates").rename(elsewhere)
    (good / "additional_chat_templates").symlink_to(elsewhere)
    assert "tools.jinja' is a link out of the model's folder" in refusal(good)


def test_links_within_the_folder_are_followed(good):
    """As a mounted volume has them, whose files are links into a folder that is exchanged as a whole."""
    (good / "..data").mkdir()
    for file in FILES:
        (good / file).rename(good / "..data" / file)
        (good / file).symlink_to(f"..data/{file}")
    assert start(good).do(HELLO).text == "hello"


def test_links_of_a_snapshot_lead_to_the_blobs_of_its_repository(good, tmp_path):
    repository = tmp_path / "cache" / "models--org--name"
    (repository / "snapshots").mkdir(parents=True)
    blobs = repository / "blobs"
    snapshot = good.rename(repository / "snapshots" / "0123abcd")
    blobs.mkdir()
    for number, file in enumerate(READ):
        path = snapshot / file
        path.rename(blobs / str(number))
        path.symlink_to(os.path.relpath(blobs / str(number), path.parent))
    assert start(snapshot).do(HELLO).text == "hello"
    path = snapshot / "chat_template.jinja"
    path.unlink()
    secret = tmp_path / "cache" / "models--org--other"
    secret.write_text("secret")
    path.symlink_to("../../../models--org--other")
    assert "chat_template.jinja' is a link out of the model's folder" in refusal(snapshot)


def test_the_folder_itself_may_be_a_link(good, tmp_path):
    (tmp_path / "link").symlink_to(good)
    assert start(tmp_path / "link") is not None


# ---- what the files say ----------------------------------------------------------


def said(**differs):
    return json.dumps({**CONFIG, **differs})


def nested(opening, name="x"):
    return f'{{"{name}": ' + opening * DEEP


def tokens(added):
    return json.dumps({**SETTINGS, "added_tokens_decoder": added})


def weight_map(stem):
    """An index that names such a file beside the one that is there."""
    return json.dumps({"weight_map": {"a": f"{stem}.safetensors", "b": "model.safetensors"}})


HALF = '{"architectures": ["Llama\\ud800"], "vocab_size": 10, "max_position_embeddings": 8}'
HUGE = [2**24 + 1, 2**31, 2**62, 2**63, 2**64]
CONTENTS = [
    *(
        (file, content, "is not valid JSON: it nests too deeply")
        for file in ("config.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json")
        for content in (nested("["), nested('{"a":'), '{"a":' * 100 + "1" + "}" * 100)
    ),
    *(
        (file, content, what)
        for file in ("config.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json")
        for content, what in (
            (b"\xff\xfe{}", "is not UTF-8 text"),
            ("", "is not valid JSON"),
            ("null", "is not a JSON object"),
            ("[" + "[]," * 2**20 + "0]", "has more than 1,048,576 values"),
            (" " * (32 * 2**20 + 1), "has more than 32 MiB"),
            ('{"a": %s}' % ("9" * 5000), "is not valid JSON"),
            ('{"a": %s}' % ("9" * 400), "is not valid JSON: it holds a number of too many digits"),
            ('{"a": "\\ud800"}', "it holds half of a surrogate pair"),
        )
    ),
    ("tokenizer.json", nested("["), "nests too deeply"),
    ("tokenizer.json", nested('{"a":'), "nests too deeply"),
    ("tokenizer.json", "", "is not a tokenizer's JSON"),
    ("tokenizer.json", b"\xff\xfe", "is not a tokenizer's JSON"),
    ("tokenizer.json", '{"added_tokens": 3}', "is not a tokenizer's JSON"),
    ("tokenizer.json", '{"added_tokens": [{"id": "1", "content": "x"}]}', "is not a tokenizer's JSON"),
    ("tokenizer.json", '{"model": {"type": "None of these\\n"}}', "cannot be read"),
    (INDEX, nested("["), "is not a safetensors index: it nests too deeply"),
    (INDEX, nested('{"a":', "weight_map"), "is not a safetensors index"),
    (INDEX, nested('{"a":', "metadata"), "is not a safetensors index: it nests too deeply"),
    (INDEX, "[]", "is not a safetensors index"),
    (INDEX, b"\xff", "is not a safetensors index"),
    (INDEX, '{"weight_map": {"a": 3}}', "is not a safetensors index"),
    (INDEX, '{"weight_map": {}}', "names no tensor"),
    (INDEX, '{"weight_map": {"a": "../../etc/passwd"}}', "names '../../etc/passwd', which is no *.safetensors"),
    (
        INDEX,
        '{"weight_map": {"a": "gone.safetensors", "b": "model.safetensors"}}',
        "names gone.safetensors, which is not there",
    ),
    (INDEX, weight_map("\0"), "names ?.safetensors, which is not there"),
    (
        INDEX,
        '{"weight_map": {"a": "m.safetensors", "b": "model.safetensors"}}'.replace("m.", f"{'m' * 10**5}."),
        "mmm.safe",
    ),
    ("chat_template.jinja", b"\xff\xfe", "is not UTF-8 text"),
    ("chat_template.jinja", "x" * (2**20 + 1), "has more than 1 MiB"),
    ("additional_chat_templates/tools.jinja", b"\xff\xfe", "is not UTF-8 text"),
    ("tokenizer_config.json", tokens({"one": {"content": "x"}}), "does not map token ids to tokens"),
    ("tokenizer_config.json", tokens({"-1": {"content": "x"}}), "does not map token ids to tokens"),
    ("tokenizer_config.json", tokens({"9" * 5000: {"content": "x"}}), "does not map token ids to tokens"),
    ("tokenizer_config.json", tokens({"²": {"content": "x"}}), "does not map token ids to tokens"),
    ("tokenizer_config.json", tokens({"2": "special"}), "does not map token ids to tokens"),
    ("tokenizer_config.json", tokens({"2": {"content": ""}}), "gives the added token '' the id 2"),
    ("tokenizer_config.json", tokens({"9": {"content": "\n" * 10**5}}), "has room for it only at 2"),
    ("config.json", HALF, "it holds half of a surrogate pair"),
    *(
        ("config.json", said(**{name: value}), f"{name} in ")
        for name in ("vocab_size", "num_hidden_layers", "head_dim", "hidden_size", "num_attention_heads", "n_layer")
        for value in HUGE
    ),
    *(
        ("config.json", said(max_position_embeddings=value), "max_position_embeddings is not a positive whole number")
        for value in HUGE[1:]
    ),
    ("config.json", said(max_position_embeddings=2**24 + 1), "more than 16,777,216; give --max-model-len"),
]


@pytest.mark.parametrize(
    ("file", "content", "what"), CONTENTS, ids=[f"{number}-{file}" for number, (file, *_) in enumerate(CONTENTS)]
)
def test_a_file_that_cannot_be_right_is_named(good, file, content, what):
    (good / file).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    message = refusal(good)
    assert file in message
    assert what in message


def test_words_of_a_file_do_not_stretch_the_line(good):
    (good / "config.json").write_text(said(quantization_config={"quant_method": "x" * 1000 + "\n"}))
    assert "quantization format '...xxx" in refusal(good)


def test_an_index_of_80_megabytes(good):
    names = ",".join(f'"model.layers.{number}.mlp.down_proj.weight":"model.safetensors"' for number in range(1_200_000))
    (good / INDEX).write_text(f'{{"weight_map": {{{names}}}}}')
    assert f"{INDEX}' has more than 32 MiB" in refusal(good)


def test_an_index_of_many_tensors_takes_little(good):
    names = ",".join(f'"{number}":""' for number in range(2**20))
    (good / INDEX).write_text(f'{{"weight_map": {{{names}}}}}')
    assert f"{INDEX}' names more than 524,288 tensors" in refusal(good)


def test_the_largest_index_is_read_at_once(good):
    names = ",".join(f'"model.layers.{number}.down_proj":"model.safetensors"' for number in range(2**19))
    (good / INDEX).write_text(f'{{"weight_map": {{{names}}}}}')
    (good / "model.safetensors").unlink()
    assert "names model.safetensors, which is not there" in refusal(good, find_weights)


# ---- what is no folder -----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("config.json", "is a file; name the folder"),
        ("x" * 5000, "cannot be read: File name too long"),
        ("a\nb", "There is no folder"),
        ("a\0b", "There is no folder"),
        ("model.gguf", "is empty"),
        ("p", "There is no folder"),
    ],
)
def test_a_name_that_is_no_folder(good, name, what):
    (good / "model.gguf").touch()
    pipe(good / "p")
    assert what in refusal(good / name)


def test_a_folder_whose_name_breaks_the_line(good):
    other = good.rename(good.parent / f"a\nb{'x' * 200}")
    (other / "config.json").write_text("{")
    assert "a?b" not in refusal(other)
    assert "config.json' is not valid JSON" in refusal(other)


# ---- as a user meets it ----------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "file"), [("plan", "config.json"), ("serve", "chat_template.jinja"), ("serve", INDEX)]
)
def test_the_command_ends_with_one_line_and_the_exit_code_of_a_model(good, command, file):
    (good / file).unlink()
    pipe(good / file)
    port = ["--port", "0"] if command == "serve" else []
    done = subprocess.run(
        [sys.executable, "-m", "tessera.cli", command, str(good), *port],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == ModelError.exit_code
    assert done.stdout == ""
    *started, line = done.stderr.splitlines()
    progress = ("tessera.engine.spawned_engine: engine process", " ...")  # of an engine that began before it was told
    assert [other for other in started if not any(part in other for part in progress)] == []
    assert f"{file}' is a named pipe, not a file" in line
