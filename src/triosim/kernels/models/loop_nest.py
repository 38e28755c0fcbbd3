"""Operators on a device that is a design: each product, convolution and attention mapped once, the rest by vector unit.

Every distinct einsum is looked up or mapped (:func:`triosim.accelerator.designs.cost`), so that layers, iterations and
predictions that share it share its mapping.  What is no einsum takes the longer of its FLOP on the vector unit and its
bytes at the bandwidth of the memory.  A design launches nothing: there is no floor.

The interval is what the searches leave open: how far those side by side were apart, at most down to the cycles that
no mapping can beat.  How a chip that somebody builds of the design differs from it is not in it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from triosim.accelerator import designs
from triosim.accelerator.designs import EinsumCost, MappingSearch
from triosim.accelerator.reading import Contents
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.options import AtLeast
from triosim.core.registry import registered
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.classes import NOTHING, classify
from triosim.kernels.estimate import Estimates, Limit, OperatorJoules, Source
from triosim.kernels.model import OperatorModel, PricingJob
from triosim.kernels.models.physical import works
from triosim.kernels.work.einsums import Einsums, einsums_of
from triosim.trace.calls import unique_calls
from triosim.trace.tables import ITEM_BYTES, Trace


@registered
@dataclass(frozen=True)
class LoopNestModel(OperatorModel):
    """See the module's docstring.

    Attributes:
        objective: what a mapping is to have little of.
        budget: mappings that are tried for each einsum.
        seed: of all random choices.
        timing: see :mod:`triosim.accelerator.evaluate`.
    """

    objective: Literal["edp", "energy", "delay"] = "edp"
    budget: Annotated[int, AtLeast(1)] = 30_000
    seed: Annotated[int, AtLeast(0)] = 0
    timing: Literal["ideal", "bandwidth", "double-buffer"] = "bandwidth"

    def price(self, job: PricingJob) -> Estimates:
        """Seconds and joules of every operator of ``job.trace``; a recording is not looked at.

        Raises:
            InputError: the device is no design, or no mapping was found for an operator.
        """
        device = job.device
        if device.design is None:
            raise InputError(
                f"operator times of loop-nest need a design, which device {device.name or '(unnamed)'!r} is not: give "
                "--device FILE of one, or the name of a ready one (triosim accelerator show)"
            )
        found = designs.contents(device)
        calls, row = unique_calls(job.trace, np.ones(len(job.trace)))
        classified = classify(calls, device)
        columns = _DesignColumns(len(calls))
        mapped: dict[object, EinsumCost] = {}
        for name, at, work, times in works(calls, classified, np.ones(len(calls))):
            if name == "stream":
                self._moved(columns, calls, at, work.bytes(), work.written, device, found)
                continue
            for call, parts in zip(at.tolist(), einsums_of(name, work, times), strict=True):
                try:
                    self._mapped(columns, call, parts, found, device, mapped)
                except InputError as error:
                    raise InputError(f"{device.name}, {calls.operators.name[call]}: {error}") from None
            if name == "attention":
                self._softmax(columns, at, work.pairs(), device, found)
        columns.done(classified.group == NOTHING)
        return columns.taken(row, self._notes(found, len(mapped), calls, classified.dtype))

    def _mapped(
        self, to: _DesignColumns, call: int, parts: Einsums, found: Contents, device: Accelerator,
        mapped: dict[object, EinsumCost],
    ) -> None:  # fmt: skip
        """Adds the einsums of one call."""
        assert device.clock_hz is not None
        how = MappingSearch(self.objective, self.budget, self.seed, self.timing)
        bound: dict[bool, float] = {True: 0.0, False: 0.0}
        for problem, times in parts:
            key = (problem.dimensions, problem.bounds, problem.tensors)
            if key not in mapped:
                mapped[key] = designs.cost(found, problem, how)
            one = mapped[key]
            seconds = times * one.cycles / device.clock_hz
            to.seconds[call] += seconds
            to.open[call] += seconds * one.open
            joules = one.compute_j, one.chip_j, one.memory_j, one.energy_j * one.open_j
            to.joules[:, call] += times * np.array(joules)
            bound[one.binds == "compute"] += seconds
        to.limit[call] = Limit.COMPUTE if bound[True] >= bound[False] else Limit.MEMORY

    def _moved(
        self, to: _DesignColumns, calls: Trace, at: NDArray[np.int64], moved: NDArray[np.float64],
        written: NDArray[np.float64], device: Accelerator, found: Contents,
    ) -> None:  # fmt: skip
        """What is no einsum: FLOP, or an operation for each element that is written where none are counted."""
        assert device.design is not None
        assert device.memory_bandwidth is not None
        assert device.clock_hz is not None
        item = np.array([_item(calls, row) for row in at.tolist()])
        flop = np.maximum(np.nan_to_num(calls.operators.flop[at]), written / item)
        computes, moves = flop / device.design.vector_flops, moved / device.memory_bandwidth
        to.seconds[at] = np.maximum(computes, moves)
        to.limit[at] = np.where(computes > moves, Limit.COMPUTE, Limit.MEMORY)
        takes = designs.joules(found, device.clock_hz)
        to.joules[0, at] = flop * takes.compute_j
        to.joules[2, at] = moved / takes.word_bytes * takes.word_j

    def _softmax(
        self,
        to: _DesignColumns,
        at: NDArray[np.int64],
        pairs: NDArray[np.float64],
        device: Accelerator,
        found: Contents,
    ) -> None:
        """The softmax between the products of attention: :data:`SOFTMAX_FLOP` for each pair of query and key."""
        assert device.design is not None
        assert device.clock_hz is not None
        flop = SOFTMAX_FLOP * pairs
        to.seconds[at] += flop / device.design.vector_flops
        to.joules[0, at] += flop * designs.joules(found, device.clock_hz).compute_j

    def _notes(self, found: Contents, count: int, calls: Trace, dtype: NDArray[np.int8]) -> tuple[str, ...]:
        """What a reader should know."""
        if found.array is not None:
            how = f"{count} different einsums by the closed form of the systolic array"
        else:
            how = (
                f"{count} different einsums, each with the best of {self.budget:,} mappings for {self.objective} (seed "
                f"{self.seed}); the interval is what the searches leave open"
            )
        types = np.unique(ITEM_BYTES[dtype[dtype >= 0]]).tolist()
        bits = 8 * found.array.word_bytes if found.array is not None else found.design.stores[0].word_bits
        other = [f"{8 * size:g}" for size in types if 8 * size != bits]
        words = [f"design: elements of {' and '.join(other)} bits are words of {bits} in its products"] if other else []
        return (f"loop nests: {how}", *words)


SOFTMAX_FLOP = 5.0
"""Of each score: the largest, a difference, an exponential, a sum, a division."""


class _DesignColumns:
    """Estimates of different calls while they are made."""

    def __init__(self, count: int) -> None:
        self.seconds = np.zeros(count)
        self.open = np.zeros(count)  # seconds x half-width
        self.joules = np.zeros((4, count))  # of OperatorJoules
        self.limit = np.full(count, Limit.UNKNOWN, np.int8)

    def done(self, nothing: NDArray[np.bool_]) -> None:
        """Operators that launch nothing take nothing."""
        for column in (self.seconds, self.open, *self.joules):
            column[nothing] = 0.0
        self.limit[nothing] = Limit.UNKNOWN

    def taken(self, row: NDArray[np.int64], notes: tuple[str, ...]) -> Estimates:
        """All operators."""
        spread = np.divide(self.open, self.seconds, out=np.zeros_like(self.open), where=self.seconds > 0)
        source = np.where(self.seconds > 0, Source.DESIGN, Source.NOTHING).astype(np.int8)
        return Estimates(
            self.seconds[row], spread[row], source[row], self.limit[row], notes,
            joules=OperatorJoules(*(column[row] for column in self.joules)),
        )  # fmt: skip


def _item(calls: Trace, row: int) -> float:
    """Bytes of an element of what an operator writes."""
    outputs = calls.operators.outputs[row]
    return float(ITEM_BYTES[calls.values.dtype[outputs[0]]]) if len(outputs) else 4.0
