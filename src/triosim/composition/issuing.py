"""The host's work in programs: an ISSUE before everything that it launches, and what it waits for.

What issuing takes, and when the host waits, is said by :class:`triosim.composition.host.HostCosts`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from triosim.composition.host import HostCosts
from triosim.core.columns import Ragged, distinct
from triosim.partition.transfers import ALL_GATHER, REDUCE_SCATTER
from triosim.schedule.program import HOST, Op, Program
from triosim.trace.tables import Phase, Trace


def launch(programs: Iterable[Program], trace: Trace, cost: HostCosts) -> list[Program]:
    """The programs with the host's work put before what it launches.

    Every operator, collective, send and fetch is preceded by an ISSUE on the host's stream; after an operator at which
    the host waits for the device, the next ISSUE waits for it.  A graph is issued once an iteration.

    The launch delay is the same for all, so that issuing later by it is the same as starting later by it: it is part of
    the first ISSUE, and of the first after each wait.
    """
    if cost.mode == "none":
        return list(programs)
    folded = _with_views(trace, cost.issue_s)
    return [_issue(program, trace, cost, folded) for program in programs]


def issue_shares(trace: Trace, cost: HostCosts) -> NDArray[np.float64]:
    """Seconds for which the host issues each operator, the views before it included, shape ``(operators,)``."""
    return _with_views(trace, cost.issue_s)


def _with_views(trace: Trace, issue_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Issue time of each operator with that of the views before it, which are not in the program.

    The last operator has that of the views after it too.
    """
    view = trace.operators.view
    total = np.cumsum(issue_s)
    rows = np.flatnonzero(~view)
    out = np.zeros(len(issue_s))
    if len(rows):
        out[rows] = np.diff(np.concatenate([[0.0], total[rows]]))
        out[rows[-1]] += total[-1] - total[rows[-1]]
    return out


def _issue(program: Program, trace: Trace, cost: HostCosts, folded: NDArray[np.float64]) -> Program:
    """A program with an ISSUE before each row that its host launches."""
    if cost.mode == "graph":
        rows = _first_of_each(program.iteration)
    else:
        rows = np.flatnonzero(np.isin(program.op, (Op.COMPUTE, Op.COLLECTIVE, Op.SEND, Op.FETCH, Op.STORE)))
    operates = (program.op == Op.COMPUTE) & (program.what < 0)  # copies for collectives are no operators of the trace
    seconds = _issue_seconds(program, cost, folded, operates)[rows]
    waited_for, following = _host_waits(program, trace, cost, rows, operates)
    if cost.fixed_s:
        seconds[_first_of_each(program.iteration[rows])] += cost.fixed_s
    if len(rows):
        seconds[distinct(np.append(following, 0))] += cost.delay_s
    return replace(_with_issues(program, rows, seconds, waited_for, following), gap_s=cost.gap_s)


