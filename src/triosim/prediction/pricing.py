"""The second stage of a prediction: what every operator takes, on each kind of device that takes part, for minutes."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.fidelity import Fidelity
from triosim.kernels.estimate import Estimates, OperatorJoules
from triosim.kernels.model import PricingJob
from triosim.kernels.pricing import price
from triosim.kernels.sustained import sustained
from triosim.prediction.partitioning import ShortStepSource
from triosim.trace.calls import only

BY_CALL = ("auto", "physical", "roofline", "loop-nest")
"""Operator models that price a call, where nothing was recorded, by nothing but the call."""


def priced(job: PricingJob, fidelity: Fidelity, short: ShortStepSource | None) -> Estimates:
    """Operator times of a job.

    Args:
        job: what is to be priced.
        fidelity: with which model.
        short: what the step was repeated from: then each kind of block is priced once.

    Raises:
        InputError: as of :func:`triosim.kernels.pricing.price`.
    """
    alike = short is not None and job.recorded_on is None and not job.others
    if short is None or not alike or fidelity.operator_times not in BY_CALL:
        return _lasting(job, fidelity)
    return _priced_once(job, fidelity, short)


def _lasting(job: PricingJob, fidelity: Fidelity) -> Estimates:
    """Operator times of a job as they are when the device has run for minutes."""
    return sustained(job.trace, job.device, price(job, fidelity.operator_times, fidelity.operator_options))


def priced_rows(job: PricingJob, fidelity: Fidelity, rows: NDArray[np.int64]) -> Estimates:
    """Times of some operators of a job by themselves.

    Raises:
        InputError: as of :func:`priced`.
    """
    return _lasting(replace(job, trace=only(job.trace, rows), recorded=only(job.recorded, rows)), fidelity)


def in_fused_kernels(times: Estimates, job: PricingJob, fidelity: Fidelity, in_convolutions: bool) -> Estimates:
    """Operator times where chains of elementwise operators are one kernel each, whose time its last operator takes.

    Args:
        times: of the operators by themselves.
        job, fidelity: as of :func:`priced`.
        in_convolutions: whether convolutions take part of batch norms.

    Raises:
        InputError: as of :func:`priced`.
    """
    from triosim.composition.pointwise import fused_kernels  # few stacks compile

    kernels = fused_kernels(job.trace, in_convolutions)
    if not kernels.rows.size:
        return times
    own = _lasting(replace(job, trace=kernels.trace, recorded=kernels.trace), fidelity)
    seconds, joules = times.seconds.copy(), times.joules
    seconds[kernels.inside] = 0.0
    seconds[kernels.rows] = own.seconds
    columns: dict[str, Any] = {"seconds": seconds}
    for name in ("spread", "source", "limit"):
        columns[name] = getattr(times, name).copy()
        columns[name][kernels.rows] = getattr(own, name)
    if times.clock is not None and own.clock is not None:
        columns["clock"] = times.clock.copy()
        columns["clock"][kernels.rows] = own.clock
    if joules is not None and own.joules is not None:
        each = {field.name: getattr(joules, field.name).copy() for field in fields(joules)}
        for name, column in each.items():
            column[kernels.inside] = 0.0
            column[kernels.rows] = getattr(own.joules, name)
        joules = OperatorJoules(**each)
    return replace(times, **columns, joules=joules)


@kept(32)
def _priced_once(job: PricingJob, fidelity: Fidelity, short: ShortStepSource) -> Estimates:
    """Operator times of the long step from those of the short one; what spans all blocks is priced by itself."""
    few = _lasting(replace(job, trace=short.step.trace, recorded=short.workload), fidelity)
    source, rows = short.of_long.source, short.of_long.spanning
    names = ["seconds", "spread", "source", "limit", *(["clock"] if few.clock is not None else [])]
    columns: dict[str, Any] = {name: getattr(few, name)[source] for name in names}
    joules = None if few.joules is None else few.joules.take(source)
    if rows.size:
        own = priced_rows(job, fidelity, rows)
        if not set(own.notes) <= set(few.notes) or not set(own.warnings) <= set(few.warnings):
            return _lasting(job, fidelity)
        for name in names:
            columns[name][rows] = getattr(own, name)
        if joules is not None and own.joules is not None:
            for name in (field.name for field in fields(joules)):
                getattr(joules, name)[rows] = getattr(own.joules, name)
    return replace(few, **columns, joules=joules)
