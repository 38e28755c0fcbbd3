"""What single kernels do not tell of an iteration, learned from measured iterations: the second phase of calibration.

The first phase (operator times) says how long each kernel takes alone.  What is left is composition: the host's cost of
each launch and of each transfer between stages, the gap after a kernel, what an iteration costs once, and how much of
that the operator model itself has to answer for.  Six numbers, fitted by least squares in the logarithm of the
iteration time, each drawn towards a prior (ridge), so that a few dozen iterations are enough; outliers count less
(pseudo-Huber).

A residual holds for jobs like those it was fitted to.  It remembers between which sizes these lay and, outside of them,
says so and widens the interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.composition.host import HostCosts, launches
from triosim.core import guarded
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.core.units import format_time
from triosim.schedule.program import Op, Program
from triosim.trace.tables import Trace

SCHEMA = "triosim/composition/1"

NOISE = 0.08
"""Standard deviation of the logarithm of an iteration time that is expected of a good fit; it weighs the data against
the priors."""

OUTLIER = 0.15
"""Logarithmic error from which a row counts linearly instead of squared."""

MARGIN = 1.25
"""A job is outside of what was seen beyond this factor."""

CONFIDENCE = 0.9


@dataclass(frozen=True)
class Coefficients:
    """The numbers that are fitted.

    Attributes:
        issue_s: host time of each operator and collective.
        send_s: host time of each transfer between pipeline stages.
        gap_s: what a kernel takes on its stream beside its own time.
        fixed_s: host time once an iteration.
        collective_s: seconds that each collective takes more.
        scale: factor on operator times.
    """

    issue_s: float
    send_s: float
    gap_s: float
    fixed_s: float
    collective_s: float
    scale: float


PRIOR = Coefficients(issue_s=50e-6, send_s=1e-3, gap_s=1.2e-6, fixed_s=10e-3, collective_s=20e-6, scale=1.0)
"""Where nothing is learned: the large-model row and the gap of ``host.json``; a synchronisation and a few calls for a
transfer; the launch of a collective; loss, gradient norm and data for an iteration."""

LOOSENESS = Coefficients(issue_s=0.5, send_s=1.5, gap_s=1.5, fixed_s=1.0, collective_s=1.0, scale=0.1)
"""Standard deviations of the logarithms of the terms around the prior."""

NAMES = tuple(f.name for f in fields(Coefficients))


@dataclass(frozen=True)
class JobSizes:
    """How large a job is, in what the terms multiply.

    Attributes:
        device_s: operator times of an iteration on the busiest device, without the residual.
        launches: operators, collectives and copies that a host issues, the most of any rank.
        sends: transfers to other stages, the most of any rank.
    """

    device_s: float
    launches: float
    sends: float


def sizes(programs: Sequence[Program], iterations: int = 1, scale: float = 1.0) -> JobSizes:
    """Sizes of a job from the programs of its ranks, host included.

    Args:
        programs: one for each rank class.
        iterations: that they hold.
        scale: what operator times have been multiplied with.
    """
    columns = []
    for program in programs:
        op = program.op
        sends = int(np.count_nonzero(op == Op.SEND))
        issues = int(np.count_nonzero(op == Op.ISSUE))
        columns.append((float(program.seconds[op == Op.COMPUTE].sum()) / scale, issues - sends, sends))
    device, launches, sent = (max(column) / iterations for column in zip(*columns, strict=True))
    return JobSizes(device, launches, sent)


@dataclass(frozen=True)
class CalibratedOverhead:
    """What was learned.

    Attributes:
        terms: the numbers.
        spread: natural logarithm of the 90 % interval's factor of an iteration time, from cross-validation.
        smallest, largest: sizes of the iterations that it was fitted to.
        rows: how many these were.
        error: mean absolute relative error of iterations that were left out (five-fold cross-validation).
        operator_times: operator model under which it was fitted.
        source: what it was fitted to, in words.
    """

    terms: Coefficients
    spread: float
    smallest: JobSizes
    largest: JobSizes
    rows: int
    error: float
    operator_times: str = "auto"
    source: str = ""
    schema: str = field(default=SCHEMA)

    def host(self, trace: Trace, processes: float = 1) -> HostCosts:
        """The cost of launching each operator of a trace; ``processes`` as of :func:`triosim.composition.host.host`."""
        issue = np.where(launches(trace), self.terms.issue_s * processes, 0.0)
        terms = self.terms
        source = (
            f"fitted to {self.rows} iterations ({self.source}), off by {self.error:.1%} on those left out: "
            f"{format_time(terms.issue_s)} per launch, {format_time(terms.send_s)} per transfer between stages, "
            f"{format_time(terms.gap_s)} after a kernel, {format_time(terms.fixed_s)} an iteration, "
            f"{format_time(terms.collective_s)} more per collective, operator times x {terms.scale:.3g}"
        )
        return HostCosts(
            "calibrated", issue, self.terms.issue_s * processes, 0.0, self.terms.gap_s, self.spread, source,
            send_s=self.terms.send_s * processes, fixed_s=self.terms.fixed_s * processes,
        )  # fmt: skip

    def outside(self, sizes: JobSizes) -> dict[str, float]:
        """By which factor a job lies outside of what was seen, where it does (more than :data:`MARGIN`)."""
        found = {}
        for name in (f.name for f in fields(JobSizes)):
            here, low, high = (getattr(s, name) for s in (sizes, self.smallest, self.largest))
            beyond = _factor(low, here) if here < low else _factor(here, high)
            if beyond > MARGIN:
                found[name] = beyond
        return found

    def spread_of(self, sizes: JobSizes) -> float:
        """Half-width, as a logarithm, of the 90 % interval of a job of these sizes.

        Outside of what was seen it grows by the spread again for each factor of e.
        """
        beyond = sum(math.log(min(factor, 1e6)) for factor in self.outside(sizes).values())
        return self.spread * (1 + beyond)


def _factor(large: float, small: float) -> float:
    """How much larger; a job with some of what no fitted one had is as far out as if there had been one."""
    return (large + 1e-12) / (small if small > 0 else 1.0) if large > small else 1.0


def load(path: str | Path) -> CalibratedOverhead:
    """Read a residual that :func:`save` wrote.

    Raises:
        InputError: the file cannot be read or is no such residual.
    """
    path = Path(path)
    cure = "make it again with triosim calibrate --iterations"
    found = guarded.values(path, ".json")
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        schema = found.get("schema") if isinstance(found, dict) else None
        raise InputError(f"composition {path} has the schema {quoted(schema)}, this version reads {SCHEMA!r}: {cure}")
    try:
        kinds = (("terms", Coefficients), ("smallest", JobSizes), ("largest", JobSizes))
        parts: dict[str, Any] = {key: _numbers(cls, found[key], key) for key, cls in kinds}
        spread, error_, rows = (_number(found[key], key) for key in ("spread", "error", "rows"))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"composition {path} lacks or garbles {error}: {cure}") from None
    return CalibratedOverhead(
        **parts, spread=spread, rows=int(rows), error=error_,
        operator_times=str(found.get("operator_times", "auto")), source=str(found.get("source", "")),
    )  # fmt: skip


def _numbers(cls: type, table: Mapping, where: str) -> Coefficients | JobSizes:
    made: Coefficients | JobSizes = cls(**{f.name: _number(table[f.name], f"{where}.{f.name}") for f in fields(cls)})
    return made


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} ({quoted(value)})")
    return float(value)


def document(residual: CalibratedOverhead) -> dict:
    """The JSON document that :func:`load` reads."""
    return asdict(residual)


# --- fitting ----------------------------------------------------------------------------------------------------------

Predict = Callable[[Coefficients, NDArray[np.int64]], NDArray[np.float64]]
"""Iteration times in seconds of some rows under some terms."""


def fit(
    predict: Predict,
    measured: Sequence[float] | NDArray[np.float64],
    sizes: Sequence[JobSizes],
    *,
    folds: int = 5,
    seed: int = 0,
    operator_times: str = "auto",
    source: str = "",
) -> CalibratedOverhead:
    """Fit a residual to measured iterations.

    Args:
        predict: plays the jobs.
        measured: their iteration times in seconds.
        sizes: of the jobs.
        folds: of the cross-validation that says how good it is.
        seed: of the division into folds.
        operator_times, source: as of :class:`CalibratedOverhead`.

    Raises:
        InputError: fewer iterations than folds or terms.
    """
    real = np.log(np.asarray(measured, np.float64))
    n = len(real)
    if n < max(folds, len(NAMES)):
        raise InputError(
            f"{n} different measured iterations are too few to fit {len(NAMES)} terms: {max(folds, len(NAMES))} are "
            f"the least, {3 * folds} and more are better"
        )
    rows = np.arange(n)
    start = _logs(PRIOR)
    best = _descend(lambda z: np.log(predict(_terms(z), rows)) - real, start)
    left_out = np.zeros(n)
    for part in np.array_split(np.random.default_rng(seed).permutation(n), folds):
        kept = np.setdiff1d(rows, part)
        own = _descend(lambda z, kept=kept: np.log(predict(_terms(z), kept)) - real[kept], best)  # type: ignore[misc]
        left_out[part] = np.log(predict(_terms(own), part)) - real[part]
    rank = min(math.ceil(CONFIDENCE * (n + 1)), n)  # split-conformal
    columns = {f.name: [getattr(s, f.name) for s in sizes] for f in fields(JobSizes)}
    return CalibratedOverhead(
        terms=_terms(best),
        spread=float(np.sort(np.abs(left_out))[rank - 1]),
        smallest=JobSizes(**{name: min(column) for name, column in columns.items()}),
        largest=JobSizes(**{name: max(column) for name, column in columns.items()}),
        rows=n,
        error=float(np.mean(np.abs(np.expm1(left_out)))),
        operator_times=operator_times,
        source=source,
    )


def _logs(terms: Coefficients) -> NDArray[np.float64]:
    return np.log(np.array([getattr(terms, name) for name in NAMES]))


def _terms(logs: NDArray[np.float64]) -> Coefficients:
    return Coefficients(**dict(zip(NAMES, np.exp(logs).tolist(), strict=True)))


def _descend(
    error: Callable[[NDArray[np.float64]], NDArray[np.float64]], start: NDArray[np.float64], steps: int = 12
) -> NDArray[np.float64]:
    """Levenberg-Marquardt on the pseudo-Huber loss of the errors with a ridge towards the prior.

    The playback is a maximum of sums, so that its derivatives are piecewise constant: they are taken by differences of
    5 %, which look past the nearest corner.
    """
    prior = _logs(PRIOR)
    weight = 1 / np.array([getattr(LOOSENESS, name) for name in NAMES]) ** 2
    reach = 0.05

    def loss(e: NDArray[np.float64], z: NDArray[np.float64]) -> float:
        huber = 2 * OUTLIER**2 * np.sum(np.sqrt(1 + (e / OUTLIER) ** 2) - 1) / NOISE**2
        return float(huber + np.sum(weight * (z - prior) ** 2))

    z, now, damping = start, error(start), 1.0
    for _ in range(steps):
        moved = np.eye(len(z)) * reach
        slope = np.stack([(error(z + m) - now) / reach for m in moved], axis=1)
        trust = 1 / np.sqrt(1 + (now / OUTLIER) ** 2) / NOISE**2
        curve = (slope * trust[:, None]).T @ slope + np.diag(weight)
        pull = (slope * trust[:, None]).T @ now + weight * (z - prior)
        before = loss(now, z)
        for _ in range(5):
            tried = z - np.linalg.solve(curve + 0.1 * damping * np.diag(np.diag(curve)), pull)
            then = error(tried)
            if loss(then, tried) < before:
                z, now, damping = tried, then, max(damping / 3, 0.01)
                break
            damping *= 4
        else:
            break
        if before - loss(now, z) < 1e-3 * before:
            break
    return z
