"""What `tessera doctor` says of each case, with real distributions."""

from __future__ import annotations

import json

import pytest

from tessera.platform import Artifacts

LEVEL_3 = "from tessera.platform import API_LEVELS; API_LEVELS['platform'] = 3\nfrom tessera.cli import main; main()"


def problems(site, **settings):
    done = site.run("doctor", "--json", **settings)
    assert done.stderr == ""
    checks = json.loads(done.stdout)
    assert all(set(check) == {"name", "ok", "text", "advice"} for check in checks)
    return done.returncode, [check for check in checks if not check["ok"]]


def test_a_machine_where_all_is_well(site):
    done = site.install("good", "host", "extras").run("doctor")
    assert done.returncode == 0
    assert "No problems found." in done.stdout
    assert "ok       choice      'good' runs unless --platform says otherwise" in done.stdout
    assert "ok       plugin      extras (tessera-fixture-extras 1.0)" in done.stdout


def test_what_platforms_keep(site, tmp_path):
    done = site.install("good").run("doctor", TESSERA_CACHE=str(tmp_path))
    assert "cache" not in done.stdout
    Artifacts(tmp_path / "artifacts", "good-1").put("program", bytes(3 << 20))
    done = site.run("doctor", TESSERA_CACHE=str(tmp_path))
    assert done.returncode == 0
    assert f"ok       cache       {tmp_path / 'artifacts'}: 3.0 MiB that platforms keep" in done.stdout


def test_variables_that_platforms_read_are_known(site):
    done = site.install("good").run("doctor", TESSERA_GOOD_COLOUR="red")
    assert "ok       environment TESSERA_GOOD_COLOUR is set: the chip's colour\n" in done.stdout
    assert "No problems found." in done.stdout
    done = site.run("doctor", TESSERA_GOOD_COLOR="red")
    assert "unknown environment variable TESSERA_GOOD_COLOR; did you mean TESSERA_GOOD_COLOUR?\n" in done.stdout


def test_nothing_installed(site):
    done = site.run("doctor")
    assert done.returncode == 5
    assert "problem  choice      No platform is installed; install the one for this machine" in done.stdout
    assert done.stdout.endswith("1 problem.\n")


@pytest.mark.parametrize(
    ("name", "check", "what"),
    [
        ("raising", "platform", "raised RuntimeError: the driver is older than the library"),
        ("crashing", "platform", "ended with SIGSEGV"),
        ("leveled", "platform", "written for level 1 of platform, core has 0; upgrade tessera-llm"),
        ("torch_at_load", "plugin", "imports torch"),
        ("broken_import", "plugin", "cannot be imported: ModuleNotFoundError"),
        ("unknown_hook", "plugin", "did it mean platforms?"),
    ],
)
def test_a_plugin_that_cannot_be_used(site, name, check, what):
    code, (first, *rest) = problems(site.install("host", name))
    assert code == 5
    assert first["name"] == check
    assert what in first["text"]
    assert f"pip uninstall tessera-fixture-{name.replace('_', '-')}" in first["advice"]
    assert [(one["name"], "or choose with --platform host" in one["text"]) for one in rest] == [("choice", True)]


def test_a_probe_that_hangs(site):
    begin_limit = (
        "import tessera.plugins.selection as s; s.ask.__defaults__ = (1.0,)\nfrom tessera.cli import main; main()"
    )
    code, found = problems(site.install("hanging"), program=begin_limit)
    assert code == 5
    assert "its probe fixture_hanging:probe did not answer within 1 s" in found[0]["text"]


def test_an_api_level_that_is_too_old(site):
    code, found = problems(site.install("good"), program=LEVEL_3)
    assert code == 5
    assert "written for level 0 of platform, core supports 3; upgrade the plugin" in found[0]["text"]


def test_a_tie(site):
    code, found = problems(site.install("good", "rival"))
    assert code == 5
    assert [check["name"] for check in found] == ["choice"]
    assert (
        "'good' (tessera-fixture-good 1.0), 'rival' (tessera-fixture-rival 1.0) share the score 50" in found[0]["text"]
    )


def test_another_distributions_tessera(site):
    code, found = problems(site.install("good", "other_tessera"))
    assert code == 0
    assert "the distribution 'tessera' 0.9 also installs a package called tessera" in found[0]["text"]
    assert found[0]["advice"].startswith("pip uninstall tessera, then pip install")


def test_names_that_two_plugins_claim(site):
    code, found = problems(site.install("host", "claiming"))
    assert code == 0
    assert "'LlamaForCausalLM' comes from tessera-llm and tessera-fixture-claiming" in found[0]["text"]


def test_variables_that_mean_nothing(site):
    code, found = problems(site.install("good"), TESSERA_LOAD_PLUGIN="x", TESSERA_SERVICE_HOST="10.0.0.1")
    assert code == 0
    (only,) = found
    assert only["text"].endswith("unknown environment variable TESSERA_LOAD_PLUGIN; did you mean TESSERA_LOAD_PLUGINS?")


def test_code_of_another_version_than_the_distribution(site):
    folder = site.folder / "tessera_llm-0.0.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: tessera-llm\nVersion: 0.0.1\n")
    _, found = problems(site.install("good"))
    assert "tessera-llm 0.0.1 is installed, but version" in found[0]["text"]
