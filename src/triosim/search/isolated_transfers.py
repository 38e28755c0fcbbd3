"""Times of the collectives and sends of a job where nothing else uses their links.

Each is played once, by the engine and with all replicas at the same time, as they are in a job: the collectives of all
stages one after another, then one send after another, all far apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from triosim.core.caching import kept
from triosim.core.dataclass import dataclass
from triosim.engine.graph import Task
from triosim.engine.play import play
from triosim.hardware.system import System
from triosim.network.device_assignment import assign_devices
from triosim.network.lowering import LoweredJob, lower
from triosim.network.routes import Router, router_of
from triosim.network.traffic import CommunicationModel
from triosim.partition.mesh import Mesh
from triosim.schedule.program import HOST, SEND, TP, Op, Program, ProgramBuilder

APART_S = 1000.0
"""Between one and the next: more than any takes that is worth simulating."""

Call = tuple[int, int, int]
"""A collective: kind, bytes, axis."""

Send = tuple[int, int, int]
"""A send: stage that sends, stage that receives, bytes."""


@dataclass(frozen=True)
class IsolatedTimes:
    """Ticks of collectives and sends that share links with nothing.

    Attributes:
        calls: of each collective.
        sends: of each send.
        shared: pairs of sends, by the stages between which they go, that have a link in common.
    """

    calls: dict[Call, int]
    sends: dict[Send, int]
    shared: frozenset[tuple[tuple[int, int], tuple[int, int]]]


class UnequalRanks(Exception):
    """Ranks of a stage do not take equally long, or stages disturb each other, so that no one time is right."""


@kept(64)
def isolated_times(
    system: System,
    mesh: Mesh,
    order: tuple[int, ...] | None,
    calls: tuple[Call, ...],
    sends: tuple[Send, ...],
    how: tuple[str, str, bool],
    make: Callable[[System, Router, tuple[str, str, bool]], CommunicationModel],
) -> IsolatedTimes:
    """Play each collective and each send of a mesh alone.

    Args:
        system, mesh: of which ranks.
        order: device of each rank, None for those that :func:`assign_devices` gives them.
        calls, sends: which ones.
        how: what ``make`` needs to know.
        make: makes the means of the job.

    Raises:
        UnequalRanks: there is no one time.
    """
    router = router_of(system)
    programs = _programs(mesh, calls, sends)
    assignment = assign_devices(mesh, system.devices, order, torus=system.torus)
    lowered = lower(programs, assignment, router, make(system, router, how))
    played = play(lowered.graph, lowered.wires)
    ticks = played.finish - played.start
    found: dict[tuple[str, Call | Send], set[int]] = {}
    used: dict[tuple[int, int], set[int]] = {}
    talks: dict[int, set[int]] = {}
    for cell in range(lowered.cells):
        first, program = int(lowered.first[cell]), programs[int(lowered.program[cell])]
        rows = np.flatnonzero((program.op == Op.SEND) | (program.op == Op.COLLECTIVE)).tolist()
        for row in rows:
            size, links = int(program.bytes[row]), _links(lowered, first + row)
            if program.op[row] == Op.SEND:
                ends = (program.stage, int(program.peer[row]))
                found.setdefault(("send", (*ends, size)), set()).add(int(ticks[first + row]))
                used.setdefault(ends, set()).update(links)
            else:
                call = (int(program.what[row]), size, int(program.axis[row]))
                found.setdefault(("call", call), set()).add(int(ticks[first + row]))
                talks.setdefault(program.stage, set()).update(links)
    _check(found, used, talks)
    shared = {(a, b) for a in used for b in used if a < b and used[a] & used[b]}
    return IsolatedTimes(
        {what: next(iter(t)) for (kind, what), t in found.items() if kind == "call"},
        {what: next(iter(t)) for (kind, what), t in found.items() if kind == "send"},
        frozenset(shared),
    )  # fmt: skip


def _check(found: dict, used: dict[tuple[int, int], set[int]], talks: dict[int, set[int]]) -> None:
    if any(len(ticks) > 1 for ticks in found.values()):
        raise UnequalRanks("ranks of a stage are not alike")
    sent = set().union(*used.values()) if used else set()
    seen: set[int] = set()
    for own in talks.values():
        if own & sent or own & seen:
            raise UnequalRanks("collectives of a stage cross links that others use")
        seen |= own


def _links(lowered: LoweredJob, task: int) -> set[int]:
    """Links that a transfer or collective uses."""
    graph, routes = lowered.graph, lowered.wires.routes
    what = int(graph.what[task])
    if graph.kind[task] == Task.TRANSFER:
        return set(routes[what].tolist())
    return {
        link for route in graph.collectives[int(graph.instances[what])].route for link in routes[int(route)].tolist()
    }


def _programs(mesh: Mesh, calls: Sequence[Call], sends: Sequence[Send]) -> list[Program]:
    made = []
    stages = mesh.size("pp")
    axis = mesh.row("pp")
    ranks = np.arange(mesh.ranks)
    for stage in range(stages):
        own = ranks[mesh.position(ranks, "pp") == stage].astype(np.int32) if stages > 1 else ranks.astype(np.int32)
        builder = ProgramBuilder(stage, own)
        before: list[int] = []
        for number, (what, size, along) in enumerate(calls):
            wait = [builder.add(Op.ISSUE, -1, seconds=number * APART_S)] if number else []
            before = [builder.add(Op.COLLECTIVE, TP, size=size, what=what, axis=along, before=before + wait)]
        for number, (source, target, size) in enumerate(sends, start=len(calls) + 1):
            if stage == source:
                wait = [builder.add(Op.ISSUE, -1, seconds=number * APART_S)]
                builder.add(Op.SEND, SEND, size=size, axis=axis, peer=target, tag=number, before=wait)
            elif stage == target:
                builder.add(Op.RECEIVE, -1, size=size, axis=axis, peer=source, tag=number)
        builder.add(Op.ISSUE, HOST)
        made.append(builder.build())
    return made
