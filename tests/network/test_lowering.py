"""From programs to tasks: who meets whom, over which links."""

from __future__ import annotations

import numpy as np
import pytest

import triosim
from tests.partition.divided import divided, mesh_of
from tests.traces import chain
from triosim import Plan
from triosim.collectives.algorithm import ALGORITHMS, choose
from triosim.collectives.communication import CollectiveCommunication
from triosim.collectives.scheduling import Collectives
from triosim.engine.graph import GraphRun, Task
from triosim.engine.play import play
from triosim.hardware.system import System
from triosim.network.device_assignment import assign_devices
from triosim.network.lowering import _meeting, lower
from triosim.network.routes import Router, router_of
from triosim.network.traffic import RoutedCollective
from triosim.partition.resolve import resolve
from triosim.prediction.played_run import Run
from triosim.schedule.actions import SCHEDULES
from triosim.schedule.job import Costs, programs
from triosim.schedule.program import Program
from triosim.schedule.stages import split


class Plain:
    """Collectives by their default algorithm, and no software costs."""

    def collective(self, kind: str, devices, size: int, root: int) -> RoutedCollective:
        made = ALGORITHMS.get(choose(kind, len(devices), size))().schedule(kind, len(devices), size, root)
        return RoutedCollective(made.pattern, made.order)

    def transfer(self, source: int, target: int, size: int) -> int:
        return 0


def written(plan: Plan) -> list[Program]:
    """The programs of a plan that names all its axes, of a model of four layers and a batch of 8."""
    trace = chain(layers=4, batch=8)
    ranks = (plan.dp or 1) * plan.tp * plan.pp
    step = divided(trace, plan.tp)
    stages = split(step.trace, trace.operators.device_s, plan.pp)
    schedule = SCHEDULES.get(plan.schedule)(**plan.schedule_options)
    return programs(step, Costs(trace.operators.device_s), stages, schedule, plan, resolve(plan, ranks, 8))


def _lowered(dp: int, tp: int, pp: int, **plan):
    jobs = written(Plan(dp=dp, tp=tp, pp=pp, **plan))
    ranks = dp * tp * pp
    system = triosim.system(devices=ranks, link="1GB/s", latency="1us")
    return jobs, lower(jobs, assign_devices(mesh_of(dp, tp, pp), ranks), Router(system), Plain(), fold=False)


@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2), (1, 4, 2), (4, 1, 2)])
def test_every_rank_has_its_program_and_every_send_its_arrival(mesh: tuple[int, int, int]) -> None:
    jobs, lowered = _lowered(*mesh, micro_batches=2)
    graph = lowered.graph
    assert np.array_equal(np.diff(lowered.first), [len(jobs[c]) for c in lowered.program])
    sends = np.flatnonzero(graph.kind == Task.TRANSFER)
    joins = np.flatnonzero(graph.kind == Task.JOIN)
    nothing = np.zeros(len(graph), np.int64)
    run = Run(jobs, lowered, GraphRun(nothing, nothing, nothing, nothing, 0, 0, ""), 1)
    pair = np.concatenate([run.pair(cell) for cell in range(lowered.cells)])
    assert sorted(pair[sends]) == sorted(pair[joins]) == list(range(len(sends)))
    assert np.all(np.delete(pair, np.concatenate([sends, joins])) == -1)
    for join in joins.tolist():
        (send,) = [s for s in sends.tolist() if pair[s] == pair[join]]
        assert send in graph.before[join]
        assert graph.amount[send] > 0


@pytest.mark.parametrize("mesh", [(2, 1, 1), (1, 2, 1), (2, 2, 1), (2, 2, 2), (4, 2, 1)])
def test_each_collective_has_each_member_of_its_group_once(mesh: tuple[int, int, int]) -> None:
    dp, tp, _ = mesh
    _, lowered = _lowered(*mesh)
    graph = lowered.graph
    for number, row in enumerate(graph.instances.tolist()):
        tasks = np.flatnonzero((graph.kind == Task.COLLECTIVE) & (graph.what == number))
        assert sorted(graph.member[tasks]) == list(range(graph.collectives[row].pattern.members))
        ranks = np.searchsorted(lowered.first, tasks, side="right") - 1
        (group,) = set(lowered.group_of(tasks).tolist())
        assert sorted(ranks.tolist()) == sorted(lowered.groups[group].tolist())
        assert len(ranks) in (dp, tp)


def test_neighbours_in_a_ring_are_neighbours_on_the_tensor_axis() -> None:
    """Ranks along tp are numbered next to each other, so their ring stays among neighbours."""
    _, lowered = _lowered(2, 4, 1)
    groups = {tuple(g.tolist()) for g in lowered.groups}
    assert {(0, 1, 2, 3), (4, 5, 6, 7), (0, 4), (1, 5), (2, 6), (3, 7)} == groups


@pytest.mark.parametrize("mesh", [(4, 2, 1), (2, 2, 2), (8, 1, 1)], ids=str)
def test_what_is_kept_of_a_mesh_is_what_is_found_anew(mesh: tuple[int, int, int]) -> None:
    """Jobs that differ in one thing that routes and collectives depend on, one after another in one process."""
    dp, tp, pp = mesh
    system = triosim.system("dgx-h100", nodes=2)
    small = triosim.system("dgx-a100", nodes=2)
    jobs = {
        parts: written(Plan(dp=dp, tp=tp, pp=pp, micro_batches=parts, overlap=overlap))
        for parts, overlap in ((2, True), (4, False))
    }
    order = np.arange(dp * tp * pp)[::-1].tolist()
    asked = [
        (parts, machine, placed, how)
        for parts in jobs
        for machine in (system, small)
        for placed in (None, order)
        for how in ({}, {"algorithm": "ring"}, {"algorithm": "ring", "protocol": "LL"}, {"ideal": True})
    ]

    def found(parts: int, machine: System, placed: list[int] | None, how: dict) -> list[int]:
        router = router_of(machine)
        means = CollectiveCommunication(machine, router, Collectives(**how))
        lowered = lower(jobs[parts], assign_devices(mesh_of(dp, tp, pp), 16, placed), router, means)
        return play(lowered.graph, lowered.wires).finish.tolist()

    together = [found(*one) for one in asked]
    assert len({tuple(one) for one in together}) > 4
    for one, kept in zip(asked, together, strict=True):
        _meeting.forget()  # type: ignore[attr-defined]
        Collectives.schedule.forget()  # type: ignore[attr-defined]
        router_of.forget()  # type: ignore[attr-defined]
        assert found(*one) == kept
