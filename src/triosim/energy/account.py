"""What a played job takes: every joule of it, in whole nanojoules, so that sums are exact.

    operators + idle + links + host = node          node x PUE = facility

Operators take what they compute and move, and the static power of their device while they run.  Links take what their
bytes do, the static power of devices that only communicate, and the adapters and switches between servers.  What is
left of a device's time costs its idle power.  The host is what a server takes beside its devices.

A transfer's bytes count once for each link by which they leave a device, host memory or a pool; what switches draw is
in the figure of the link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPES
from triosim.core.units import PICOSECONDS_PER_SECOND
from triosim.energy.constants import EnergyConstants
from triosim.energy.device import DeviceEnergy, device_energy
from triosim.energy.governor import ClockedOperators, at_clock
from triosim.energy.work import operator_work
from triosim.engine.graph import GraphRun
from triosim.hardware import catalog
from triosim.hardware.system import System, Tier
from triosim.kernels.estimate import Estimates
from triosim.network.device_assignment import DeviceAssignment
from triosim.network.lowering import LoweredJob
from triosim.schedule.program import Op, Program
from triosim.trace.tables import Trace

NANO = 1e9
"""Nanojoules of a joule."""
_TICK_NJ = NANO / PICOSECONDS_PER_SECOND
"""Nanojoules of a watt in a tick."""
_BITS = 8
CURVE_STEPS = 200
"""Steps of a power curve, each the mean over its time."""
WITHOUT_HOST = ("soc", "apu", "edge-gpu", "edge-cpu", "edge-asic", "edge-soc", "pim")
"""Kinds of devices whose power holds their processor too, or that sit in another one's."""
_ROUNDING = 1e-6
"""Of watts, which are sums of whole nanojoules over whole ticks."""
HOST_SPREAD, LINK_SPREAD = "host.share", "link.spread"


class RankTimeSpent(Protocol):
    """How a rank spent the run, picoseconds."""

    @property
    def compute(self) -> int:
        """With its compute stream busy."""

    @property
    def exposed_communication(self) -> int:
        """With a transfer in flight while it did not compute."""


@dataclass(frozen=True)
class DeviceEnergyRow:
    """One rank class; per iteration, mean over its ranks.

    Attributes:
        rank, count: lowest rank, and how many there are.
        energy_j: joules of the device itself: operators, idle, and its part of what links take.
        mean_w: over the iteration.
        clock: over the boost clock, 1 where nothing lowers it.
    """

    rank: int
    count: int
    energy_j: float
    mean_w: float
    clock: float


@dataclass(frozen=True)
class PowerCurve:
    """Power of all nodes over the run: from ``time_s[i]`` to the next a mean of ``watts[i]``."""

    time_s: tuple[float, ...]
    watts: tuple[float, ...]


@dataclass(frozen=True)
class Energy:
    """Joules of one iteration, all devices of a job together.

    ``operators_j + idle_j + links_j + host_j = node_j`` and ``node_j * pue = facility_j``.

    Attributes:
        operators_j: what operators take, static power while they run included.
        idle_j: what devices take while they do nothing.
        links_j: bytes on links, static power of devices that only communicate, adapters and switches.
        host_j: processors, memory, fans and losses of the servers.
        node_j: all of that.
        pue: what a facility takes over what its nodes take.
        facility_j: with cooling and distribution.
        devices_j: what the devices alone take, as their own sensors would have it.
        mean_w, peak_w: power of all nodes: over the iteration, and the highest.
        device_mean_w: power of a device, mean over all and over the iteration.
        per_sample_j, per_token_j: of the facility; None where samples or tokens are not known.
        timed_j: of ``node_j`` what is drawn for as long as it takes: static and idle power, hosts, adapters, switches.
        interval_j: 90 % interval of ``node_j`` at the predicted times, from those of the constants.
        parts_j: what ``operators_j`` consists of: ``static``, ``memory``, ``cache``, and FLOP by element type.
        devices: a row for each rank class.
        curve: power over the run.
        sources: where the figures are from, one sentence each.
    """

    operators_j: float
    idle_j: float
    links_j: float
    host_j: float
    node_j: float
    pue: float
    facility_j: float
    devices_j: float
    mean_w: float
    peak_w: float
    device_mean_w: float
    per_sample_j: float | None
    per_token_j: float | None
    timed_j: float
    interval_j: tuple[float, float]
    parts_j: Mapping[str, float]
    devices: tuple[DeviceEnergyRow, ...]
    curve: PowerCurve
    sources: tuple[str, ...]


