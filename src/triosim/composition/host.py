"""The host as a resource: launching an operator takes time, and none starts before it has been launched.

An operator starts at the latest of three moments: when the host has issued it and the launch delay has passed; when its
stream is ready and the gap between two kernels has passed; when its inputs are there.  Where the host waits for the
device (``.item()``, ``cudaDeviceSynchronize``, copies to pageable memory) it goes on when the device is done.

Each device has a process of its own that issues for it; ``DataParallel`` has one for all.  Processes share the cores of
their server: with fewer cores than processes, issuing takes as much longer.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged, distinct
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, unknown
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.changes import same_device
from triosim.kernels.classes import by_name, reserves
from triosim.kernels.physical.stream import shortest_kernel_s
from triosim.operators import canonical, kind, traffic
from triosim.operators.experts import expert_sizes
from triosim.partition.transfers import ALL_GATHER, REDUCE_SCATTER
from triosim.schedule.program import HOST, Op, Program
from triosim.trace.calls import calls_of
from triosim.trace.tables import Phase, Trace
from triosim.transform.quantization import CASTS


@dataclass(frozen=True)
class HostCosts:
    """How launching costs.

    Attributes:
        mode: as ``--host`` names it; ``"none"`` costs nothing.
        issue_s: of each operator of the trace, seconds; what precedes it without a kernel (views) is included.
        launch_s: of a collective or transfer, seconds.
        delay_s: from the end of issuing to the start on an idle stream, seconds.
        gap_s: between two operators on a stream, the later one having been issued in time, seconds.
        spread: natural logarithm of the 90 % interval's factor of these.
        source: where the figures are from.
        send_s: of a transfer to another stage, seconds; None where it costs what a collective does.
        fixed_s: once an iteration, seconds, the device having finished the one before.
        blocking: whether the host waits for every kernel and collective that it launches.
        exchanging: after which transfers between stages the host waits until the device has nothing left: of every
            ``"pass"`` through a stage, of every ``"pair"`` of a forward and the backward after it, ``""`` for none.
        read: operators of the trace whose result the host waits for, ascending, beside those that wait of themselves.
        listed: along which axis of the mesh parameters are gathered and gradients reduced with a tensor for each rank,
            and how many seconds of the host all of these take in one collective; None where they are one tensor.
        gathering: whether the host waits, after each gather of parameters in shards, until the device has nothing left.
    """

    mode: str
    issue_s: NDArray[np.float64]
    launch_s: float
    delay_s: float
    gap_s: float
    spread: float
    source: str
    send_s: float | None = None
    fixed_s: float = 0.0
    blocking: bool = False
    exchanging: Literal["", "pass", "pair"] = ""
    read: tuple[int, ...] = ()
    listed: tuple[int, float] | None = None
    gathering: bool = False

    def waits(self, trace: Trace) -> NDArray[np.bool_]:
        """Operators after which the host waits for the device, shape ``(operators,)``."""
        found: NDArray[np.bool_] = trace.operators.sync.copy()
        found[list(self.read)] = True
        return found


@functools.cache
def constants() -> dict:
    """What ``host.json`` holds."""
    return json.loads((Path(__file__).parent / "host.json").read_text())


def issue_seconds(mode: str) -> float:
    """Host seconds to launch one operator, where nothing is recorded.

    Args:
        mode: a row of ``host.json``, ``"graph"`` (nothing but one launch for all) or ``"none"``.

    Raises:
        InputError: there is no such mode.
    """
    if mode in ("graph", "none"):
        return 0.0
    modes = constants()["modes"]
    if mode not in modes:
        raise unknown("host mode", mode, [*modes, "none"])
    return float(modes[mode]["issue_s"])


def collective_seconds(mode: str) -> float:
    """Host seconds to launch one collective, where nothing is recorded: no framework's Python is above it.

    Args:
        mode: as of :func:`issue_seconds`.

    Raises:
        InputError: there is no such mode.
    """
    return min(issue_seconds(mode), float(constants()["collective_s"]["seconds"]))


class HostDefault(NamedTuple):
    """How the cost of launching is taken into account where nobody says.

    Attributes:
        mode: as ``--host`` names it.
        why: in a few words, ``""`` where nothing was recorded.
    """

    mode: str
    why: str = ""


def default_mode(trace: Trace, targets: Sequence[Accelerator], recorded_on: Accelerator | None = None) -> HostDefault:
    """What ``--host`` is when it is not given: it follows the devices that run the job, not where the trace is from.

    * ``recorded`` where the trace holds host times of such a device (a GPU's on another GPU: the host is the same);
    * ``none`` where it holds device times of this very device and no host times: a sum of measured kernels;
    * else what a device of that kind costs its host, whichever way the trace came about: by name, under fake tensors,
      on a CPU, imported.  A CPU runs operators in the process that would launch them (``none``); what is neither CPU
      nor GPU (TPU, Trainium, Gaudi) runs compiled programs, launched once (``graph``); all others run PyTorch
      (``eager``).

    Args:
        trace: what is run.
        targets: the devices that run it, each kind once.
        recorded_on: the device of the trace's times; None where nothing was measured.
    """
    kinds = {_kind(device) for device in targets}
    usual = {"cpu": "none", "asic": "graph"}.get(kinds.pop(), "eager") if len(kinds) == 1 else "eager"
    if recorded_on is None or usual == "none":
        return HostDefault(usual)
    where = recorded_on.name or f"a {recorded_on.kind}"
    hosted = trace.meta.clock == "gpu" and bool(np.any(trace.operators.host_s > 0))
    if hosted and all(_kind(device) == _kind(recorded_on) for device in targets):
        return HostDefault("recorded")
    if all(same_device(device, recorded_on) for device in targets):
        return HostDefault("none", f"the trace has device times of {where} and no host times")
    return HostDefault(usual, f"the trace has no host times of {'a GPU' if usual == 'eager' else 'such a device'}")


def _kind(device: Accelerator) -> str:
    """``"cpu"``, ``"asic"`` or ``"gpu"``."""
    return next((kind for kind in ("cpu", "asic") if device.kind.endswith(kind)), "gpu")


def crowding(processes: int, cores: int | None) -> float:
    """How much longer issuing takes where so many processes share the cores of a server (None: enough of them)."""
    return max(1.0, processes / cores) if cores else 1.0


def host(trace: Trace, mode: str, processes: float = 1, why: str = "") -> HostCosts:
    """The cost of launching each operator of a trace.

    Args:
        trace: one rank's step.
        mode: a row of ``host.json``, ``"recorded"`` or ``"none"``.
        why: why this mode was chosen, in a few words, where nobody asked for it.
        processes: devices that one process launches for, one after the other (``DataParallel``), times how crowded
            the cores are (:func:`crowding`).

    Raises:
        InputError: ``"recorded"`` but the trace has no host times.
    """
    n = len(trace)
    if mode == "none":
        source = "the cost of launching is left out" + (f": {why} (--host eager adds it)" if why else "")
        return HostCosts(mode, np.zeros(n), 0.0, 0.0, 0.0, 0.0, source)
    table = constants()
    delay, gap = table["delay_s"]["seconds"], table["gap_s"].get(mode, table["gap_s"]["seconds"])
    send: float | None = None
    if mode == "recorded":
        recorded = np.nan_to_num(trace.operators.host_s)
        if not recorded.any():
            raise InputError(
                f"--host recorded: {trace.meta.workload!r} has no host times; "
                "use eager, large-model, compiled, graph or none"
            )
        shown = [name for name in ("launch_delay_s", "kernel_gap_s") if getattr(trace.meta, name) is not None]
        delay = delay if trace.meta.launch_delay_s is None else trace.meta.launch_delay_s
        gap = gap if trace.meta.kernel_gap_s is None else trace.meta.kernel_gap_s
        source = "recorded host times" + (
            f", {_us(delay)} of launch delay, {_us(gap)} between kernels" if shown else ""
        )
        launch = float(np.median(recorded[recorded > 0]))
        spread = table["spread"]["recorded"]
    else:
        row = table["modes"][mode]
        recorded, each_s = np.where(launches(trace), _tabled(row, trace), 0.0), row["issue_s"]
        launch, send = min(each_s, table["collective_s"]["seconds"]), each_s
        each = "iteration" if mode == "graph" else "launch"
        source = f"{_us(each_s)} per {each}: {row['note']}" + (f", as {why}" if why else "") + f" ({row['source']})"
        if bool(np.any((recorded != each_s) & (recorded > 0))):
            source += f"; {row['by_operator_note']} ({row['by_operator_source']})"
        spread = table["spread"]["table"]
        recorded = recorded if mode == "graph" else recorded + _launched_inside(trace)
    return HostCosts(
        mode, recorded * processes, launch * processes, delay, gap, spread, source,
        send_s=None if send is None else send * processes,
    )  # fmt: skip


def launches(trace: Trace) -> NDArray[np.bool_]:
    """Operators that cost the host something of their own.

    Views and what only reserves memory belong to the operators around them, in whose measured costs they are; a number
    that is read where nothing has to be waited for lies in the host's memory already (an optimizer's count of steps).
    """
    operators = trace.operators
    read = by_name(operators.name, lambda name: kind(name) == "host").astype(bool) & ~operators.sync
    return ~(operators.view | read | by_name(operators.name, reserves).astype(bool))


def _tabled(row: dict, trace: Trace) -> NDArray[np.float64]:
    """What a row of ``host.json`` says of each operator."""
    usual = {name: known for known in row.get("by_operator", ()) for name in known["names"]}
    found: dict[tuple[str, bool], float] = {}
    keys = list(zip(trace.operators.name, (trace.operators.phase == Phase.BACKWARD).tolist(), strict=True))
    for name, backward in set(keys):
        own = usual.get(canonical(name)[0], {})
        found[name, backward] = own.get("backward_s" if backward else "forward_s", row["issue_s"])
    return np.array([found[key] for key in keys], np.float64)


def _launched_inside(trace: Trace) -> NDArray[np.float64]:
    """What the kernels of one function of its own (a scan's) cost besides the first: a launch from compiled code each,
    at least, for Python launches them."""
    there = np.flatnonzero(by_name(trace.operators.name, lambda name: kind(name) == "scan").astype(bool))
    more = np.zeros(len(trace))
    calls = calls_of(trace)
    more[there] = [traffic(calls[row]).kernels - 1.0 for row in there.tolist()]
    return more * issue_seconds("compiled")


def further_kernels(trace: Trace, casts: bool = True) -> NDArray[np.float64]:
    """Kernels beyond the first of each operator where every expert has its own, shape ``(operators,)``.

    Each expert's product is a kernel, and so is each cast of the rows that it multiplies.  Weights are cast once an
    iteration, which is left out.

    Args:
        trace: one rank's step.
        casts: whether rows are cast apart for each expert.
    """
    operators, more = trace.operators, np.zeros(len(trace))
    products = np.flatnonzero(by_name(operators.name, lambda name: kind(name) == "experts").astype(bool))
    products = products[~operators.view[products]]
    if not len(products):
        return more
    apart: dict[int, list[int]] = {}  # value that is cast -> operators that cast it, or find its largest element
    if casts:
        weights = trace.values.storage[trace.weights()]
        for row in np.flatnonzero(by_name(operators.name, lambda name: name in CASTS)).tolist():
            value = int(operators.inputs[row][0])
            if not np.isin(trace.values.storage[value], weights):
                apart.setdefault(value, []).append(row)
    writers, calls = trace.writers(), calls_of(trace)
    read = {row: value for value, rows in apart.items() for row in rows}
    for product in products.tolist():
        known = expert_sizes(calls[product])
        if known is not None:
            cast = [other for row in writers[product] if row in read for other in apart[read[row]]]
            more[[product, *cast]] = max(round(known.experts) - 1, 0)
    return more


def rank_by_rank(cost: HostCosts, axis: int, ranks: int) -> HostCosts:
    """The costs where collectives along an axis take a tensor for each of its ranks, which is an eager operator each:
    a view, and the launch of a copy."""
    return replace(cost, listed=(axis, ranks * issue_seconds("eager")))


def launched_one_by_one(cost: HostCosts, more: NDArray[np.float64]) -> HostCosts:
    """The costs where operators are further kernels, one for each expert, as of :func:`further_kernels`."""
    if cost.mode in ("none", "recorded", "graph") or not more.any():
        return cost
    return replace(cost, issue_s=cost.issue_s + more * float(constants()["expert_s"]["seconds"]))


def kernel_by_kernel(device_s: NDArray[np.float64], trace: Trace, more: NDArray[np.float64]) -> NDArray[np.float64]:
    """Device seconds of operators where casts are further kernels one after the other on one stream.

    Products of experts are spread over several streams, where the beginning of one runs beside the end of another.

    Args:
        device_s: where one kernel casts for all.
        trace: one rank's step.
        more: as of :func:`further_kernels`.
    """
    casts = by_name(trace.operators.name, lambda name: name in CASTS).astype(bool)
    gap = float(constants()["gap_s"]["seconds"])
    return device_s + np.where(casts, more * (shortest_kernel_s() + gap), 0.0)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us"


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
