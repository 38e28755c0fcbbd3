"""What ranks have in common is played once and gives, to the picosecond, what every rank by itself does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.network.test_folding import _job, _servers
from tests.partition.divided import mesh_of
from triosim import Fidelity, Plan
from triosim.collectives.communication import CollectiveCommunication
from triosim.collectives.scheduling import Collectives
from triosim.engine.play import play
from triosim.hardware.stragglers import slowed
from triosim.hardware.system import System
from triosim.network import common_prefix
from triosim.network.common_prefix import FeltBefore, PrefixedJob, prefixed
from triosim.network.device_assignment import DeviceAssignment, assign_devices
from triosim.network.lowering import lower
from triosim.network.routes import Router
from triosim.prediction import playing
from triosim.schedule.program import Program


@pytest.fixture(autouse=True)
def _even_small_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "FEWEST_TASKS", 0)
    monkeypatch.setattr(common_prefix, "MOST_OF_TASKS", 0.95)


def _slow(jobs: list[Program], slow: dict[int, float]) -> list[Program]:
    """The programs with a class for each slow rank."""
    for rank, factor in slow.items():
        which = next(number for number, job in enumerate(jobs) if rank in job.ranks)
        job = jobs[which]
        jobs[which] = replace(job, ranks=job.ranks[job.ranks != rank])
        jobs.append(replace(job, ranks=np.array([rank], np.int32), seconds=job.seconds * factor))
    return [job for job in jobs if len(job.ranks)]


def _means(system: System, router: Router) -> CollectiveCommunication:
    return CollectiveCommunication(system, router, Collectives())


def _cut(jobs: list[Program], assignment: DeviceAssignment, system: System) -> tuple[PrefixedJob, object] | None:
    """The job cut in two and played, None where it must be played whole.  Each cut is earlier than the one before."""
    router, most = Router(system), np.array([len(job) for job in jobs])
    for _ in range(6):
        cut = prefixed(jobs, assignment, router, _means(system, router), 0, most)
        if cut is None:
            return None
        assert (cut.length <= most).all()
        played = play(cut.graph, cut.wires)
        try:
            cut.check(played)
        except FeltBefore as felt:
            most = felt.cut
        else:
            return cut, played
    return None


def _as_alone(jobs: list[Program], mesh: tuple[int, int, int], system: System) -> int:
    """Compare with every rank by itself; returns the tasks that are played less, 0 where the job is played whole."""
    assignment = assign_devices(mesh_of(*mesh), system.devices)
    found = _cut(jobs, assignment, system)
    if found is None:
        return 0
    cut, both = found
    lowered, ours = cut.joined(both)
    router = Router(system)
    whole = lower(jobs, assignment, router, _means(system, router), fold=False)
    theirs = play(whole.graph, whole.wires)
    for rank in range(assignment.ranks):
        cell = int(lowered.cell[rank])
        mine = slice(int(lowered.first[cell]), int(lowered.first[cell + 1]))
        its = slice(int(whole.first[rank]), int(whole.first[rank + 1]))
        for column in ("start", "begin", "finish"):
            assert np.array_equal(getattr(ours, column)[mine], getattr(theirs, column)[its]), (rank, column)
    carried = np.where(lowered.link >= 0, ours.link_bytes[lowered.link], 0)
    assert np.array_equal(carried, theirs.link_bytes)
    assert cut.stands_for.sum() == len(lower(jobs, assignment, router, _means(system, router)).graph)
    return int(cut.stands_for.sum()) - len(cut.graph)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("nics", [4, 2])
def test_a_pipeline_with_a_slow_rank(tmp_path, schedule: str, overlap: bool, nics: int) -> None:
    """Replicas of a pipeline differ when gradients are exchanged, and not before."""
    jobs = _slow(_job(4, 4, 2, micro_batches=8, overlap=overlap, schedule=schedule), {5: 1.5})
    assert _as_alone(jobs, (4, 4, 2), _servers(tmp_path, 8, nics=nics)) > 0


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([(8, 4, 1), (4, 4, 2), (8, 2, 2), (2, 4, 4), (4, 2, 4)]),
    st.dictionaries(st.integers(0, 31), st.sampled_from([1.5, 2.0]), max_size=3),
    st.sampled_from([4, 2, 1]),
    st.booleans(),
    st.sampled_from([4, 8]),
)
def test_whoever_is_slow(
    tmp_path_factory: pytest.TempPathFactory, mesh: tuple[int, int, int], slow: dict[int, float], nics: int,
    overlap: bool, parts: int,
) -> None:  # fmt: skip
    jobs = _slow(_job(*mesh, micro_batches=parts if mesh[2] > 1 else 1, overlap=overlap), slow)
    _as_alone(jobs, mesh, _servers(tmp_path_factory.mktemp("slow"), 8, nics=nics))


def test_what_is_felt_in_the_prefix_is_seen(tmp_path) -> None:
    """A transfer of the prefix that ends after the first of the rest began on its links, or what computes beside it."""
    jobs, system = _slow(_job(4, 4, 2, micro_batches=8), {5: 1.5}), _servers(tmp_path, 8)
    found = _cut(jobs, assign_devices(mesh_of(4, 4, 2), system.devices), system)
    assert found is not None
    cut, played = found
    last = int(cut.prefix.first[-1])
    for some in (np.concatenate(cut.computes)[:last], cut.prefix.graph.kind == 1):
        row = int(np.flatnonzero(some)[-1])
        finish = played.finish.copy()
        finish[row] = finish.max()
        with pytest.raises(FeltBefore) as felt:
            cut.check(replace(played, finish=finish))
        cell = int(np.searchsorted(cut.prefix.first, row, side="right")) - 1
        assert felt.value.cut[cut.prefix.program[cell]] == row - cut.prefix.first[cell]


def test_a_prediction_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what computes slowed down by collectives beside it, and all that is added up."""
    trace = triosim.model("gpt2", sequence_length=64, configuration={"n_layer": 4})
    system = slowed(triosim.system("dgx-h100", nodes=4), {5: 1.25})
    plan = Plan(tp=4, pp=2, micro_batches=8, batch_size=8)
    cut = triosim.simulate(trace, system, plan, fit=False)
    alone = triosim.simulate(trace, system, plan, Fidelity(fold=False), fit=False)
    monkeypatch.setattr(playing, "FEWEST_TASKS", 10**9)
    folded = triosim.simulate(trace, system, plan, fit=False)
    assert cut.simulation.tasks < folded.simulation.tasks
    for other in (folded, alone):
        for name in ("iteration_time_s", "active_time_s", "breakdown_s", "devices", "stages", "collectives", "layers"):
            assert getattr(cut, name) == getattr(other, name), name
        assert cut.energy.node_j == other.energy.node_j
        assert cut.timeline.end == other.timeline.end


def test_jobs_under_a_model_of_a_users_own_are_played_whole(tmp_path) -> None:
    """It may remember what crossed a link before."""
    own = tmp_path / "own.py"
    own.write_text(
        "from triosim.core.registry import registered\nfrom triosim.engine.solvers.max_min import MaxMin\n\n\n"
        "@registered\nclass Remembering(MaxMin):\n    pass\n"
    )
    trace = triosim.model("gpt2", sequence_length=64, configuration={"n_layer": 4})
    system = slowed(triosim.system("dgx-h100", nodes=4), {5: 1.25})
    plan = Plan(tp=4, pp=2, micro_batches=8, batch_size=8)
    ours = triosim.simulate(trace, system, plan, fit=False)
    theirs = triosim.simulate(trace, system, plan, Fidelity(solver=str(own)), fit=False)
    assert theirs.simulation.tasks > ours.simulation.tasks
    assert theirs.iteration_time_s == ours.iteration_time_s
