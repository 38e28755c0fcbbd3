"""The einsums of a whole workload: what a design has to map, each that differs once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from triosim.accelerator.problem import Problem
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.classes import classify
from triosim.kernels.models.physical import works
from triosim.kernels.work.einsums import Einsums, einsums_of
from triosim.trace.calls import unique_calls
from triosim.trace.tables import Trace


def layers(trace: Trace, device: Accelerator) -> list[tuple[Problem, float]]:
    """The einsums that differ, in order of first use, and how often each runs in the trace; each is named after the
    operator that runs it first.

    Args:
        trace: the workload.
        device: that types of elements are told for.
    """
    calls, row = unique_calls(trace, np.ones(len(trace)))
    often = np.bincount(row, minlength=len(calls))
    _, first = np.unique(row, return_index=True)
    found: dict[object, tuple[Problem, float]] = {}
    for call, parts in sorted(_parts(calls, device), key=lambda one: int(first[one[0]])):
        for problem, times in parts:
            key = (problem.dimensions, problem.bounds, problem.tensors)
            known, before = found.get(key, (replace(problem, name=calls.operators.name[call]), 0.0))
            found[key] = known, before + times * float(often[call])
    return list(found.values())


def _parts(calls: Trace, device: Accelerator) -> Iterator[tuple[int, Einsums]]:
    for name, at, work, times in works(calls, classify(calls, device), np.ones(len(calls))):
        if name != "stream":
            yield from zip(at.tolist(), einsums_of(name, work, times), strict=True)
