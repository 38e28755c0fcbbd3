"""Folding: a job with like ranks played once gives, to the picosecond, what the whole job gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.exploring import examples
from tests.network.test_lowering import Plain, written
from tests.partition.divided import mesh_of
from triosim import Plan
from triosim.collectives.communication import CollectiveCommunication
from triosim.collectives.scheduling import Collectives
from triosim.core.columns import Ragged
from triosim.engine.play import play
from triosim.hardware.system import System
from triosim.network.device_assignment import assign_devices
from triosim.network.lowering import LoweredJob, lower
from triosim.network.rank_classes import Traffic, refine, refined, weights
from triosim.network.routes import Router
from triosim.schedule.program import Program

SERVER = """
[devices]
count = {devices}
model = "H100-SXM5-80GB"
[scale_up]
topology = "{inside}"
bandwidth = "100GB/s"
latency = "1us"
[scale_out]
bandwidth = "{outside}"
latency = "5us"
nics = {nics}
topology = "{fabric}"
"""


def _job(dp: int, tp: int, pp: int, **plan) -> list[Program]:
    return written(Plan(dp=dp, tp=tp, pp=pp, **plan))


def _both(jobs: list[Program], mesh: tuple[int, int, int], system: System, **how) -> tuple[LoweredJob, LoweredJob]:
    dp, tp, pp = mesh
    assignment, router = assign_devices(mesh_of(dp, tp, pp), system.devices), Router(system)
    means = CollectiveCommunication(system, router, Collectives(**how))
    folded, whole = (lower(jobs, assignment, router, means, fold=fold) for fold in (True, False))
    ours, theirs = play(folded.graph, folded.wires), play(whole.graph, whole.wires)
    for rank in range(assignment.ranks):
        cell = int(folded.cell[rank])
        mine = slice(int(folded.first[cell]), int(folded.first[cell + 1]))
        its = slice(int(whole.first[rank]), int(whole.first[rank + 1]))
        for column in ("start", "begin", "finish"):
            assert np.array_equal(getattr(ours, column)[mine], getattr(theirs, column)[its]), (rank, column)
    carried = np.where(folded.link >= 0, ours.link_bytes[folded.link], 0)
    assert np.array_equal(carried, theirs.link_bytes)
    return folded, whole


def _servers(tmp_path, nodes: int, devices: int = 4, **how) -> System:
    facts = {"inside": "switch", "outside": "10GB/s", "nics": devices, "fabric": "switch"} | how
    file = tmp_path / "server.toml"
    file.write_text(SERVER.format(devices=devices, **facts))
    return triosim.system(str(file), nodes=nodes)


@pytest.mark.parametrize("topology", ["switch", "full", "ring", "torus", "mesh", "tree"])
@pytest.mark.parametrize("mesh", [(8, 1, 1), (4, 2, 1), (2, 2, 2), (1, 4, 2), (2, 1, 4)], ids=str)
def test_on_any_topology(topology: str, mesh: tuple[int, int, int]) -> None:
    system = triosim.system(devices=8, topology=topology, link="1GB/s", latency="3us")
    _both(_job(*mesh, micro_batches=4 if mesh[2] > 1 else 1), mesh, system)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("mesh", [(16, 1, 1), (4, 4, 1), (4, 2, 2), (2, 2, 4), (2, 8, 1), (8, 1, 2)], ids=str)
@pytest.mark.parametrize("nics", [4, 2, 1])
def test_on_servers_whose_traffic_shares_nics(tmp_path, mesh: tuple[int, int, int], nics: int, overlap: bool) -> None:
    system = _servers(tmp_path, 4, nics=nics)
    parts = 4 if mesh[2] > 1 else 1
    folded, whole = _both(_job(*mesh, micro_batches=parts, overlap=overlap), mesh, system)
    assert folded.cells < whole.cells


@pytest.mark.parametrize("algorithm", ["ring", "tree", "nvls", "hierarchical", "halving_doubling"])
@pytest.mark.parametrize(("mesh", "nodes"), [((8, 1, 1), 1), ((2, 8, 1), 2), ((8, 4, 1), 4), ((16, 2, 1), 4)], ids=str)
def test_with_every_algorithm(algorithm: str, mesh: tuple[int, int, int], nodes: int) -> None:
    if algorithm == "nvls" and mesh != (8, 1, 1):
        pytest.skip("groups must be in one server")
    _both(_job(*mesh), mesh, triosim.system("dgx-h100", nodes=nodes), algorithm=algorithm)


def test_what_is_alike_is_played_once(tmp_path) -> None:
    """Tensor groups fill servers, so every rank of a stage is like every other."""
    folded, _ = _both(_job(4, 4, 2, micro_batches=2), (4, 4, 2), _servers(tmp_path, 8))
    assert folded.cells == 2
    assert folded.count.tolist() == [16, 16]
    assert folded.lowest.tolist() == [0, 16]


def test_a_ring_that_crosses_servers_tells_those_at_the_edges_apart(tmp_path) -> None:
    folded, _ = _both(_job(8, 1, 1), (8, 1, 1), _servers(tmp_path, 2), ideal=True)
    assert folded.count.tolist() == [2, 2, 2, 2]
    on_rails, _ = _both(_job(8, 1, 1), (8, 1, 1), _servers(tmp_path, 2))
    assert on_rails.count.tolist() == [8]


def test_a_slow_link_unfolds_only_the_groups_it_touches(tmp_path) -> None:
    system = _servers(tmp_path, 8)
    bandwidth = system.bandwidth.copy()
    inside = np.flatnonzero((system.edge_source == 5) & (system.edge_tier == 0))
    bandwidth[inside] /= 3
    slow = replace(system, bandwidth=bandwidth)
    jobs = _job(4, 4, 2, micro_batches=4)
    folded, whole = _both(jobs, (4, 4, 2), slow)
    assert 2 < folded.cells <= whole.cells
    even, _ = _both(jobs, (4, 4, 2), system)
    assert even.cells == 2


def test_a_straggler_is_told_apart(tmp_path) -> None:
    """One rank of a stage runs another program: slower, the same instructions."""
    system = _servers(tmp_path, 4)
    (program,) = _job(4, 4, 1)
    slow = replace(program, ranks=program.ranks[6:7], seconds=program.seconds * 2)
    others = replace(program, ranks=np.delete(program.ranks, 6))
    folded, _ = _both([others, slow], (4, 4, 1), system)
    assert folded.count[folded.program == 1].tolist() == [1]


@settings(max_examples=examples(25))
@given(
    st.sampled_from([(4, 2, 1), (2, 4, 1), (8, 1, 1), (2, 2, 2), (1, 2, 4), (4, 1, 2)]),
    st.permutations(range(8)),
    st.sampled_from(["switch", "ring", "mesh", "tree", "torus"]),
)
def test_wherever_ranks_are(mesh: tuple[int, int, int], order: list[int], topology: str) -> None:
    system = triosim.system(devices=8, topology=topology, link="1GB/s", latency="2us")
    dp, tp, pp = mesh
    jobs = _job(*mesh, micro_batches=2 if pp > 1 else 1)
    assignment = assign_devices(mesh_of(dp, tp, pp), 8, order)
    ends = []
    for fold in (True, False):
        lowered = lower(jobs, assignment, Router(system), Plain(), fold=fold)
        played = play(lowered.graph, lowered.wires)
        last = np.maximum.reduceat(played.finish, lowered.first[:-1])
        ends.append(last[lowered.cell])
    assert np.array_equal(*ends)


@settings(max_examples=examples(25))
@given(
    st.sampled_from([(8, 4, 1), (4, 4, 2), (8, 2, 2), (2, 4, 4), (32, 1, 1), (4, 8, 1), (4, 2, 4)]),
    st.lists(st.tuples(st.integers(0, 31), st.sampled_from([1.5, 2.0])), max_size=3),
    st.sampled_from([4, 2, 1]),
    st.sampled_from(["ring", "tree", "hierarchical", None]),
    st.booleans(),
)
def test_whoever_is_slow(
    tmp_path_factory: pytest.TempPathFactory, mesh: tuple[int, int, int], slow: list[tuple[int, float]], nics: int,
    algorithm: str | None, overlap: bool,
) -> None:  # fmt: skip
    """Ranks that wait for a slow one are told apart only where they wait for other things."""
    jobs = _job(*mesh, micro_batches=4 if mesh[2] > 1 else 1, overlap=overlap)
    for rank, factor in dict(slow).items():
        which = next(number for number, job in enumerate(jobs) if rank in job.ranks)
        job = jobs[which]
        jobs[which] = replace(job, ranks=job.ranks[job.ranks != rank])
        jobs.append(replace(job, ranks=np.array([rank], np.int32), seconds=job.seconds * factor))
    system = _servers(tmp_path_factory.mktemp("slow"), 8, nics=nics)
    _both([job for job in jobs if len(job.ranks)], mesh, system, **({"algorithm": algorithm} if algorithm else {}))


def test_one_slow_rank_unfolds_no_ring(tmp_path) -> None:
    """All other replicas stay alike, wherever in the ring they are; ranks beside the slow one are of three kinds."""
    (program,) = _job(16, 4, 1)
    slow = replace(program, ranks=program.ranks[6:7], seconds=program.seconds * 2)
    others = replace(program, ranks=np.delete(program.ranks, 6))
    folded, _ = _both([others, slow], (16, 4, 1), _servers(tmp_path, 16))
    assert sorted(folded.count.tolist()) == [1, 3, 15, 45]


def test_ranks_of_trees_are_alike_whose_subtrees_and_ways_to_the_root_are() -> None:
    folded, whole = _both(_job(64, 8, 1), (64, 8, 1), triosim.system("dgx-h100", nodes=64), algorithm="tree")
    assert folded.cells < whole.cells / 8


@settings(max_examples=examples(60))
@given(st.data())
def test_cells_are_of_what_cannot_be_told_apart(data: st.DataObject) -> None:
    """Members of a cell begin alike, and links of a cell are crossed by equally many routes of each cell."""
    endpoints, links = data.draw(st.integers(2, 8)), data.draw(st.integers(1, 6))
    groups = data.draw(st.lists(st.lists(st.integers(0, endpoints - 1), min_size=1, unique=True), max_size=3))
    ends = st.integers(0, endpoints - 1)
    routes = data.draw(st.lists(st.tuples(ends, ends, st.integers(-len(groups), 0),
                                        st.lists(st.integers(0, links - 1), unique=True, max_size=3)),
                              min_size=1, max_size=14))  # fmt: skip
    like = data.draw(st.lists(st.integers(0, 1), min_size=endpoints, max_size=endpoints))
    needs = [data.draw(st.lists(st.integers(0, len(routes) - 1), unique=True, max_size=2)) for _ in routes]
    waits = Ragged.of(needs)
    traffic = Traffic(
        endpoint_like=np.array(like), source=np.array([w[0] for w in routes]), target=np.array([w[1] for w in routes]),
        begun_by=np.array([w[2] or w[0] for w in routes]), way_like=np.zeros(len(routes), np.int64), needs=waits,
        lag=np.array([data.draw(st.integers(0, 1)) for _ in waits.values], np.int64),
        routes=Ragged.of([w[3] for w in routes]), link_like=np.zeros(links, np.int64), members=Ragged.of(groups),
    )  # fmt: skip
    cells, python = refine(traffic), refined(traffic)
    for column in ("endpoint", "route", "link", "group"):
        assert np.array_equal(getattr(cells, column), getattr(python, column))
    began: dict[tuple[str, int], list[int]] = {}
    for endpoint in range(endpoints):
        own = sorted(cells.route[traffic.begun_by == endpoint].tolist())
        assert began.setdefault(("endpoint", int(cells.endpoint[endpoint])), own) == own
        assert {like[p] for p in range(endpoints) if cells.endpoint[p] == cells.endpoint[endpoint]} == {like[endpoint]}
    for group, members in enumerate(groups):
        own = sorted(cells.route[traffic.begun_by == -1 - group].tolist())
        assert began.setdefault(("group", int(cells.group[group])), own) == own
        met = sorted(cells.endpoint[members].tolist())
        assert began.setdefault(("met", int(cells.group[group])), met) == met
    rows = traffic.routes.rows()
    by_link: dict[int, list[int]] = {}
    for link in set(traffic.routes.values.tolist()):
        crossing = sorted(cells.route[rows[traffic.routes.values == link]].tolist())
        assert by_link.setdefault(int(cells.link[link]), crossing) == crossing
    by_route: dict[int, list[int]] = {}
    for number, crossed_links in enumerate(traffic.routes.lists()):
        over = cells.link[crossed_links].tolist()
        assert by_route.setdefault(int(cells.route[number]), over) == over
    routes, weight = weights(traffic, cells)
    crossed = np.zeros(int(cells.link.max(initial=-1)) + 1)
    np.add.at(crossed, routes.values, weight)
    for link in set(traffic.routes.values.tolist()):
        assert crossed[cells.link[link]] == np.count_nonzero(traffic.routes.values == link)
