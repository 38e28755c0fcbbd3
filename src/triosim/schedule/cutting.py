"""Where a step may be cut into pipeline stages, and where it is: by name, in equal blocks or in equal time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.schedule.bottleneck import bottleneck, lightest
from triosim.schedule.crossing import CrossingTensor, crossing_items
from triosim.stacks import BALANCED, EVEN_WITH_ENDS
from triosim.trace.blocks import blocks
from triosim.trace.tables import Phase, Trace

NARROW_TOLERANCE = 1.1
"""Cuts where the fewest tensors cross are preferred while the slowest stage grows by at most this factor."""


def named_cuts(trace: Trace, forward: NDArray[np.int64], begins: Sequence[str]) -> list[int]:
    """Places among the forward operators at which named modules begin.

    Args:
        trace: one rank's step.
        forward: its forward operators, shape ``(n,)``.
        begins: paths of the modules, in running order.

    Raises:
        PlanError: a module does not run, or not after the one before.
    """
    paths = trace.modules.path
    cuts: list[int] = []
    for name in begins:
        rows = [
            i
            for i, row in enumerate(forward.tolist())
            if trace.operators.module[row] >= 0
            and (
                paths[trace.operators.module[row]] == name or paths[trace.operators.module[row]].startswith(name + ".")
            )
        ]
        if not rows:
            raise PlanError(
                f"stages: no module {name!r} runs in {trace.meta.workload!r}; modules are {', '.join(paths[:12])}, ..."
            )
        if rows[0] <= (cuts[-1] if cuts else 0):
            raise PlanError(
                f"stages: module {name!r} runs before the stage that it should follow; "
                "name the modules in running order"
            )
        cuts.append(rows[0])
    return cuts


@dataclass(frozen=True)
class CutCandidates:
    """What is known of the forward operators of a step where it is to be cut; ``n`` of them, in order.

    Attributes:
        work: seconds of each with its backward, on devices of one kind, or of each stage; shape ``(1 or stages, n)``.
        crossing: bytes that would be sent if a stage began with an operator, shape ``(n,)``.
        tensors: how many values they are in, shape ``(n,)``.
        cuttable: whether a stage may begin there, shape ``(n,)``.
        block: the block that each is in, -1 for none, shape ``(n,)`` (:mod:`triosim.trace.blocks`).
        issued: seconds that the host takes for each with its backward, beside its device, shape ``(n,)``; None: none.
    """

    work: NDArray[np.float64]
    crossing: NDArray[np.float64]
    tensors: NDArray[np.int64]
    cuttable: NDArray[np.bool_]
    block: NDArray[np.int64]
    issued: NDArray[np.float64] | None = None


def cutting(
    trace: Trace, seconds: NDArray[np.float64], homes: Trace | None = None, issue_s: NDArray[np.float64] | None = None
) -> CutCandidates:
    """What is known of a step where it is to be cut; arguments as of :func:`split`."""
    forward = np.flatnonzero(trace.operators.phase == Phase.FORWARD)
    return candidates(trace, seconds, forward, crossing_items(trace if homes is None else homes), issue_s)


def candidates(
    trace: Trace,
    seconds: NDArray[np.float64],
    forward: NDArray[np.int64],
    items: Sequence[CrossingTensor],
    issue_s: NDArray[np.float64] | None = None,
) -> CutCandidates:
    """As :func:`cutting`, of forward operators and crossing tensors that are known."""
    different = np.atleast_2d(seconds)  # (1 or count, operators)
    different = different[:1] if bool((different == different[0]).all()) else different
    hosted = False
    if issue_s is not None and issue_s.any():
        different, hosted = np.concatenate([different, issue_s[None]]), True
    work = different[:, forward]
    position = np.full(len(trace), -1, np.int64)
    position[forward] = np.arange(len(forward))
    backward = np.flatnonzero((trace.operators.phase != Phase.FORWARD) & (trace.operators.forward >= 0))
    of = position[trace.operators.forward[backward]]
    for row, own in zip(work, different, strict=True):
        np.add.at(row, of, own[backward])
    n = len(forward)
    size = np.array([item.bytes for item in items], np.float64)
    begin = position[[item.made for item in items]] + 1
    end = position[[item.reads[-1] for item in items]] + 1
    crossing = np.cumsum(np.bincount(begin, size, n + 2) - np.bincount(end, size, n + 2))[:n]
    tensors = np.cumsum(np.bincount(begin, minlength=n + 2) - np.bincount(end, minlength=n + 2))[:n]
    cuttable = ~trace.operators.view[forward] & (tensors > 0)
    cuttable[:1] = False
    block = blocks(trace).of(trace)[forward].astype(np.int64)
    work, issued = (work[:-1], work[-1]) if hosted else (work, None)
    return CutCandidates(work, crossing, tensors, cuttable, block, issued)


def where_to_cut(
    of: CutCandidates, count: int, how: str, seconds_per_byte: float, workload: str = "", turns: int = 1
) -> list[int]:
    """Where the stages after the first begin: places among the forward operators.

    Args:
        of: what is known of the operators.
        count: number of stages.
        how: one of :data:`triosim.stacks.CUTS`; time is balanced too where there are fewer blocks than stages.
        seconds_per_byte: what sending a byte to the next stage costs.
        workload: its name, for people.
        turns: micro-batches that go through the stages; says what waits for the slowest of unequal devices.

    Raises:
        PlanError: there are fewer operators than stages.
    """
    even = None if how == BALANCED else even_cuts(of.block, count, with_ends=how == EVEN_WITH_ENDS)
    if even is not None:
        return even
    found = _balanced_cuts(of, count, seconds_per_byte, workload)
    if of.issued is None or len(of.work) == 1:
        return found
    by_devices = _balanced_cuts(replace(of, issued=None), count, seconds_per_byte, workload)
    return min(by_devices, found, key=lambda cuts: _filled_and_run(of, cuts, turns))


def _filled_and_run(of: CutCandidates, cuts: Sequence[int], turns: int) -> float:
    """Seconds until so many micro-batches have gone through stages, about.

    The first takes what all devices take together, for hosts have issued what waits for it; each of the others comes
    as long after it as the slowest device or host takes.
    """
    begins = [0, *cuts]
    rows = np.minimum(np.arange(len(begins)), len(of.work) - 1)
    devices = np.add.reduceat(of.work, begins, axis=1)[rows, np.arange(len(begins))]
    hosts = np.zeros(1) if of.issued is None else np.add.reduceat(of.issued, begins)
    return float(devices.sum() + (turns - 1) * max(devices.max(), hosts.max()))


def even_cuts(block: NDArray[np.int64], count: int, with_ends: bool) -> list[int] | None:
    """Places at which stages of equally many blocks begin; None where there are too few blocks.

    Where the number does not divide, the two ends count as a block each if that does (as the 126 layers of
    Llama-3.1-405B on 16 stages); else the first stages have one more.

    Args:
        block: of each forward operator the block that it is in, -1 for none, shape ``(n,)``.
        count: number of stages.
        with_ends: whether the two ends count as a block each in any case.
    """
    anew = np.append(True, block[1:] != block[:-1])
    begins = np.flatnonzero(anew & (block >= 0))
    after = np.flatnonzero(anew & (block < 0))
    layers = len(begins)
    with_ends = with_ends or (layers % count > 0 and (layers + 2) % count == 0)
    least, more = divmod(layers + 2 * with_ends, count)
    ends = np.cumsum(least + (np.arange(count) < more))[:-1] - with_ends  # blocks up to the end of each stage
    last = after[after > begins[-1]] if layers else after
    if not least or (len(ends) and ends[-1] >= layers and not len(last)):
        return None
    return [int(begins[end]) if end < layers else int(last[0]) for end in ends.tolist()]


def _between_blocks(of: CutCandidates, count: int, workload: str) -> list[int]:
    """Places where a stage may begin.

    Blocks are not cut through, nor is what comes before, between and after them (nobody sends logits to another stage,
    for its loss), where there are enough of them.
    """
    real, anew = np.flatnonzero(of.cuttable), np.append(True, of.block[1:] != of.block[:-1])
    run = np.cumsum(anew)[real]
    edges = real[np.append(run[:1] > 1, run[1:] != run[:-1])[: len(real)]]  # the first of each run where one may cut
    between = np.union1d(edges, real[of.block[real] < 0])
    for places in (edges, between, real, np.arange(1, len(of.block))):
        if len(places) >= count - 1:
            return places.tolist()
    n = len(of.block)
    raise PlanError(
        f"pp {count} needs at least {count} forward operators, but {workload!r} has {n}: use pp {n} or less"
    )


def _balanced_cuts(of: CutCandidates, count: int, seconds_per_byte: float, workload: str) -> list[int]:
    """The slowest stage, its sends and its host included, is as fast as possible, and among equals the fewest bytes
    cross."""
    n = len(of.cuttable)
    real = _between_blocks(of, count, workload)
    sums = np.concatenate([np.zeros((len(of.work), 1)), np.cumsum(of.work, axis=1)], axis=1)
    before = np.broadcast_to(sums, (count, n + 1))
    cost = of.crossing * seconds_per_byte  # one way: a value goes while a gradient comes
    issued = None if of.issued is None else np.concatenate([[0.0], np.cumsum(of.issued)])
    best = bottleneck(before, cost, real, issued)
    fewest = min(int(of.tensors[p]) for p in real)
    narrow = [p for p in real if of.tensors[p] == fewest]
    if len(narrow) >= count - 1:
        limit = bottleneck(before, cost, narrow, issued)
        if limit <= best * NARROW_TOLERANCE:
            real, best = narrow, limit
    return lightest(before, of.crossing, [p for p in real if cost[p] <= best * (1 + 1e-9)], best, issued)
