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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, unknown
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.changes import same_device
from triosim.kernels.classes import by_name, reserves
from triosim.kernels.physical.stream import shortest_kernel_s
from triosim.operators import canonical, kind, traffic
from triosim.operators.experts import EACH, expert_sizes
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

    def apart(self, device_s: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        """Seconds of operators on devices, shape ``(..., operators)``, and of hosts beside them; both in one, and None,
        where hosts wait for every kernel."""
        return (device_s + self.issue_s, None) if self.blocking else (device_s, self.issue_s)

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


@kept(32)
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
    there = np.flatnonzero(
        by_name(trace.operators.name, lambda name: kind(name) in ("scan", "selective-scan")).astype(bool)
    )
    more = np.zeros(len(trace))
    calls = calls_of(trace)
    more[there] = [traffic(calls[row]).kernels - 1.0 for row in there.tolist()]
    return more * issue_seconds("compiled")


def further_kernels(trace: Trace, casts: bool = True) -> NDArray[np.float64]:
    """Kernels beyond the first of each operator where every expert has its own, shape ``(operators,)``.

    Each expert's product is a kernel, and so is each cast of the rows that it multiplies, and each part of what is
    told once for all experts of a layer (:data:`triosim.operators.experts.EACH`).  Weights are cast once an iteration,
    which is left out.

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
    modules, held = operators.module.tolist(), dict[int, float]()
    for product in products.tolist():
        known = expert_sizes(calls[product])
        if known is not None:
            cast = [other for row in writers[product] if row in read for other in apart[read[row]]]
            more[[product, *cast]] = max(round(known.experts) - 1, 0)
            held[modules[product]] = more[product]
    each = np.flatnonzero(by_name(operators.name, lambda name: name.startswith(EACH)).astype(bool))
    more[each] = [held.get(modules[row], 0.0) for row in each.tolist()]
    return more


def rank_by_rank(cost: HostCosts, axis: int, ranks: int) -> HostCosts:
    """The costs where collectives along an axis take a tensor for each of its ranks, which is an eager operator each:
    a view, and the launch of a copy."""
    return replace(cost, listed=(axis, ranks * issue_seconds("eager")))


def launched_once(cost: HostCosts, inside: NDArray[np.bool_]) -> HostCosts:
    """The costs where operators (``inside``) are part of a later one's kernel."""
    return cost if cost.mode in ("none", "recorded") else replace(cost, issue_s=np.where(inside, 0.0, cost.issue_s))


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
