"""What the hub refuses and what is not served: one line each, and no weights fetched for it."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from tessera.config.hub import _Repository, in_one_line
from tessera.errors import ModelError
from tests.hub.stand_in import STRANGER
from tests.unit.hub.conftest import CONFIG, FILES

UNSERVED = {
    "org/bin": ({"model.safetensors": None, "consolidated.safetensors": None}, "has its weights as *.bin"),
    "org/gguf": ({"config.json": None}, "holds GGUF files: name one of them, as org/gguf:model-q4,"),
    "org/consolidated": (
        {"model.safetensors": None, "pytorch_model.bin": None, "model-q4.gguf": None},
        "has its weights as consolidated.safetensors, whose tensors have other names",
    ),
    "org/none": (dict.fromkeys(name for name in FILES if name.endswith((".bin", "gguf", "tensors"))), "has no *.safet"),
    "org/adapter": ({"config.json": None, "model.safetensors": None, "adapter_config.json": b"{}"}, "is an adapter"),
    "org/pieces": ({"tokenizer.json": None, "tokenizer.model": b""}, "has tokenizer.model but no tokenizer.json"),
    "org/wordless": ({"tokenizer.json": None}, "has no tokenizer.json"),
    "org/awq": (
        {"config.json": json.dumps({**CONFIG, "quantization_config": {"quant_method": "exl2"}}).encode()},
        "exl2",
    ),
}


def test_repositories_that_cannot_be_served(site, hub):
    for name, (differs, _) in UNSERVED.items():
        hub.add(name, {file: data for file, data in {**FILES, **differs}.items() if data is not None})
    answers = site.ask(*({"model": name} for name in UNSERVED)).answers
    for (name, (_, what)), answer in zip(UNSERVED.items(), answers, strict=True):
        assert what in answer["error"], answer
        assert answer["kind"] == "ModelError"
        assert name in answer["error"] or name.replace("/", "--") in answer["error"]
    assert not hub.sent["model.safetensors"]
    assert not hub.sent["pytorch_model.bin"]


def test_what_the_hub_refuses(site, hub, tmp_path, monkeypatch):
    hub.add("org/gated", FILES, gated=True)
    (tmp_path / "org" / "tinny").mkdir(parents=True)
    (tmp_path / "org" / "tinny" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    calls = {
        "nor such a public repository": {"model": "org/tinnny"},
        "(near it: tinny)": {"model": "org/tinnny"},
        f"{hub.url}/org/gated, then set HF_TOKEN": {"model": "org/gated"},
        "is gated: ask for access": {"model": "org/gated", "hf_token": STRANGER},
        "does not take the token": {"model": "org/tiny", "hf_token": "hf_wrong"},
        "has no revision 'v9'": {"model": "org/tiny", "revision": "v9"},
        "one printable word": {"model": "org/tiny", "hf_token": "hf secret"},
        "is not the name of a branch": {"model": "org/tiny", "revision": "a b"},
        "There is no folder './org/x'": {"model": "./org/x"},
        "There is no folder 'nowhere'": {"model": "nowhere"},
    }
    answers = site.ask(*calls.values()).answers
    for what, answer in zip(calls, answers, strict=True):
        assert what in answer["error"], answer
        assert "hf_wrong" not in answer["error"]
        assert "secret" not in answer["error"]
    assert not hub.sent


def test_nothing_is_fetched_where_nothing_could_run_it(site, hub):
    (answer,) = site.ask({"model": "org/tiny", "platform": None}, TESSERA_LOAD_PLUGINS="").answers
    assert "No platform is installed" in answer["error"]
    assert not hub.requests


@pytest.mark.parametrize(
    ("variables", "what"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE keeps it from being fetched"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "http://127.0.0.1:9 cannot be asked ("),
        ({"HF_ENDPOINT": "http://no-such-host.invalid"}, "http://no-such-host.invalid cannot be asked ("),
        ({"HF_ENDPOINT": "no-protocol"}, "no-protocol cannot be asked ("),
        ({"HTTP_PROXY": "http://127.0.0.1:9", "HF_ENDPOINT": "http://hub.invalid"}, "check the network, HTTPS_PROXY"),
    ],
)
def test_no_hub_and_nothing_in_the_cache(site, variables, what):
    (answer,) = site.ask({"model": "org/tiny"}, **variables).answers
    assert what in answer["error"]
    assert "is not wholly in the cache" in answer["error"]


def test_a_hub_that_is_down(site, hub):
    hub.down = True
    (answer,) = site.ask({"model": "org/tiny"}).answers
    assert "cannot be asked" in answer["error"]


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "The disk of /cache is full; free some of it"),
        (PermissionError(errno.EACCES, "Permission denied"), "/cache cannot be written to (Permission denied); name"),
        (OSError(errno.EROFS, "Read-only file system"), "cannot be written to (Read-only file system); name another"),
        (OSError("file should be of size 9 but has size 5.\nPlease retry"), "broke off (file should be of size 9 but"),
        (RuntimeError("a part was lost"), "broke off (a part was lost); start again"),
    ],
)
def test_what_the_disk_and_the_library_say(error, what):
    with pytest.raises(ModelError) as caught, in_one_line("org/tiny", None, Path("/cache")):
        raise error
    assert what in caught.value.message
    assert "\n" not in caught.value.message


def test_what_does_not_fit_the_disk_is_not_begun(tmp_path):
    repository = _Repository("org/tiny", None, None, str(tmp_path / "not" / "yet"))
    with pytest.raises(ModelError, match=r"'org/tiny' needs 909495 TiB, but the disk of .*yet has .* free; free some"):
        repository.take(["model.safetensors"], {"model.safetensors": 10**18})


def test_a_cache_that_is_no_folder(site, tmp_path):
    (tmp_path / "file").write_text("")
    (answer,) = site.ask({"model": "org/tiny", "download_dir": str(tmp_path / "file")}).answers
    assert "cannot be written to (Not a directory); name another" in answer["error"]
