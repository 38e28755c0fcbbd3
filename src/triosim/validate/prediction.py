"""From what was measured of one process and of the machine to what a parallel job takes.

A job's time on a rank has three parts::

    compute        operators of the rank's share of the step, from the recorded trace (:func:`triosim.simulate`)
    communication  what is sent, of the same simulation, at the measured seconds of that kind and size
    software       copies between gradients, parameters and buffers (bytes of the same simulation at the measured rate),
                   and what the framework needs to run the mode at all

The last is found on three small networks (:func:`triosim.validate.sizes.nulls`): what they take beyond the rest is the
mode's own, a constant, a part for every block and, where it sends parameters or gradients, a part for every byte of
them (:class:`SoftwareOverhead`).  No network that is judged is used for it.

Processor time counts all communication, whatever it overlaps.  Time on the wall is the simulation's iteration time,
where communication and computation overlap only if there are processors for both.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from triosim.collectives.measured import MeasuredCollectives, Table
from triosim.core.dataclass import dataclass
from triosim.fidelity import Fidelity
from triosim.hardware import build
from triosim.hardware.system import Link
from triosim.plan import Plan
from triosim.prediction.result import Result
from triosim.prediction.simulate import simulate
from triosim.schedule.program import Op
from triosim.trace.tables import Category, Phase, Trace
from triosim.validate.measured import MeasuredMachine, MeasuredNetwork
from triosim.validate.sizes import ALONE, MICRO_BATCHES, MODES, PARTS, PIPELINES, TP_PLAN, stage_starts

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")

SENDS_PARAMETERS = ("ddp", "fsdp2")
"""Modes that send parameters or their gradients, and so do something for each byte of them; the others send
activations, and what a pipeline adds up and scales is among the copies."""

SOFTWARE_SPREAD = 0.3
"""Logarithm of the 90 % interval's factor of a mode's software and copies, which are read off small networks; how often
the intervals hold is printed with every validation."""

COMPOSITION_SPREAD = 0.05
"""The same of a whole step: what is recorded operator by operator, and beside other processes, does not add up to
better than this."""


@dataclass(frozen=True)
class RankTimes:
    """What one rank of a job takes, seconds.

    Attributes:
        compute, communication, software: the parts; those of a time on the wall overlap.
        total: the prediction.
        spread: logarithm of its 90 % interval's factor.
    """

    compute: float
    communication: float
    software: float
    total: float
    spread: float


@dataclass(frozen=True)
class RankShare:
    """What a rank takes before the mode's own software, seconds, and what that software grows with.

    Attributes:
        compute, communication, copies: the parts.
        total: what they take together.
        spread: logarithm of the 90 % interval's factor of the operator times.
        blocks: on this rank.
        held: bytes of the parameters that it works with.
    """

    compute: float
    communication: float
    copies: float
    total: float
    spread: float
    blocks: int
    held: int


@dataclass(frozen=True)
class SoftwareOverhead:
    """What a mode takes beyond computation, communication and copies.

    Attributes:
        fixed_s, block_s, byte_s: of a step, of each block, of each byte of parameters (where the mode sends parameters
            or their gradients); none below zero.
    """

    fixed_s: float = 0.0
    block_s: float = 0.0
    byte_s: float = 0.0

    def __call__(self, blocks: float, held: float) -> float:
        """Seconds of a rank with so many blocks and bytes of parameters."""
        return self.fixed_s + self.block_s * blocks + self.byte_s * held

    @staticmethod
    def through(
        few: tuple[float, float, float], many: tuple[float, float, float], wide: tuple[float, float, float]
    ) -> SoftwareOverhead:
        """From what is left of three networks: (blocks, bytes, seconds) of each; the first two are next to nothing."""
        (x, _, left), (y, _, right), (z, held, rest) = few, many, wide
        block = max((right - left) / (y - x), 0.0)
        fixed = max(left - block * x, 0.0)
        return SoftwareOverhead(fixed, block, max(rest - fixed - block * z, 0.0) / held)


EVERY_RANK = Fidelity(fold=False)


def plan_of(mode: str, machine: MeasuredMachine, network: MeasuredNetwork, overlap: bool) -> Plan:
    """The plan that a mode is."""
    n = machine.processes
    if mode == "tp":
        return Plan(tp=n, tp_plan=dict(TP_PLAN), overlap=overlap)
    if mode in PIPELINES:
        starts = stage_starts(network.layers, n)[1:-1]
        return Plan(
            dp=1, pp=n, micro_batches=MICRO_BATCHES, batch_size=network.whole.meta.batch_size, schedule=mode,
            stages=tuple(f"blocks.{start}" for start in starts), overlap=overlap,
        )  # fmt: skip
    return Plan(dp=n, overlap=overlap, **({"zero": 3} if mode == "fsdp2" else {}))


class Predictor:
    """Predicts jobs on one machine.

    Args:
        machine: as measured.
        nulls: the three small networks, run in every mode that is to be predicted.
        quantity: ``"cpu_s"`` or ``"wall_s"``.
    """

    def __init__(
        self, machine: MeasuredMachine, nulls: tuple[MeasuredNetwork, MeasuredNetwork, MeasuredNetwork], quantity: str
    ) -> None:
        self.machine, self.quantity = machine, quantity
        n = machine.processes
        self.tables = {
            kind: Table.of({size: float(series.median(quantity).mean()) for size, series in sizes.items()})
            for kind, sizes in machine.tables.items()
        }
        self.measured = MeasuredCollectives(
            n, {k: t for k, t in self.tables.items() if k in (*COLLECTIVES, "send")}, "measured between the processes"
        )
        self.system = build.flat(devices=n, link=Link(np.inf))
        self.software = {
            mode: self._software(mode, *nulls) for mode in nulls[0].series if mode in MODES
        }  # fmt: skip

    def __call__(self, mode: str, network: MeasuredNetwork) -> list[RankTimes]:
        """What each rank takes."""
        pairs = zip(self._shares(mode, network), self.software[mode], strict=True)
        return [self._whole(share, software, network) for share, software in pairs]

    # --- parts -------------------------------------------------------------------------------------------------------

    def _software(self, mode: str, *nulls: MeasuredNetwork) -> list[SoftwareOverhead]:
        """Of each rank: stages of a pipeline have different things to do, all others have the same."""
        left, grows = [], []
        for network in nulls:
            shares = self._shares(mode, network)
            rest = network.series[mode].median(self.quantity) - [share.total for share in shares]
            left.append(rest if mode in PIPELINES else np.full(len(rest), rest.mean()))
            grows.append([(share.blocks, share.held) for share in shares])
        found = [
            SoftwareOverhead.through(*((*grows[i][rank], float(left[i][rank])) for i in range(len(nulls))))
            for rank in range(self.machine.processes)
        ]
        return found if mode in SENDS_PARAMETERS else [replace(one, byte_s=0.0) for one in found]

    def _shares(self, mode: str, network: MeasuredNetwork) -> list[RankShare]:
        trace = self._trace(mode, network)
        overlaps = self.machine.device == "cuda" or self.machine.cores >= 2 * self.machine.processes
        every = simulate(
            trace, self.system, plan_of(mode, self.machine, network, True), EVERY_RANK, measured=self.measured
        )
        whole = every
        if self.quantity == "wall_s" and not overlaps:
            whole = simulate(
                trace, self.system, plan_of(mode, self.machine, network, False), EVERY_RANK, measured=self.measured
            )
        blocks = self._blocks(mode, network)
        return [self._share(rank, blocks[rank], every, whole, trace, mode) for rank in range(self.machine.processes)]

    def _blocks(self, mode: str, network: MeasuredNetwork) -> list[int]:
        n = self.machine.processes
        if mode not in PIPELINES:
            return [network.layers] * n
        starts = stage_starts(network.layers, n)
        return [last - first for first, last in pairwise(starts)]

    def _trace(self, mode: str, network: MeasuredNetwork) -> Trace:
        """The recorded step with its times brought to what the step takes in the rounds.

        On a CPU what a step takes beyond its operators (dispatch, the engine of the backward pass) is shared out evenly
        among them, and where observing has slowed them down they are brought back to the step as it was without; on a
        GPU the host is simulated.  The drift between recording and rounds is a factor.
        """
        in_parts = mode in PIPELINES and network.part is not None
        trace = network.part if in_parts and network.part is not None else network.whole
        operators, total = trace.operators, trace.device_time()
        runs = operators.device_s > 0
        step = trace.meta.step_time_s or total
        added, slowed = 0.0, 1.0
        if self.machine.device == "cpu" and total:
            added, slowed = max(step - total, 0.0) / int(runs.sum()), min(step / total, 1.0)
        seconds = np.where(runs, operators.device_s * slowed + added, operators.device_s)
        seconds *= self._now(network, in_parts) / self._recorded(trace, seconds, in_parts)
        # one thread is not the processor that a datasheet describes: recorded times stay the only source
        name = "" if self.machine.device == "cpu" else trace.meta.device
        return replace(trace, meta=replace(trace.meta, device=name), operators=replace(operators, device_s=seconds))

    def _now(self, network: MeasuredNetwork, in_parts: bool) -> float:
        """What the recorded operators take in the rounds: of a step in micro-batches without adding up gradients."""
        now = float(network.series[PARTS if in_parts else ALONE].median(self.quantity).mean())
        if not in_parts:
            return now
        held = _weights(network.whole, np.arange(len(network.whole), dtype=np.int32))
        return now - (MICRO_BATCHES - 1) * self.tables["accumulate"](held)

    def _recorded(self, trace: Trace, seconds: NDArray[np.float64], in_parts: bool) -> float:
        """What they took when they were recorded; of a step in micro-batches all but the optimizer several times."""
        if self.machine.device != "cpu":
            seconds = seconds * (trace.meta.step_time_s or trace.device_time()) / trace.device_time()
        times = np.where(trace.operators.phase == Phase.OPTIMIZER, 1, MICRO_BATCHES) if in_parts else 1
        return float(np.nansum(seconds * times))

    def _share(self, rank: int, blocks: int, every: Result, whole: Result, trace: Trace, mode: str) -> RankShare:
        slices, names = every.timeline.slices, every.timeline.names
        mine = np.flatnonzero(slices.rank == rank)
        op, size, length = slices.op[mine], slices.bytes[mine], (slices.end - slices.start)[mine]
        compute = float(length[op == Op.COMPUTE].sum())
        held = _weights(trace, slices.operator[mine][op == Op.COMPUTE])
        communication = copies = 0.0
        for row in np.flatnonzero(np.isin(op, (Op.COLLECTIVE, Op.SEND, Op.RECEIVE))).tolist():
            kind, amount = names[slices.name[mine[row]]], int(size[row])
            communication += self.tables[kind](amount)
            copies += self._copies(kind, amount, mode)
        if mode in PIPELINES:
            copies += (MICRO_BATCHES - 1) * self.tables["accumulate"](held) + self.tables["scale"](held)
        total = compute + communication + copies
        if self.quantity == "wall_s":
            total = whole.iteration_time_s + copies
        spread = float(np.log(every.interval_s[1] / every.iteration_time_s)) if every.iteration_time_s else 0.0
        return RankShare(compute, communication, copies, total, spread, blocks, held)

    def _copies(self, kind: str, size: int, mode: str) -> float:
        """Seconds of what is copied around a collective of ``size`` bytes.

        DDP copies every gradient into its bucket, scaled, and back; FSDP2 copies a shard into the all-gather's buffer
        and the gathered parameters out of it, gradients into the reduce-scatter's, and scales the shard that comes; a
        functional all-reduce works on a copy.  On a device with a datasheet the simulation counts FSDP2's itself.
        """
        copy, scale, part = self.tables["copy"], self.tables["scale"], size / self.machine.processes
        if mode == "ddp":
            return 2 * copy(size)
        if mode == "fsdp2" and self.machine.device == "cuda":
            return 0.0
        if kind == "all_gather":
            return copy(part) + copy(size)
        if kind == "reduce_scatter":
            return copy(size) + scale(part)
        return copy(size) if kind == "all_reduce" else 0.0

    def _whole(self, share: RankShare, software: SoftwareOverhead, network: MeasuredNetwork) -> RankTimes:
        """With the mode's own software and the whole interval."""
        own = software(share.blocks, share.held)
        total = share.total + own
        parts = (
            share.compute * share.spread,
            share.communication * self._communication_spread(),
            (share.copies + own) * SOFTWARE_SPREAD,
        )
        spread = float(
            np.hypot.reduce([*(part / total for part in parts), self._baseline_spread(network), COMPOSITION_SPREAD])
        )
        return RankTimes(share.compute, share.communication, share.copies + own, total, spread)

    def _communication_spread(self) -> float:
        """Of the tables: the median over kinds and sizes of what a round differs by."""
        found = [s.spread(self.quantity) for k in self.measured.tables for s in self.machine.tables[k].values()]
        return float(np.median(found)) if found else 0.0

    def _baseline_spread(self, network: MeasuredNetwork) -> float:
        """Of the step by itself, which everything is scaled to."""
        return network.series[ALONE].median_spread(self.quantity)


def _weights(trace: Trace, operators: NDArray[np.int32]) -> int:
    """Bytes of the parameters that some forward operators read; rows below zero are no operators of the trace."""
    operators = operators[operators >= 0]
    values = trace.values
    size, storage = values.bytes(), values.storage
    forward = operators[trace.operators.phase[operators] == Phase.FORWARD]
    read = np.unique(trace.operators.inputs.take(np.unique(forward)).values)
    weights = read[values.category[read] == Category.WEIGHT]
    _, first = np.unique(storage[weights], return_index=True)
    return int(size[weights[first]].sum())
