"""A recorded step played again from its own kernels and host costs: what composition adds to operator times.

Nothing is taken from the recording but durations and order: each operator takes the time of its kernels (copies and
memsets included), costs the host what it cost, and waits for the device where the host waited; communication kernels
take as long as they did, waiting for peers included, on a stream of their own.  How far the step so played is from the
measured one is the error of composition alone.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from triosim.composition.host import host
from triosim.composition.issuing import launch
from triosim.schedule.program import COMPUTE, DP, Op, Program, ProgramBuilder
from triosim.trace.builder import TraceBuilder
from triosim.trace.tables import NONE, Phase, Trace


def recorded(trace: Trace, iterations: int = 1) -> Program:
    """The program of a device that runs a recorded step again, with the host's work.

    Args:
        trace: a step with host times.
        iterations: how often, one after the other.

    Raises:
        InputError: the trace has no host times.
    """
    chain, streams, needs = _chain(trace)
    builder = ProgramBuilder(0, np.zeros(1, np.int32))
    seconds, skipped = chain.operators.device_s.tolist(), chain.operators.view.tolist()
    for iteration in range(iterations):
        builder.iteration = iteration
        at: dict[int, int] = {}
        last = NONE
        for row, stream in enumerate(streams):
            if skipped[row]:
                continue
            before = [at[needed] for needed in needs[row]]
            if stream != COMPUTE and last != NONE:  # communication sends what was computed before it
                before.append(last)
            at[row] = builder.add(Op.COMPUTE, stream, operator=row, seconds=seconds[row], before=before)
            last = at[row] if stream == COMPUTE else last
    return launch([builder.build()], chain, host(chain, "recorded"))[0]


def _chain(trace: Trace) -> tuple[Trace, list[int], dict[int, list[int]]]:
    """The step's operators and communication kernels in the order in which they were launched.

    Returns them as a trace without tensors, the stream of each, and for each the communications that it waits for.
    """
    operators, told, kernels = trace.operators, trace.communications, trace.kernels
    seconds = np.nan_to_num(operators.device_s)
    if len(kernels):
        own = np.bincount(kernels.operator, kernels.device_s, len(trace))
        seconds = np.where(np.bincount(kernels.operator, minlength=len(trace)) > 0, own, seconds)
    arriving: dict[int, list[int]] = defaultdict(list)
    for number, row in enumerate(told.operator.tolist()):
        arriving[row].append(number)
    builder = TraceBuilder()
    streams: list[int] = []
    needs: dict[int, list[int]] = defaultdict(list)
    waiting: dict[int, list[int]] = defaultdict(list)

    def add(name: str, phase: int, device_s: float, host_s: float, stream: int, view: bool, sync: bool) -> int:
        row = builder.operator(
            name, [], [], roles=[], phase=Phase(phase), device_s=device_s, host_s=host_s, view=view, sync=sync
        )
        streams.append(stream)
        return row

    phases = operators.phase.tolist()
    for row in range(len(trace) + 1):
        for number in arriving[row]:
            phase = phases[min(row, len(trace) - 1)]
            cost = float(np.nan_to_num(told.host_s[number]))
            new = add(told.name[number], phase, float(told.device_s[number]), cost, DP, False, False)
            waiting[int(told.needed[number])].append(new)
        if row < len(trace):
            idle = not seconds[row] and bool(operators.view[row])
            new = add(
                operators.name[row], phases[row], float(seconds[row]), float(np.nan_to_num(operators.host_s[row])),
                COMPUTE, idle, bool(operators.sync[row]),
            )  # fmt: skip
            needs[new] = waiting.pop(row, [])
    meta = replace(trace.meta, notes=())
    return builder.build(meta), streams, needs
