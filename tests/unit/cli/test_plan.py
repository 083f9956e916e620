"""`tessera plan` from its flags to its table, with plans that somebody else made."""

from __future__ import annotations

import dataclasses
import json

import msgspec
import pytest

from tessera.cli.program import run
from tessera.engine.plan import Plan
from tessera.errors import PlatformError
from tessera.platform import CacheGroup, Explained

MIB = 1 << 20
GROUPS = [
    CacheGroup((0, 1, 2), "paged", 16, 16 * 1536, 400),
    CacheGroup((3,), "window", 16, 16 * 512, 400, 1024),
    CacheGroup((4,), "state", 0, 3 * MIB, 9),
]
PLAN = Plan(
    platform="fast",
    device="a chip",
    dtype="bfloat16",
    granted_bytes=900 * MIB,
    weight_bytes=500 * MIB,
    num_weights=400 * MIB,
    workspace_bytes=40 * MIB,
    cache_bytes=360 * MIB,
    num_cache_tokens=6384,
    max_model_len=4096,
    groups=GROUPS,
    requests={4096: 1, 2048: 3},
)
FULL = msgspec.structs.replace(PLAN, platform="small", requests={}, problem="The KV cache has no room.")


@pytest.fixture
def model(tmp_path):
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": 10, "max_position_embeddings": 8192}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


@pytest.fixture
def planned(monkeypatch):
    """What is asked of the process that plans, and what it answers, by platform."""
    asked, answers = [], {"a:Fast": PLAN, "a:Small": FULL}

    def plan(config):
        asked.append(config)
        answer = answers[config.platform]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("tessera.cli.plan.plan", plan)
    monkeypatch.setattr("tessera.cli.plan._platforms", lambda _name: {"fast": ("a:Fast", {}), "small": ("a:Small", {})})
    return asked, answers


def test_a_column_a_platform(model, planned, capsys):
    asked, _ = planned
    assert run(["plan", model, "--max-model-len", "4K", "--dtype", "half", "--max-num-seqs", "8"]) == 0
    assert [config.platform for config in asked] == ["a:Fast", "a:Small"]
    first = asked[0]
    assert (first.model.max_model_len, first.model.dtype, first.scheduler.max_num_seqs) == (4096, "float16", 8)
    assert asked[1] == dataclasses.replace(first, platform="a:Small")
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split("  ") for line in lines]
    cells = {row[0]: [cell.strip() for cell in row[1:] if cell] for row in rows}
    assert lines[0].endswith("with a context of 4,096 tokens")
    assert cells["platform"] == ["fast", "small"]
    assert cells["weights"] == ["500 MiB, 10.00 bits each"] * 2
    assert cells["usable memory"] == ["900 MiB", "900 MiB"]
    assert cells["workspace"][0] == "at most 40.0 MiB"
    assert cells["KV per token"][0] == "1.5 KiB (3 layers, full attention, blocks of 16)"
    assert "512 B (1 layer, window of 1,024, blocks of 16)" in "\n".join(lines)
    assert "3.0 MiB per request (1 layer with a state, room for 8)" in "\n".join(lines)
    assert (cells["requests of 4,096"], cells["requests of 2,048"]) == (["1", "0"], ["3", "0"])
    assert lines[-1] == "small: The KV cache has no room."


def test_memory_is_per_device_where_there_are_several(model, planned, capsys):
    assert run(["plan", model]) == 0
    assert "per device" not in capsys.readouterr().out
    planned[1].update({"a:Fast": msgspec.structs.replace(PLAN, num_devices=4)})
    assert run(["plan", model]) == 0
    assert "\ndevices            4, memory is per device" in capsys.readouterr().out


def test_choices_in_words_come_before_what_is_wrong(model, planned, capsys):
    planned[1]["a:Fast"] = msgspec.structs.replace(FULL, notes=["each device has 3 experts", "another choice"])
    run(["plan", model])
    lines = capsys.readouterr().out.splitlines()
    first = lines.index("fast: each device has 3 experts")
    assert lines[first : first + 4] == [lines[first], "", "fast: another choice", ""]
    assert lines[first + 4] == f"fast: {FULL.problem}"


def test_who_does_what_where_that_is_asked_for(model, planned, capsys):
    kernel = Explained("linear", "n=8", "kernel Fast", (("reference", "a kernel comes first"),))
    planned[1].update({"a:Fast": msgspec.structs.replace(PLAN, choices=[kernel])})
    assert run(["plan", model]) == 0
    assert "linear" not in capsys.readouterr().out
    assert run(["plan", model, "--explain"]) == 0
    text = capsys.readouterr().out
    head = "On fast:\nWHAT    WHERE  CHOSEN       WHY NOT THE OTHERS\n"
    assert f"{head}linear  n=8    kernel Fast  reference: a kernel comes first\n" in text
    assert "On small:\nPlatform 'small' runs models with its own runner and does not report its choices." in text
    assert run(["plan", model, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["choices"][0]["others"] == [["reference", "a kernel comes first"]]


def test_a_file_of_flags_stands_behind_the_command_line(model, planned, capsys, tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text(f"model: {model}\nmax-model-len: 4K\nmax_num_seqs: 8\njson: true\n")
    assert run(["plan", "--config", str(file), "--max-num-seqs", "5"]) == 0
    (first, _) = planned[0]
    assert (first.model.path, first.model.max_model_len, first.scheduler.max_num_seqs) == (model, 4096, 5)
    assert len(json.loads(capsys.readouterr().out)) == 2
    file.write_text("block-sizes: 16\n")
    assert run(["plan", "--config", str(file)]) == 2
    assert "line 1: unknown flag 'block-sizes'; did you mean block-size?" in capsys.readouterr().err


def test_json_and_a_platform_that_cannot_plan(model, planned, capsys):
    planned[1]["a:Small"] = PlatformError("no.")
    assert run(["plan", model, "--json"]) == 0
    fast, small = json.loads(capsys.readouterr().out)
    assert (fast["weight_bytes"], fast["requests"], fast["error"]) == (500 * MIB, {"4096": 1, "2048": 3}, None)
    assert fast["groups"][1]["window"] == 1024
    assert small == {"platform": "small", "error": "no."}


def test_the_exit_code_is_that_of_a_start_where_none_would_succeed(model, planned, capsys):
    planned[1]["a:Fast"] = FULL
    assert run(["plan", model]) == 6
    planned[1].update({"a:Fast": PlatformError("no."), "a:Small": PlatformError("neither.")})
    assert run(["plan", model]) == 5
    assert capsys.readouterr().out.endswith("fast: no.\n\nsmall: neither.\n")


def test_platforms_are_those_that_can_run_here(model, site):
    assert "No platform is installed" in site.run("plan", model).stderr
    site.install("good")
    assert "There is no platform 'goood'; there is good." in site.run("plan", model, "--platform", "goood").stderr