def _issue_seconds(
    program: Program, cost: HostCosts, folded: NDArray[np.float64], operates: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Seconds for which the host issues each row of a program, were it launched, shape ``(rows,)``."""
    if cost.mode == "graph":
        seconds = np.full(len(program), cost.launch_s)
    else:
        seconds = np.where(operates, folded[np.maximum(program.operator, 0)], cost.launch_s)
        if cost.send_s is not None:
            seconds = np.where(program.op == Op.SEND, cost.send_s, seconds)
    if cost.listed is not None:
        axis, parts_s = cost.listed
        in_parts = (program.op == Op.COLLECTIVE) & np.isin(program.what, (ALL_GATHER, REDUCE_SCATTER))
        seconds = seconds + np.where(in_parts & (program.axis == axis), parts_s, 0.0)
    return seconds


def _host_waits(
    program: Program, trace: Trace, cost: HostCosts, rows: NDArray[np.int64], operates: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the host waits for the device.

    Args:
        rows: rows of the program that are launched, ascending.
        operates: which rows are operators of the trace, shape ``(rows of the program,)``.

    Returns:
        Rows that are waited for, and for each the place in ``rows`` of what the host issues next.
    """
    if cost.blocking:
        waited_for = rows[np.isin(program.op[rows], (Op.COMPUTE, Op.COLLECTIVE))]
    else:
        waited_for = np.flatnonzero(cost.waits(trace)[np.maximum(program.operator, 0)] & operates)
    if cost.gathering:
        gathers = np.flatnonzero((program.op == Op.COMPUTE) & (program.what == ALL_GATHER))
        waited_for = np.append(waited_for, gathers)
    following = np.searchsorted(rows, waited_for, "right")
    if cost.exchanging:
        transfers, ended = _exchanges(program, trace, cost.exchanging == "pair")
        waited_for = np.append(waited_for, ended)
        following = np.append(following, np.searchsorted(rows, transfers, "right"))
    if cost.fixed_s:  # an iteration begins when the device has finished the one before
        first = _first_of_each(program.iteration[rows])
        ended = _last_of_each(program)[: len(first) - 1]
        waited_for, following = np.append(waited_for, ended), np.append(following, first[1 : len(ended) + 1])
    goes_on = following < len(rows)
    return waited_for[goes_on], following[goes_on]


def _with_issues(
    program: Program,
    rows: NDArray[np.int64],
    seconds: NDArray[np.float64],
    waited_for: NDArray[np.int64],
    following: NDArray[np.int64],
) -> Program:
    """A program with an ISSUE on the host's stream before each of some rows.

    Args:
        program: without any.
        rows: what is issued, ascending.
        seconds: how long that takes, of the same shape.
        waited_for, following: rows, and for each the ISSUE that waits for it, by its place in ``rows``.
    """
    n, size = len(program), len(program) + len(rows)
    old = np.arange(n) + np.searchsorted(rows, np.arange(n), "right")  # new row of each old row
    issue = old[rows] - 1
    source = np.empty(size, np.int64)
    source[old], source[issue] = np.arange(n), rows

    def widen(column: NDArray, fill: float | NDArray) -> NDArray:
        out = column[source]
        out[issue] = fill
        return out

    lifetimes = program.lifetimes
    if lifetimes is not None:
        table = np.append(old, size).astype(np.int32)
        start, end = (
            np.where(column < 0, column, table[np.clip(column, 0, n)]).astype(np.int32)
            for column in (lifetimes.start, lifetimes.end)
        )
        lifetimes = replace(lifetimes, start=start, end=end)
    return replace(
        program,
        op=widen(program.op, int(Op.ISSUE)),
        stream=widen(program.stream, HOST),
        operator=program.operator[source],  # of what is launched, as the next two
        micro_batch=program.micro_batch[source],
        iteration=program.iteration[source],
        seconds=widen(program.seconds, seconds),
        bytes=widen(program.bytes, 0),
        what=widen(program.what, -1),
        axis=widen(program.axis, -1),
        peer=widen(program.peer, -1),
        root=widen(program.root, 0),
        tag=widen(program.tag, 0),
        before=_widened(program.before, old, issue, issue[following], old[waited_for], size),
        lifetimes=lifetimes,
    )


def _exchanges(program: Program, trace: Trace, pairs: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Transfers between stages, and what has to be over before the host goes on after each.

    Transfers that no forward or backward of their iteration follows are left out: they exchange gradients of parameters
    that stages share, or are the last ones, which hold nothing up.  So are those between a forward and the backward
    after it, where such ``pairs`` exchange at once what both have sent.

    Returns:
        Rows of the transfers, and for each row one that the host waits for: the transfer itself, and once more what was
        computed last before it.
    """
    computes = np.flatnonzero(program.op == Op.COMPUTE)
    phase = trace.operators.phase[np.maximum(program.operator, 0)]
    passes = computes[(program.operator[computes] >= 0) & (phase[computes] != Phase.OPTIMIZER)]
    transfers = np.flatnonzero(np.isin(program.op, (Op.SEND, Op.RECEIVE)))
    at = np.searchsorted(passes, transfers)
    transfers, at = transfers[at < len(passes)], at[at < len(passes)]
    holds = program.iteration[passes[at]] == program.iteration[transfers]
    if pairs:
        turns = (phase[passes[at - 1]] == Phase.FORWARD) & (phase[passes[at]] != Phase.FORWARD) & (at > 0)
        holds &= ~turns
    transfers = transfers[holds]
    at = np.searchsorted(computes, transfers) - 1
    return np.append(transfers, transfers[at >= 0]), np.append(transfers, computes[at[at >= 0]])


def _first_of_each(iteration: NDArray[np.int32]) -> NDArray[np.int64]:
    """The first row of each iteration, ascending; ``iteration`` of each row."""
    return np.unique(iteration, return_index=True)[1].astype(np.int64)


def _last_of_each(program: Program) -> NDArray[np.int64]:
    """The last row that computes in each iteration."""
    rows = np.flatnonzero(program.op == Op.COMPUTE)
    _, backwards = np.unique(program.iteration[rows][::-1], return_index=True)
    return rows[len(rows) - 1 - backwards]


def _widened(before: Ragged, old: NDArray, issue: NDArray, waiting: NDArray, waited_for: NDArray, size: int) -> Ragged:
    """What each row waits for once ISSUEs have been put in.

    Args:
        before: as it was.
        old: new row of each old row.
        issue: new rows of the ISSUEs; the row after each waits for it.
        waiting, waited_for: new rows of ISSUEs that wait for an operator, and of these operators.
        size: number of new rows.
    """
    row = np.concatenate([old[before.rows()], issue + 1, waiting])
    value = np.concatenate([old[before.values], issue, waited_for])
    order = np.argsort(row, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=size))]).astype(np.int64)
    return Ragged(value[order].astype(np.int32), offsets)
