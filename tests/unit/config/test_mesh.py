"""Ranks and their places along named axes."""

from __future__ import annotations

from tessera.config import ParallelConfig
from tessera.config.mesh import Mesh


def test_ranks_count_along_the_innermost_axis_first():
    mesh = Mesh({"data": 2, "pipeline": 3, "tensor": 4})
    assert mesh.size == 24
    places = [tuple(mesh.place(axis, rank) for axis in mesh.sizes) for rank in range(24)]
    assert places == [(data, stage, shard) for data in range(2) for stage in range(3) for shard in range(4)]


def test_a_group_differs_along_one_axis_alone():
    mesh = Mesh({"data": 2, "pipeline": 3, "tensor": 4})
    assert mesh.group("tensor", 17) == (16, 17, 18, 19)
    assert mesh.group("pipeline", 17) == (13, 17, 21)
    assert mesh.group("data", 17) == (5, 17)
    for axis, size in mesh.sizes.items():
        groups = {mesh.group(axis, rank) for rank in range(24)}
        assert sorted(rank for group in groups for rank in group) == list(range(24))
        assert {len(group) for group in groups} == {size}


def test_stages_follow_one_another():
    parallel = ParallelConfig(tensor_parallel_size=2, pipeline_parallel_size=3)
    assert parallel.world_size == 6
    assert [parallel.mesh.place("pipeline", rank) for rank in range(6)] == [0, 0, 1, 1, 2, 2]


def test_an_axis_along_another_has_its_workers():
    parallel = ParallelConfig(tensor_parallel_size=3, pipeline_parallel_size=2, expert_parallel=True)
    mesh = parallel.mesh
    assert mesh.size == parallel.world_size == 6
    groups = mesh.groups(lambda axis: [mesh.group(axis, 4)])
    assert groups == {"pipeline": [(1, 4)], "tensor": [(3, 4, 5)], "expert": [(3, 4, 5)]}
    assert groups["expert"] is groups["tensor"]
    assert "expert" not in ParallelConfig(tensor_parallel_size=3).mesh.groups(str)
