"""A repository's name to a folder: what is fetched, when nothing is, and from where."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.hub.stand_in import MEMBER, Repository
from tests.unit.hub.conftest import CONFIG, FILES, WEIGHTS

TINY = {"model": "org/tiny"}
SERVED = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "additional_chat_templates",
    "model.safetensors",
}
SHARDED = {name: content for name, content in FILES.items() if name != "model.safetensors"}
A, B = "a" * 40, "b" * 40
MIB = 1 << 20


def test_what_is_needed_is_fetched_and_nothing_else(site, hub):
    (first,) = site.ask(TINY).answers
    folder = Path(first["path"])
    assert {path.name for path in folder.iterdir()} == SERVED
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert (folder / "additional_chat_templates/tools.jinja").is_file()
    assert (first["name"], first["tokenizer"]) == ("org/tiny", str(folder))
    assert folder.is_relative_to(site.cache)
    assert hub.sent["model.safetensors"] == WEIGHTS

    hub.requests.clear()
    (second,) = site.ask(TINY).answers
    assert second == first
    assert len(hub.requests) == 2
    assert not [line for line in hub.requests if "safetensors" in line]


def test_only_what_a_call_needs(site):
    assert "path" in site.ask({**TINY, "load_format": "dummy", "skip_tokenizer_init": True}).answers[0]
    (folder,) = (site.cache / "models--org--tiny/snapshots").iterdir()
    assert {path.name for path in folder.iterdir()} == {"config.json", "generation_config.json"}


def test_modules_of_an_embedder(site, hub):
    modules = {
        "modules.json": json.dumps([{"type": "a.Transformer"}, {"type": "a.Pooling", "path": "1_Pooling"}]).encode(),
        "config_sentence_transformers.json": b"{}",
        "sentence_bert_config.json": b'{"max_seq_length": 512}',
        "1_Pooling/config.json": b'{"pooling_mode_mean_tokens": true}',
        "2_Dense/model.safetensors": b"dense",
    }
    never = {
        "0_Transformer/model.safetensors": b"never",
        "2_Dense/pytorch_model.bin": b"never",
        "onnx/config.json": b"{}",
    }
    hub.add("org/embedder", {**FILES, **modules, **never})
    (answer,) = site.ask({"model": "org/embedder"}).answers
    folder = Path(answer["path"])
    got = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert modules.keys() <= got
    assert not never.keys() & got


def test_shards_are_those_of_the_index(site, hub):
    shards = {f"model-0000{n}-of-00002.safetensors": bytes([n]) * 50_000 for n in (1, 2)}
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    names = {"model.safetensors.index.json": json.dumps(index).encode()}
    hub.add("org/large", {**SHARDED, **shards, **names})
    hub.add("org/both", {**FILES, **shards, **names})
    hub.add("org/short", {**SHARDED, "model-00001-of-00002.safetensors": b"", **names})
    hub.add("org/odd", {**FILES, "model.safetensors.index.json": b'{"weight_map": {"a": "../../escape.safetensors"}}'})
    asked = [{"model": f"org/{name}"} for name in ("large", "both", "short", "odd")]
    large, both, short, odd = site.ask(*asked).answers
    names_of = [{path.name for path in Path(one["path"]).glob("*.safetensors")} for one in (large, both)]
    assert names_of == [set(shards), {"model.safetensors"}]
    assert "names model-00002-of-00002.safetensors, which is not there" in short["error"]
    assert "names '../../escape.safetensors', which is no *.safetensors beside it" in odd["error"]


def test_without_an_index_one_set_of_shards_is_fetched_or_nothing(site, hub):
    shards = {f"model-0000{n}-of-00002.safetensors": bytes([n]) * 50_000 for n in (1, 2)}
    hub.add("org/set", {**SHARDED, **shards, "run2.safetensors": b"never"})
    hub.add("org/several", {**SHARDED, "a.safetensors": b"never", "b.safetensors": b"never"})
    whole, several = site.ask({"model": "org/set"}, {"model": "org/several"}).answers
    assert {path.name for path in Path(whole["path"]).glob("*.safetensors")} == set(shards)
    assert "has a.safetensors and b.safetensors, and neither model.safetensors nor" in several["error"]
    assert not any(hub.sent[name] for name in ("run2.safetensors", "a.safetensors", "b.safetensors"))


def write_gguf(path, tensors_in_a_file=0):
    """A model without layers, with the gguf package; all files by name."""
    path.parent.mkdir()
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=tensors_in_a_file)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("token_embd.weight", np.zeros((100, 32), np.float32))
    writer.add_tensor("output_norm.weight", np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {file.name: file.read_bytes() for file in path.parent.iterdir()}


def test_the_gguf_file_of_a_choice_is_fetched_with_its_parts(site, hub, tmp_path):
    parts = write_gguf(tmp_path / "split/m-Q8_0.gguf", tensors_in_a_file=1)
    assert set(parts) == {"m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"}
    others = {"m-Q4_K_S.gguf": b"never", "mmproj-m-f32.gguf": b"never", "README.md": b"never"}
    others |= {"mmproj-m-f16.gguf": b"broken", "other/mmproj-m-bf16.gguf": b"never"}
    whole = write_gguf(tmp_path / "whole/m-Q4_K_M.gguf")
    hub.add("org/m-GGUF", {**{f"large/{name}": data for name, data in parts.items()}, **whole, **others})
    names = ("Q4_K_M", "q8_0", "m-Q4_K_M.gguf", "Q4", "IQ2_XS")
    calls = [{"model": f"org/m-GGUF:{name}", "skip_tokenizer_init": True} for name in names]
    one, split, named, several, none = site.ask(*calls).answers
    assert Path(one["path"]).name == Path(named["path"]).name == "m-Q4_K_M.gguf"
    assert one["name"] == "org/m-GGUF:Q4_K_M"
    assert Path(split["path"]).name == "m-Q8_0-00001-of-00002.gguf"
    assert len(list(Path(split["path"]).parent.glob("*.gguf"))) == 2
    assert "'org/m-GGUF': 'Q4' is not one of its GGUF models; name one of them: " in several["error"]
    assert (
        "'IQ2_XS' is not one of its GGUF models; name one of them: large/m-Q8_0, m-Q4_K_M, m-Q4_K_S." in none["error"]
    )
    assert [name for name in others if hub.sent[name]] == ["mmproj-m-f16.gguf"]
    assert site.ask(*calls[:2], HF_HUB_OFFLINE="1").answers == [one, split]


def test_a_branch_a_tag_and_a_commit(site, hub):
    other = {**FILES, "config.json": json.dumps({**CONFIG, "vocab_size": 500}).encode()}
    hub.repositories["org/two"] = Repository({A: FILES, B: other}, {"main": A, "v1": B})
    calls = [{"model": "org/two", "revision": name} for name in ("main", "v1", B)]
    answers = site.ask({"model": "org/two"}, *calls, {"model": "org/two", "tokenizer_revision": "v1"}).answers
    assert [Path(answer["path"]).name for answer in answers] == [A, A, B, B, A]
    assert Path(answers[-1]["tokenizer"]).name == B


def test_a_tokenizer_of_another_repository(site, hub):
    hub.add("org/words", {"tokenizer.json": FILES["tokenizer.json"], "tokenizer_config.json": b"{}"})
    hub.add("org/bare", {name: FILES[name] for name in ("config.json", "model.safetensors")})
    call = {"model": "org/bare", "tokenizer": "org/words"}
    (answer,) = site.ask(call).answers
    assert "models--org--words" in answer["tokenizer"]
    assert site.ask(call, HF_HUB_OFFLINE="1").answers == [answer]


def test_a_local_folder_goes_before_a_repository_and_never_asks(site, hub, tmp_path, monkeypatch):
    folder = tmp_path / "org" / "tiny"
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).write_bytes(FILES[name])
    monkeypatch.chdir(tmp_path)
    mine, revised, words = site.ask(TINY, {**TINY, "revision": "v1"}, {**TINY, "tokenizer_revision": "v1"}).answers
    assert (mine["path"], mine["library"]) == (str(folder), False)
    assert "--revision applies to models on the hub" in revised["error"]
    assert "--tokenizer-revision applies to tokenizers on the hub" in words["error"]
    assert not hub.requests


def test_a_folder_of_the_users_for_the_cache(site, tmp_path):
    (answer,) = site.ask({**TINY, "download_dir": str(tmp_path / "models")}).answers
    assert Path(answer["path"]).is_relative_to(tmp_path / "models")
    assert not site.cache.exists()


def test_a_token_opens_what_is_gated_and_goes_to_nobody_else(site, hub):
    hub.add("org/gated", FILES, gated=True)
    hub.add("org/private", FILES, private=True)
    (given,) = site.ask({"model": "org/gated", "hf_token": MEMBER}).answers
    (taken,) = site.ask({"model": "org/private"}, HF_TOKEN=MEMBER).answers
    assert "error" not in given | taken
    assert hub.tokens == {""}
    assert MEMBER not in str(given)


def test_what_is_in_the_cache_is_served_without_a_hub(site, hub):
    (first,) = site.ask(TINY).answers
    hub.requests.clear()
    assert site.ask(TINY, HF_HUB_OFFLINE="1").answers == [first]
    assert not hub.requests
    assert site.ask(TINY, HF_ENDPOINT="http://127.0.0.1:9").answers == [first]
    hub.down = True
    assert site.ask(TINY).answers == [first]


def test_a_proxy_of_the_environment_is_used(site, hub):
    """Of the name no address is known here; only the proxy, which is the stand-in, can answer for it."""
    proxy = {"HF_ENDPOINT": "http://hub.invalid", "HTTP_PROXY": hub.url}
    (answer,) = site.ask({**TINY, "load_format": "dummy", "skip_tokenizer_init": True}, **proxy).answers
    assert "error" not in answer
    assert "hub.invalid" in hub.hosts


# ---- interruptions


def test_a_connection_that_breaks_goes_on_where_it_stopped(site, hub):
    """The library keeps what came in pieces of 10 MiB."""
    weights = bytes(range(256)) * (24 * MIB // 256)
    hub.add("org/large", {**FILES, "model.safetensors": weights})
    hub.break_after["model.safetensors"] = 22 * MIB
    (answer,) = site.ask({"model": "org/large"}).answers
    assert (Path(answer["path"]) / "model.safetensors").read_bytes() == weights
    assert hub.sent["model.safetensors"] == (22 + 4) * MIB
    assert len([line for line in hub.requests if line.startswith("GET /large")]) == 2


def test_ctrl_c_ends_a_download_and_the_next_start_keeps_what_was_whole(site, hub):
    """What this version of the library has of a file that was under way is gone with its process."""
    shards = {f"model-0000{n}-of-00002.safetensors": bytes([n]) * 50_000 for n in (1, 2)}
    first, second = shards
    index = {"weight_map": dict(zip("ab", shards, strict=True))}
    hub.add("org/large", {**SHARDED, **shards, "model.safetensors.index.json": json.dumps(index).encode()})
    hub.stall_after[second] = 8192
    with site.start({"model": "org/large"}) as process:
        assert hub.stalled.wait(60)
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in log
    assert not list(site.cache.rglob("*.incomplete"))

    (offline,) = site.ask({"model": "org/large"}, HF_HUB_OFFLINE="1").answers
    assert "is not wholly in the cache" in offline["error"]
    (answer,) = site.ask({"model": "org/large"}).answers
    assert {path.name for path in Path(answer["path"]).glob("*.safetensors")} == set(shards)
    assert (hub.sent[first], hub.sent[second]) == (50_000, 8192 + 50_000)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_serve_that_is_ended_while_it_fetches_says_nothing_and_leaves_nothing(site, hub, number):
    hub.stall_after["model.safetensors"] = 8192
    command = [sys.executable, "-m", "tessera.cli", "serve", "org/tiny", "--port", "0", "--platform", "a.module:P"]
    with subprocess.Popen(command, env=site.variables, stderr=subprocess.PIPE, text=True) as process:
        assert hub.stalled.wait(60)
        process.send_signal(number)
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in log
    assert "error" not in log
    assert not list(site.cache.rglob("*.incomplete"))
