"""Meshes: groups from strides, in the order that the user chooses."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.asked import asked
from tests.command import run
from tests.partition.divided import mesh_of
from triosim import Plan, PlanError
from triosim.partition.mesh import Mesh

NAMES = ("pp", "dp", "cp", "tp")
MESHES = st.permutations(NAMES).flatmap(
    lambda names: st.lists(st.integers(1, 4), min_size=4, max_size=4).map(
        lambda sizes: Mesh(tuple(zip(names, sizes, strict=True)))
    )
)


def test_the_last_axis_is_innermost() -> None:
    mesh = mesh_of(dp=3, tp=2, pp=2)
    assert mesh.names == ("tp", "dp", "pp")
    assert mesh.groups("tp") == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    assert mesh.groups("dp") == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]
    assert mesh.groups("pp") == [[0, 6], [1, 7], [2, 8], [3, 9], [4, 10], [5, 11]]


@settings(deadline=None)
@given(MESHES)
def test_groups_of_an_axis_divide_the_ranks_and_differ_only_along_it(mesh: Mesh) -> None:
    for axis in mesh.names:
        groups = mesh.groups(axis)
        assert sorted(rank for group in groups for rank in group) == list(range(mesh.ranks))
        for group in groups:
            assert [mesh.position(rank, axis) for rank in group] == list(range(len(group)))
            for other in set(mesh.names) - {axis}:
                assert len({mesh.position(rank, other) for rank in group}) == 1


@settings(deadline=None)
@given(MESHES, st.sampled_from(list(permutations(NAMES, 2))))
def test_axes_joined_are_one_axis(mesh: Mesh, parts: tuple[str, str]) -> None:
    both = mesh.joined("both", parts)
    assert both.size("both") == mesh.size(parts[0]) * mesh.size(parts[1])
    ranks = np.arange(mesh.ranks)
    place = mesh.position(ranks, parts[0]) * mesh.size(parts[1]) + mesh.position(ranks, parts[1])
    assert np.array_equal(both.position(ranks, "both"), place)
    for group in both.groups("both"):
        assert [int(both.moved(group[0], "both", at)) for at in range(len(group))] == group


def test_axes_are_cut_anew_as_torchtitan_does_for_experts() -> None:
    """``dp_shard 4 x tp 2`` as ``edp 2 x ep 2 x etp 2``: experts borrow ranks of the data axis."""
    mesh = mesh_of(dp=4, tp=2).resplit(("dp", "tp"), (("edp", 2), ("ep", 2), ("etp", 2)))
    assert mesh.groups("etp") == mesh.groups("tp")
    assert mesh.groups("ep") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.groups("edp") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    wide = mesh_of(dp=4, tp=2).resplit(("dp", "tp"), (("edp", 2), ("ep", 4)))
    assert wide.groups("ep") == [[0, 1, 2, 3], [4, 5, 6, 7]]  # over an axis and half of the next
    with pytest.raises(PlanError, match="edp 2 x ep 2 makes 4 ranks, but dp x tp has 8"):
        mesh_of(dp=4, tp=2).resplit(("dp", "tp"), (("edp", 2), ("ep", 2)))


@pytest.mark.parametrize("order", list(permutations(("pp", "dp", "tp"))))
def test_in_any_order_a_job_sends_the_same(order: tuple[str, ...]) -> None:
    """On a switch, where all places are alike, the order of the axes changes nothing."""
    trace = triosim.model("gpt2", batch_size=4, sequence_length=64, configuration={"n_layer": 4})
    system = triosim.system(devices=8, device="A100-SXM4-80GB", link="25GB/s", latency="3us")
    plan = {"dp": 2, "tp": 2, "pp": 2, "micro_batches": 4, "zero": 1}
    plain, moved = (triosim.simulate(trace, system, *asked(**plan, axis_order=o)) for o in (("pp", "dp", "tp"), order))
    assert moved.iteration_time_s == pytest.approx(plain.iteration_time_s, rel=1e-9)
    for axis in ("pp", "dp", "tp"):
        sent = [sorted((r.kind, r.bytes, r.count) for r in x.collectives if r.axis == axis) for x in (plain, moved)]
        assert sent[0] == sent[1]


def test_the_order_says_which_groups_cross_servers() -> None:
    """With ``tp`` outermost its groups are across two servers, and all-reduces take longer."""
    trace = triosim.model("gpt2", batch_size=1, sequence_length=512, configuration={"n_layer": 4})
    system = triosim.system("dgx-a100", nodes=2)
    near, far = (
        triosim.simulate(trace, system, Plan(dp=8, tp=2, axis_order=order))
        for order in (("pp", "dp", "tp"), ("tp", "pp", "dp"))
    )
    tp, dp = (
        [sum(row.seconds for row in result.collectives if row.axis == axis) for result in (near, far)]
        for axis in ("tp", "dp")
    )
    assert tp[1] > 2 * tp[0]
    assert dp[1] < dp[0]


def test_a_carved_axis_lies_where_the_order_has_it() -> None:
    axes = (("dp", 8), ("pp", 2), ("tp", 2))
    assert Mesh(axes).carved("dp", "cp", 4).axes == (("dp", 2), ("cp", 4), ("pp", 2), ("tp", 2))
    for order in permutations(("dp", "pp", "cp", "tp")):
        plain = tuple((name, dict(axes)[name]) for name in order if name != "cp")
        found = Mesh(plain, order=order).carved("dp", "cp", 4)
        assert found.axes == tuple((name, {"dp": 2, "cp": 4, "pp": 2, "tp": 2}[name]) for name in order)


@pytest.mark.parametrize("order", [("pp", "dp", "cp", "tp"), ("dp", "pp", "cp", "tp"), ("cp", "pp", "dp", "tp")])
def test_context_parallel_ranks_are_where_the_order_has_them(order: tuple[str, ...]) -> None:
    """Named where it lies anyway it changes nothing; on a switch it never does; folded is unfolded."""
    trace = triosim.model("gpt2", batch_size=4, sequence_length=64, configuration={"n_layer": 4})
    plan = {"dp": 4, "tp": 2, "pp": 2, "micro_batches": 4, "zero": 1, "cp": 2, "cp_style": "ring"}
    switch = triosim.system(devices=16, device="A100-SXM4-80GB", link="25GB/s", latency="3us")
    servers = triosim.system("dgx-a100", nodes=2)
    for system in (switch, servers):
        plain = triosim.simulate(trace, system, Plan(**plan))
        moved, whole = (
            triosim.simulate(trace, system, *asked(**plan, axis_order=order, fold=fold)) for fold in (True, False)
        )
        assert moved.iteration_time_s == whole.iteration_time_s
        if system is switch or order == ("pp", "dp", "cp", "tp"):
            assert moved.iteration_time_s == pytest.approx(plain.iteration_time_s, rel=1e-9)
        sent = [sorted((r.axis, r.kind, r.bytes, r.count) for r in x.collectives) for x in (plain, moved)]
        assert sent[0] == sent[1]


def test_an_order_that_is_none_is_refused() -> None:
    with pytest.raises(PlanError, match="axis-order names cp, which is no axis of the plan: it has pp, dp, tp"):
        triosim.simulate(
            triosim.model("gpt2", sequence_length=64, configuration={"n_layer": 2}),
            triosim.system("dgx-a100", nodes=1), Plan(axis_order=("pp", "dp", "cp", "tp")),
        )  # fmt: skip
    done = run("train", "gpt2", "--device", "A100-SXM4-80GB", "--axis-order", "pp,tp", code=2)
    assert "axis-order must name each of pp, dp, tp once" in done.stderr


@pytest.mark.parametrize("order", [("pp", "dp", "tp"), ("dp", "tp", "pp"), ("tp", "pp", "dp")])
@pytest.mark.parametrize(
    "plan",
    [
        {"tp": 2, "zero": 3, "parallelism": ("hsdp",)},
        {"tp": 2, "pp": 2, "micro_batches": 2, "zero": 1, "parallelism": ("hsdp", "sequence")},
    ],
    ids=["hsdp", "hsdp-sequence-pipeline"],
)
def test_folded_is_unfolded_whatever_the_axes(plan: dict, order: tuple[str, ...]) -> None:
    trace = triosim.model("gpt2", batch_size=2, sequence_length=64, configuration={"n_layer": 2})
    system = triosim.system("dgx-a100", nodes=2)
    folded, whole = (triosim.simulate(trace, system, *asked(**plan, axis_order=order, fold=f)) for f in (True, False))
    assert folded.iteration_time_s == whole.iteration_time_s
    assert folded.collectives == whole.collectives
