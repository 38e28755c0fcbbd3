"""Does a job fit in memory, and how large may its batch be?"""

from __future__ import annotations

from collections.abc import Callable

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.hardware.accelerator import Accelerator
from triosim.hardware.system import System
from triosim.plan import Plan
from triosim.prediction.prepare import CompiledJob, prepare
from triosim.trace.tables import Trace

CONTEXT_BYTES = {"gpu": 500 << 20}
"""What the framework's context takes on a device beside the tensors.  CUDA contexts of PyTorch processes take 300 to
600 MB by device and version (PyTorch forum and issue reports); none is counted for other kinds of device."""

LARGEST = 1 << 24
"""Multiples of the micro-batches beyond which nobody asks."""


@dataclass(frozen=True)
class TightestMemory:
    """The rank class that is nearest to its device's capacity, or furthest beyond it.

    Attributes:
        program: its row in the job's programs.
        needed_bytes: reserved memory and the framework's context.
        context_bytes: the latter.
        capacity_bytes: what the device has, None where not known.
    """

    program: int
    needed_bytes: int
    context_bytes: int
    capacity_bytes: int | None

    @property
    def fits(self) -> bool | None:
        """Whether it fits, None where the capacity is not known."""
        return None if self.capacity_bytes is None else self.needed_bytes <= self.capacity_bytes


def fullest(job: CompiledJob) -> TightestMemory:
    """The rank class that decides whether a job fits."""
    return max(
        (
            needed(number, footprint.reserved_bytes, job.system.model(int(job.assignment.devices[program.ranks.min()])))
            for number, (program, footprint) in enumerate(zip(job.programs, job.footprints, strict=True))
        ),
        key=lambda f: (f.fits is False, f.needed_bytes),
    )


def needed(program: int, reserved_bytes: int, device: Accelerator) -> TightestMemory:
    """What a program that reserves so much needs of a device."""
    context = CONTEXT_BYTES.get(device.kind, 0) if device.name else 0
    return TightestMemory(program, reserved_bytes + context, context, device.memory_bytes)


def largest_batch(workload: Trace, system: System, plan: Plan, job: CompiledJob) -> int:
    """The largest batch per replica that fits, 0 if none does; a multiple of the plan's micro-batches.

    Memory follows the batch nearly in proportion, so the next batch to try is interpolated between one that fits and
    one that does not; the answer is one that fits while the next one does not.

    Args:
        workload, system, plan: as of :func:`triosim.simulate`.
        job: the job prepared with them.

    Raises:
        InputError: the capacity of the devices is not known, or the workload cannot be taken to another batch.
    """
    first = fullest(job)
    if first.capacity_bytes is None:
        raise InputError("how large a batch fits cannot be told of a device without a capacity: name a --device")
    if workload.meta.batch_size is None:
        raise InputError(
            f"trace {workload.meta.workload!r} does not say its batch size, so none can be said to fit: give it with "
            "--trace-batch-size"
        )
    parts = job.mesh.micro_batches

    def beyond(multiple: int) -> int:
        """Bytes that are too much (negative: left over) at so many samples per micro-batch."""
        asked = plan.replaced(batch_size=multiple * parts, global_batch_size=None)
        found = fullest(prepare(workload, system, asked, job.fidelity))
        assert found.capacity_bytes is not None
        return found.needed_bytes - found.capacity_bytes

    return parts * last_that_fits(beyond, job.mesh.micro_batch_size, first.needed_bytes - first.capacity_bytes)


def last_that_fits(beyond: Callable[[int], int], start: int, at_start: int) -> int:
    """The largest number for which ``beyond`` is not positive, 0 if there is none; ``beyond`` grows.

    Args:
        beyond: how much too much a number is, about linear in it.
        start: a number, at least 1.
        at_start: its ``beyond``.
    """
    low: tuple[int, int] | None = (start, at_start) if at_start <= 0 else None
    high: tuple[int, int] | None = (start, at_start) if at_start > 0 else None
    before = None  # the number tried last but one from below, for the slope
    tries = 0
    while low is None or high is None or high[0] - low[0] > 1:
        tries += 1
        if low is None:
            if high is not None and high[0] == 1:
                return 0
            number = 1
        elif high is None:
            number = _ahead(before, low)
        elif tries % 3 == 0:
            number = (low[0] + high[0]) // 2
        else:
            number = low[0] + (high[0] - low[0]) * -low[1] // (high[1] - low[1])
            number = min(max(number, low[0] + 1), high[0] - 1)
        if high is None and number > LARGEST:
            return max(LARGEST, low[0]) if low is not None else LARGEST
        found = beyond(number)
        if found <= 0:
            before, low = low, (number, found)
        else:
            high = (number, found)
    return low[0]


def _ahead(before: tuple[int, int] | None, low: tuple[int, int]) -> int:
    """Where the line through two numbers that fit reaches zero, and one more; twice as far while there is one."""
    if before is None or low[1] <= before[1]:
        return 2 * low[0]
    slope = (low[1] - before[1]) / (low[0] - before[0])
    return max(low[0] + 1, min(int(low[0] - low[1] / slope) + 1, 64 * low[0]))