@dataclass(frozen=True)
class DevicePower:
    """Power model of a device type in a job: its constants, its operators at their clock, and their element types."""

    energy: DeviceEnergy
    clocked: ClockedOperators
    dtype: NDArray[np.int64]


@dataclass(frozen=True)
class ComputeEnergy:
    """Nanojoules of the instructions of a cell that compute, one row each, over the whole run.

    Attributes:
        rows: which instructions they are.
        start, finish: when they ran, ticks.
        flop, cache, memory: of what they compute and move.
        static: static power of their device while they run.
        searched: what a longer search for mappings of a design may change, in the sense of
            :attr:`~triosim.kernels.estimate.OperatorJoules.open`, of all together.
    """

    rows: NDArray[np.int64]
    start: NDArray[np.int64]
    finish: NDArray[np.int64]
    flop: NDArray[np.int64]
    cache: NDArray[np.int64]
    memory: NDArray[np.int64]
    static: NDArray[np.int64]
    searched: float

    @cached_property
    def dynamic(self) -> NDArray[np.int64]:
        """Without static power."""
        return self.flop + self.cache + self.memory


_Drawn = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], float]


@dataclass(frozen=True)
class EnergyAccount:
    """Energy of a simulated job, added up when it is first asked for.

    Attributes:
        programs, lowered, played, iterations: the job as it was played; work is done where its tasks finish.
        trace: one rank's step.
        system, assignment: the machine, and where ranks are.
        times: operator times at the full clock, by row of ``system.models``.
        clocks: clock and brake by the same (:class:`~triosim.energy.governor.ClockedOperators`); 1 where there is none.
        spent: how each cell of ranks spent the run.
        transfers: begin and end of what each cell moves, ticks.
        constants: the table, as this job reads it.
        known: what devices draw that were calibrated, by name.
        samples, tokens: in an iteration, None where not known.
    """

    programs: Sequence[Program]
    lowered: LoweredJob
    played: GraphRun
    iterations: int
    trace: Trace
    system: System
    assignment: DeviceAssignment
    times: Mapping[int, Estimates]
    clocks: Mapping[int, tuple[float, float]]
    spent: Sequence[RankTimeSpent]
    transfers: Callable[[int], tuple[NDArray[np.int64], NDArray[np.int64]]]
    constants: EnergyConstants
    known: Mapping[str, DeviceEnergy] = field(default_factory=dict)
    samples: float | None = None
    tokens: float | None = None

    @cached_property
    def draws(self) -> dict[int, DevicePower] | None:
        """What each model of device draws; None where that is not known of one."""
        found = {}
        for model, times in self.times.items():
            device = self.system.models[model]
            energy = self.known.get(device.name) or device_energy(device, self.constants)
            if energy is None:
                return None
            work = operator_work(self.trace, device, energy, times)
            found[model] = DevicePower(energy, at_clock(work, *self.clocks.get(model, (1.0, 1.0))), work.dtype)
        return found

    @cached_property
    def _drawn(self) -> dict[tuple[int, int], _Drawn]:
        """Of each program on each model of device: the rows that compute, nanojoules of FLOP, caches and memory, and
        :attr:`ComputeEnergy.searched`."""
        return {}

    def _model(self, cell: int) -> int:
        rank = int(self.lowered.lowest[cell])
        return int(self.system.device_model[self.assignment.devices[rank]])

    def _at(self, cell: int) -> slice:
        return slice(int(self.lowered.first[cell]), int(self.lowered.first[cell + 1]))

    def computed(self, cell: int) -> ComputeEnergy:
        """What the instructions of a cell take that compute."""
        assert self.draws is not None
        number, model = int(self.lowered.program[cell]), self._model(cell)
        if (number, model) not in self._drawn:  # the same for all cells, of which there may be thousands
            self._drawn[number, model] = self._reckoned(self.programs[number], model)
        rows, flop, cache, memory, searched = self._drawn[number, model]
        at = self._at(cell)
        start, finish = self.played.start[at][rows], self.played.finish[at][rows]
        static = np.rint((finish - start) * (self.draws[model].energy.static_w * _TICK_NJ)).astype(np.int64)
        return ComputeEnergy(rows, start, finish, flop, cache, memory, static, searched)

    def _reckoned(self, program: Program, model: int) -> _Drawn:
        """What the instructions of a program take that compute."""
        assert self.draws is not None
        draw, known = self.draws[model], self.times[model].joules
        rows, clocked = program.rows(Op.COMPUTE), draw.clocked
        operator, seconds = program.operator[rows], program.seconds[rows]
        runs = (operator >= 0) & (program.what[rows] < 0)
        operator = np.maximum(operator, 0)
        alone = clocked.seconds[operator]
        # What runs on another batch than the step's takes as much more energy as it takes time.
        part = np.where(runs, np.divide(seconds, alone, out=np.ones_like(alone), where=alone > 0), 0.0)
        flop, cache, memory = (
            np.rint(each[operator] * part * NANO).astype(np.int64)
            for each in (clocked.flop_j, clocked.cache_j, clocked.memory_j)
        )
        if not runs.all():  # copies, at the bandwidth of the memory
            memory += np.rint(~runs * seconds * NANO * self._copying_w(draw)).astype(np.int64)
        searched = float((known.open[operator] * part).sum()) * NANO if known is not None else 0.0
        return rows, flop, cache, memory, searched

    def joules(self, cell: int) -> NDArray[np.float64]:
        """Joules of each instruction of a cell in the whole run; zero for what does not compute, NaN if not known."""
        instructions = len(self.programs[self.lowered.program[cell]])
        if self.draws is None:
            return np.full(instructions, np.nan)
        found, computed = np.zeros(instructions), self.computed(cell)
        found[computed.rows] = (computed.dynamic + computed.static) / NANO
        return found

    def _copying_w(self, draw: DevicePower) -> float:
        energy = draw.energy
        share = self.constants.value("device.memory_share")
        return max(energy.idle_w + share * (energy.tdp_w - energy.idle_w) - energy.static_w, 0.0)

    def energy(self) -> Energy | None:
        """All sums; None where what a device draws is not known."""
        if self.draws is None:
            return None
        counts = self.lowered.count.tolist()
        end = int(self.played.finish.max(initial=0))
        parts: dict[str, int] = {}
        operators = idle = waiting = 0
        searched = 0.0
        by_cell = []
        for cell, count in enumerate(counts):
            draw, spent = self.draws[self._model(cell)], self.spent[cell]
            it = self.computed(cell)
            dynamic = {"cache": int(it.cache.sum()), "memory": int(it.memory.sum()), **self._by_type(cell, it)}
            # Streams that compute beside each other draw the static power of their device once.
            busy = round(spent.compute * draw.energy.static_w * _TICK_NJ)
            always = min(int(it.static.sum()), busy + len(self.programs[self.lowered.program[cell]]))
            own = always + sum(dynamic.values())
            for name, amount in {"static": always, **dynamic}.items():
                parts[name] = parts.get(name, 0) + amount * count
            only_moves = round(spent.exposed_communication * draw.energy.static_w * _TICK_NJ)
            rest = round((end - spent.compute - spent.exposed_communication) * draw.energy.idle_w * _TICK_NJ)
            operators, idle, waiting = operators + own * count, idle + rest * count, waiting + only_moves * count
            by_cell.append(own + rest + only_moves)
            searched += it.searched * count
        sent = self._sent_nj()
        fabric, hosts = self._watts_between(), self._watts_of_hosts()
        links = waiting + int(sent.sum()) + round(fabric * end * _TICK_NJ)
        host = round(hosts * end * _TICK_NJ)
        node = operators + idle + links + host
        seconds = end / PICOSECONDS_PER_SECOND / self.iterations
        pue = self.constants.value("facility.pue")
        facility = self._joules(node) * pue
        devices = operators + idle + waiting + int(sent.sum())
        rows = self._devices(by_cell, sent, seconds)
        curve, peak = self._curve(by_cell, fabric + hosts, int(sent.sum()), end)
        return Energy(
            operators_j=self._joules(operators), idle_j=self._joules(idle), links_j=self._joules(links),
            host_j=self._joules(host), node_j=self._joules(node), pue=pue, facility_j=facility,
            devices_j=self._joules(devices),
            mean_w=self._joules(node) / seconds if seconds else 0.0,
            peak_w=peak,
            device_mean_w=self._joules(devices) / seconds / self.assignment.ranks if seconds else 0.0,
            per_sample_j=facility / self.samples if self.samples else None,
            per_token_j=facility / self.tokens if self.tokens else None,
            timed_j=self._joules(parts.get("static", 0) + idle + links - int(sent.sum()) + host),
            interval_j=self._interval(parts, idle, waiting, links, host, node, searched),
            parts_j={name: self._joules(amount) for name, amount in parts.items() if amount},
            devices=rows,
            curve=curve,
            sources=(*self._sources(), *self._above_caps(rows)),
        )  # fmt: skip

    def _joules(self, nanojoules: int) -> float:
        """Joules of an iteration."""
        return nanojoules / NANO / self.iterations

    def _by_type(self, cell: int, computed: ComputeEnergy) -> dict[str, int]:
        """Nanojoules of FLOP by element type."""
        assert self.draws is not None
        program, taken = self.programs[self.lowered.program[cell]], np.zeros(len(DTYPES), np.int64)
        multiplies = np.flatnonzero(computed.flop)
        dtype = self.draws[self._model(cell)].dtype[program.operator[computed.rows[multiplies]]]
        np.add.at(taken, dtype, computed.flop[multiplies])
        return {f"{DTYPES[code]} FLOP": int(taken[code]) for code in np.flatnonzero(taken).tolist()}

    # --- links, servers -----------------------------------------------------------------------------------------------

    def _sent_nj(self) -> NDArray[np.int64]:
        """What the bytes on each link of the system take; zero for links that leave a switch or an adapter."""
        system, lowered = self.system, self.lowered
        carried = np.append(self.played.link_bytes, 0)[lowered.link]  # the last where there is no link
        ends = np.zeros(system.nodes, bool)
        ends[: system.devices] = True
        for nodes in (system.server_host, system.server_nvme, np.array([system.pool])):
            ends[nodes[nodes >= 0]] = True
        found = np.zeros(len(carried), np.int64)
        rows = np.flatnonzero((carried > 0) & ends[system.edge_source])
        names = [system.edge_name[row] for row in rows.tolist()]
        tiers = system.edge_tier[rows].tolist()
        each = {key: self._per_bit(*key) for key in set(zip(names, tiers, strict=True))}
        per_bit = np.array([each[key] for key in zip(names, tiers, strict=True)])
        found[rows] = np.rint(carried[rows] * (per_bit * _BITS * NANO)).astype(np.int64)
        return found

    def _per_bit(self, name: str, tier: int) -> float:
        """Joules of a bit on a link; between servers of the whole way, whatever the link to the adapter is."""
        if tier == Tier.SCALE_OUT:
            return self.constants.value("link.scale_out") * 1e-12
        stated = catalog.link_facts(name).energy_j_per_bit if name in catalog.links() else None
        row = "link.host" if tier in (Tier.HOST, Tier.NVME) else "link.scale_up"
        return stated if stated is not None else self.constants.value(row) * 1e-12

    def _watts_between(self) -> float:
        """Adapters and switch ports between servers, in the part of the system's devices that the job has."""
        system = self.system
        out = system.edge_tier == Tier.SCALE_OUT
        if not out.any():
            return 0.0
        devices = system.edge_source < system.devices
        adapters = np.unique(system.edge_target[out & devices])
        outer = np.ones(system.nodes, bool)
        outer[: system.devices] = False
        outer[adapters] = False
        ports = int(np.count_nonzero(out & outer[system.edge_source]))
        watts = len(adapters) * self.constants.value("network.nic") + ports * self.constants.value("network.port")
        return watts * self.assignment.ranks / system.devices

    def _watts_of_hosts(self) -> float:
        """What servers take beside the devices of the job."""
        watts = 0.0
        used = np.bincount(self.system.device_model[self.assignment.devices], minlength=len(self.system.models))
        for device, count in zip(self.system.models, used.tolist(), strict=True):
            if count and device.tdp_w is not None and device.kind not in WITHOUT_HOST:
                watts += count * device.tdp_w * self.constants.value("host.share")
        return watts

    # --- rows, curve, interval ----------------------------------------------------------------------------------------

    def _devices(self, by_cell: Sequence[int], sent: NDArray[np.int64], seconds: float) -> tuple[DeviceEnergyRow, ...]:
        """A row for each rank class; what a device sends is its own."""
        assert self.draws is not None
        of_device = np.bincount(
            np.minimum(self.system.edge_source, self.system.devices), sent.astype(np.float64), self.system.devices + 1
        )
        rows = []
        for number, program in enumerate(self.programs):
            cells = np.flatnonzero(self.lowered.program == number).tolist()
            counts = self.lowered.count[cells].tolist()
            own = sum(by_cell[cell] * count for cell, count in zip(cells, counts, strict=True))
            total = own + float(of_device[self.assignment.devices[program.ranks]].sum())
            joules = total / NANO / self.iterations / sum(counts)
            clock = self.draws[self._model(cells[0])].clocked.clock
            rows.append(
                DeviceEnergyRow(
                    int(program.ranks.min()), sum(counts), joules, joules / seconds if seconds else 0.0, clock
                )
            )
        return tuple(sorted(rows, key=lambda row: row.rank))

    def _above_caps(self, rows: Sequence[DeviceEnergyRow]) -> list[str]:
        """A sentence for each rank class that draws more than its power cap on average."""
        found = []
        for row in rows:
            cap = self.system.models[int(self.system.device_model[self.assignment.devices[row.rank]])].power_cap_w
            if cap is not None and row.mean_w > cap * (1 + _ROUNDING):
                found.append(
                    f"energy: rank {row.rank} draws {row.mean_w:.4g} W on average under its cap of {cap:g} W, which "
                    "bounds what all devices of its kind compute on average: bytes on their links come on top"
                )
        return found

    def watts(self, cell: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Power of one device of a cell over the run: from each tick on, until the next.

        Returns:
            Ticks, ascending, and watts; transfers draw the static power where nothing is computed.
        """
        assert self.draws is not None
        energy, computed = self.draws[self._model(cell)].energy, self.computed(cell)
        length = computed.finish - computed.start
        lasts = length > 0
        start, finish, length = computed.start[lasts], computed.finish[lasts], length[lasts]
        dynamic = computed.dynamic[lasts] / (length * _TICK_NJ)
        begin, end = self.transfers(cell)
        ticks = np.concatenate([start, finish, begin, end])
        drawn, busy = np.zeros(len(ticks)), np.ones(len(ticks), np.int64)
        drawn[: len(length)], drawn[len(length) : 2 * len(length)] = dynamic, -dynamic
        busy[len(length) : 2 * len(length)], busy[2 * len(length) + len(begin) :] = -1, -1
        order = np.argsort(ticks, kind="stable")
        ticks = ticks[order]
        last = _last_at(ticks)
        level, active = np.cumsum(drawn[order])[last], np.cumsum(busy[order])[last] > 0
        found = level + np.where(active, energy.static_w, energy.idle_w)
        return np.concatenate([[0], ticks[last]]), np.concatenate([[energy.idle_w], found])

    def _curve(self, by_cell: Sequence[int], always_w: float, sent: int, end: int) -> tuple[PowerCurve, float]:
        """Mean power of all nodes in each step of the run, and the highest at any time."""
        if not end:
            return PowerCurve((), ()), 0.0
        edges = np.append(np.arange(CURVE_STEPS) * (end / CURVE_STEPS), end)
        total = np.full(CURVE_STEPS, always_w + sent / (end * _TICK_NJ))
        ticks: list[NDArray[np.int64]] = []
        change: list[NDArray[np.float64]] = []
        for cell, count in enumerate(self.lowered.count.tolist()):
            when, watts = self.watts(cell)
            until = np.append(when[1:], max(end, int(when[-1])))
            reached = np.concatenate([[0.0], np.cumsum(watts * (until - when))])
            total += count * np.diff(np.interp(edges, np.append(when, until[-1]), reached)) / (end / CURVE_STEPS)
            ticks.append(when)
            change.append((watts - np.append(0.0, watts[:-1])) * count)
        at, changes = np.concatenate(ticks), np.concatenate(change)
        if len(ticks) > 1:
            ticks.clear()  # of many cells they are large
            change.clear()
            order = np.argsort(at, kind="stable")
            at, changes = at[order], changes[order]
        peak = float(np.cumsum(changes)[_last_at(at)].max()) + always_w + sent / (end * _TICK_NJ)
        times = edges[:-1] / PICOSECONDS_PER_SECOND
        return PowerCurve(tuple(times.tolist()), tuple(total.tolist())), peak

    def _interval(
        self, parts: Mapping[str, int], idle: int, waiting: int, links: int, host: int, node: int, searched: float
    ) -> tuple[float, float]:
        """Ends of what the node takes: the constants of each kind err together, as do searches for mappings, different
        kinds independently."""
        assert self.draws is not None
        widest = {
            name: max(draw.energy.spreads[name] for draw in self.draws.values())
            for name in ("static", "idle", "flop", "memory", "cache")
        }
        flop = sum(amount for name, amount in parts.items() if name.endswith("FLOP"))
        moved = flop + parts.get("memory", 0) + parts.get("cache", 0)
        shares = (
            (parts.get("static", 0) + waiting, widest["static"]), (idle, widest["idle"]), (flop, widest["flop"]),
            (parts.get("memory", 0), widest["memory"]), (parts.get("cache", 0), widest["cache"]),
            (links - waiting, self.constants.get(LINK_SPREAD).spread if links > waiting else 0.0),
            (host, self.constants.get(HOST_SPREAD).spread if host else 0.0),
            (moved, searched / moved if moved else 0.0),
        )  # fmt: skip
        above = np.sqrt(sum((amount * np.expm1(width)) ** 2 for amount, width in shares))
        below = np.sqrt(sum((amount * -np.expm1(-width)) ** 2 for amount, width in shares))
        low, high = (float(max(x, 0.0)) / NANO / self.iterations for x in (node - below, node + above))
        return low, high

    def _sources(self) -> tuple[str, ...]:
        """Where the figures are from."""
        assert self.draws is not None
        devices = dict.fromkeys(f"energy: {draw.energy.source}" for draw in self.draws.values())
        return (*devices, *(f"energy: {words}" for words in self.constants.sources()))


def _last_at(ticks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of ascending ticks with another tick after them: of several changes at a tick the last holds."""
    return np.append(np.flatnonzero(ticks[1:] > ticks[:-1]), len(ticks) - 1)
