"""The variables with the prefix, and the cores that a process may use."""

from __future__ import annotations

import os

import pytest

from tessera.config.environment import (
    allowed_cores,
    default_threads,
    for_children,
    read_environment,
    resting_threads,
)


def test_what_the_variables_say():
    assert read_environment({}).load_plugins is None
    assert read_environment({"TESSERA_LOAD_PLUGINS": ""}).load_plugins == frozenset()
    found = read_environment({"TESSERA_LOAD_PLUGINS": " cpu, other,,", "TESSERA_API_KEY": "secret", "HOME": "x"})
    assert found.load_plugins == {"cpu", "other"}
    assert (found.api_key, found.others) == ("secret", ())


def test_plugins_to_leave_out_and_to_trace():
    assert (read_environment({}).disable_plugins, read_environment({}).trace_plugins) == (frozenset(), False)
    found = read_environment({"TESSERA_DISABLE_PLUGINS": "one, two,", "TESSERA_TRACE_PLUGINS": "1"})
    assert (found.disable_plugins, found.trace_plugins, found.others) == ({"one", "two"}, True, ())
    assert not any(read_environment({"TESSERA_TRACE_PLUGINS": value}).trace_plugins for value in ("", "0"))


def test_other_variables_are_found_but_not_those_a_cluster_sets():
    variables = {
        "TESSERA_LOAD_PLUGIN": "",
        "TESSERA_PORT_FORWARD": "",
        "TESSERA_PORT": "tcp://10.0.0.1:8000",
        "TESSERA_PORT_8000_TCP_ADDR": "10.0.0.1",
        "TESSERA_SERVICE_HOST": "10.0.0.1",
        "TESSERA_DEMO_SERVICE_PORT_HTTP": "8000",
    }
    assert read_environment(variables).others == ("TESSERA_LOAD_PLUGIN", "TESSERA_PORT_FORWARD")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with eight cores for this process, and files of its control groups as they are given."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(8)), raising=False)

    def with_files(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    def at(files):
        return with_files(**files)

    return at


def test_without_control_groups_the_affinity_counts(machine):
    assert allowed_cores(machine({})) == 8


def test_a_quota_of_version_2_of_a_group_or_of_one_above_it(machine):
    folder = machine(
        {
            "proc/self/cgroup": "0::/pods/mine\n",
            "sys/fs/cgroup/pods/cpu.max": "350000 100000\n",
            "sys/fs/cgroup/pods/mine/cpu.max": "max 100000\n",
        }
    )
    assert allowed_cores(folder) == 3


def test_a_quota_of_version_2_at_the_root_of_a_container(machine):
    folder = machine({"proc/self/cgroup": "0::/somewhere/on/the/host\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"})
    assert allowed_cores(folder) == 1


def test_a_quota_of_version_1(machine):
    folder = machine(
        {
            "proc/self/cgroup": "5:memory:/\n4:cpu,cpuacct:/docker/x\n0::/\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        }
    )
    assert allowed_cores(folder) == 2


def test_a_quota_beyond_the_affinity_changes_nothing(machine):
    folder = machine({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "6400000 100000\n"})
    assert allowed_cores(folder) == 8


@pytest.mark.parametrize(("asked", "threads"), [("3", 3), ("4,2", 4), ("", 8), ("0", 8), ("many", 8)])
def test_threads_are_what_openmp_is_told_else_the_cores(machine, monkeypatch, asked, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert default_threads(machine({})) == threads


def test_children_wait_asleep_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("TESSERA_API_KEY", "secret")
    assert for_children()["OMP_WAIT_POLICY"] == "passive"
    assert "TESSERA_API_KEY" not in for_children()
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert for_children()["OMP_WAIT_POLICY"] == "active"


@pytest.mark.parametrize(("said", "within"), [(None, "passive"), ("active", "active")])
def test_what_is_loaded_meanwhile_waits_asleep_and_nothing_stays_changed(monkeypatch, said, within):
    if said is None:
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    else:
        monkeypatch.setenv("OMP_WAIT_POLICY", said)
    before = dict(os.environ)
    with resting_threads():
        assert os.environ["OMP_WAIT_POLICY"] == within
    assert dict(os.environ) == before
