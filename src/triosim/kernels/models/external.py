"""Times from a simulator or a profiler for the operators that it ran, and the best that is known of the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from triosim.core.errors import InputError
from triosim.core.registry import registered
from triosim.kernels import anchoring
from triosim.kernels.changes import changed
from triosim.kernels.estimate import Estimates, Source
from triosim.kernels.external_mapping import load
from triosim.kernels.external_times import ClockRates, read
from triosim.kernels.matching import MatchedTimes, MatchTarget, match
from triosim.kernels.model import OperatorModel, PricingJob
from triosim.kernels.models._recording import nothing
from triosim.kernels.models.auto import Auto

_LISTED = 20
"""Unused rows that are named."""


@registered
class External(OperatorModel):
    """External times where they are given, ``auto`` elsewhere.

    The times are those of the job's device.  They hold for the shapes of the trace, or with ``shapes = "plan"`` (the
    default for a model, which has no recorded shapes) for those of the priced step.  A time of the trace's shapes is
    carried over to others like a recorded one: time x roofline(new shapes) / roofline(shapes of the trace).

    Args:
        path: of a mapping file (``*.toml``), or of a file of external times.
    """

    def __init__(self, path: str | None = None) -> None:
        self.path = path

    def price(self, job: PricingJob) -> Estimates:
        """Seconds of every operator of ``job.trace``.

        Raises:
            InputError: a file is broken, nothing in it fits the trace, or the rest cannot be priced.
        """
        if self.path is None:
            raise InputError("operator times 'external' need a file: give its path, as --operator-times mapping.toml")
        mapping = load(Path(self.path))
        clock = ClockRates(mapping.clock_hz, job.device.clock_hz)
        tables = [read(path, clock) for path in mapping.times]
        base = Auto().price(job)
        if mapping.device and mapping.device != job.device.name:
            return replace(base, notes=(f"external times: those of {mapping.device}, not of {job.device.name}",))
        planned = (mapping.shapes or ("plan" if job.recorded_on is None else "trace")) == "plan"
        reckoned = base if planned else Auto().price(replace(job, trace=job.recorded))
        shapes = job.trace if planned else job.recorded
        target = MatchTarget(replace(shapes, kernels=job.recorded.kernels), _launches(job), reckoned.seconds)
        found = match(mapping, tables, target)
        given = np.isfinite(found.seconds)
        if not given.any():
            raise InputError(_none_fits(self.path, found))
        seconds = found.seconds + (1 - found.share) * reckoned.seconds
        sources = ", ".join(table.source for table in tables)
        moved = np.zeros(len(job.trace), bool)
        if planned:
            spread = np.full(len(seconds), anchoring.load().recorded_spread)
            made = Estimates(seconds, spread, np.full(len(seconds), Source.EXTERNAL, np.int8), base.limit)
        else:
            moved = changed(job.trace, job.recorded)
            made = _carried(job, given, seconds)
        source = np.where(made.source == Source.UNDECIDED, Source.UNDECIDED, Source.EXTERNAL)
        chosen = Estimates(
            np.where(given, made.seconds, base.seconds),
            np.where(given, made.spread, base.spread),
            np.where(given, source, base.source).astype(np.int8),
            np.where(given, made.limit, base.limit).astype(np.int8),
        )
        notes = (
            _description(sources, chosen, given, moved),
            *_unused(found),
            *(n for table in tables for n in table.notes),
        )
        return replace(chosen, notes=notes)


def _launches(job: PricingJob) -> NDArray[np.bool_]:
    """Operators that launch something."""
    return ~nothing(job) & ~(job.recorded.operators.device_s == 0)


def _carried(job: PricingJob, given: NDArray[np.bool_], seconds: NDArray[np.float64]) -> Estimates:
    """The job priced as if the external times had been recorded on its device."""
    operators = job.recorded.operators
    timed = replace(operators, device_s=np.where(given, seconds, operators.device_s))
    return Auto().price(replace(job, recorded=replace(job.recorded, operators=timed), recorded_on=job.device))


def _description(sources: str, estimates: Estimates, given: NDArray[np.bool_], moved: NDArray[np.bool_]) -> str:
    total = float(estimates.seconds.sum())
    share = float(estimates.seconds[given].sum()) / total if total else 0.0
    over = int((given & moved).sum())
    more = f", {over} of them carried over from the trace's shapes to the plan's" if over else ""
    return (
        f"external times: {int(given.sum())} of {len(given)} operators ({100 * share:.0f} % of the time) from {sources}"
        f"{more}"
    )


def _unused(found: MatchedTimes) -> tuple[str, ...]:
    if not found.left:
        return ()
    listed = ", ".join(f"{name} ({reason})" for name, reason in found.left[:_LISTED])
    more = f" and {len(found.left) - _LISTED} more" if len(found.left) > _LISTED else ""
    return (f"external times not used: {listed}{more}",)


def _none_fits(path: str, found: MatchedTimes) -> str:
    first = "; ".join(f"{name} ({reason})" for name, reason in found.left[:3])
    return (
        f"{path}: none of its times fits an operator of the trace: {first}; say which belongs to which in a mapping "
        "file (docs/external-times.md)"
    )
