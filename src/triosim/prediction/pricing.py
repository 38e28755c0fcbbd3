"""The second stage of a prediction: what every operator takes, on each kind of device that takes part."""

from __future__ import annotations

from dataclasses import replace

from triosim.core.caching import kept
from triosim.fidelity import Fidelity
from triosim.kernels.estimate import Estimates
from triosim.kernels.model import PricingJob
from triosim.kernels.pricing import price
from triosim.prediction.dividing import ShortShare
from triosim.trace.calls import only

BY_CALL = ("auto", "physical", "roofline")
"""Operator models that price a call, where nothing was recorded, by nothing but the call."""


def priced(job: PricingJob, fidelity: Fidelity, short: ShortShare | None) -> Estimates:
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
        return price(job, fidelity.operator_times, fidelity.operator_options)
    return _priced_once(job, fidelity, short)


@kept(32)
def _priced_once(job: PricingJob, fidelity: Fidelity, short: ShortShare) -> Estimates:
    """Operator times of the long step from those of the short one; what spans all blocks is priced by itself."""

    def of(part: PricingJob) -> Estimates:
        return price(part, fidelity.operator_times, fidelity.operator_options)

    few = of(replace(job, trace=short.step.trace, recorded=short.workload))
    source, rows = short.of_long.source, short.of_long.spanning
    names = ("seconds", "spread", "source", "limit")
    columns = {name: getattr(few, name)[source] for name in names}
    if rows.size:
        own = of(replace(job, trace=only(job.trace, rows), recorded=only(job.recorded, rows)))
        if not set(own.notes) <= set(few.notes) or not set(own.warnings) <= set(few.warnings):
            return of(job)
        for name in names:
            columns[name][rows] = getattr(own, name)
    return replace(few, **columns)
