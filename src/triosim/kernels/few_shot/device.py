"""A device of which only the times of a few whole networks are known, and the model that explains these best.

Three explanations are fitted, each by relative least squares with coefficients that are not negative:

* ``operators``: a constant and a cost of each kind of operator, times how many there are: a runtime that runs every
  operator (eager PyTorch);
* ``live-operators``: the same of operators whose output reaches the result: a runtime behind a converter (TFLite,
  ONNX Runtime, TensorRT), which drops the rest;
* ``pool``: a sum of other devices' times.

The one that errs least on networks that were left out is used.  The interval comes from those errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.kernels.calibration.conformal import half_width
from triosim.kernels.few_shot.least_squares import non_negative
from triosim.kernels.few_shot.networks import CELLS, NAMES, NetworkSet, parse
from triosim.kernels.few_shot.pool import DevicePool

OPERATORS, LIVE, POOL = "operators", "live-operators", "pool"
"""The explanations."""
FEWEST = 4
"""Networks below which leaving one out says nothing."""
WIDEST = 20.0
"""Half-width (natural logarithm) of the interval from which on an explanation explains nothing."""
_LEAST_RATIO = 0.02
"""Smallest of predicted over measured that counts in an interval: below, it is a factor of fifty."""
_NORMAL_95 = 1.6448536269514722


@dataclass(frozen=True)
class NetworkSample:
    """A network that was timed.

    Attributes:
        network: its name, as in :mod:`~triosim.kernels.few_shot.networks`.
        seconds: of one run, above 0.
    """

    network: str
    seconds: float


@dataclass(frozen=True)
class DeviceFit:
    """One explanation of the times of a device.

    Attributes:
        kind: :data:`OPERATORS`, :data:`LIVE` or :data:`POOL`.
        error: root of the mean squared relative error on networks that were left out.
        mean_error: mean of that error's size.
        spread: half-width of the 90 % interval (natural logarithm).
        order: rank correlation of the networks that were left out.
        coefficients: seconds; a constant and one of each operator, or one of each device of the pool.
    """

    kind: str
    error: float
    mean_error: float
    spread: float
    order: float
    coefficients: NDArray[np.float64]


@dataclass(frozen=True)
class NetworkTimes:
    """What networks are predicted to take.

    Attributes:
        seconds: NaN where there is a reason, shape ``(networks,)``.
        reasons: why a network has no prediction, None where it has one.
        spread: half-width of the 90 % interval (natural logarithm).
    """

    seconds: NDArray[np.float64]
    reasons: tuple[str | None, ...]
    spread: float


@dataclass(frozen=True)
class FewShotDevice:
    """A device learned from few networks.

    Attributes:
        name: of the device.
        samples: all runs, also of networks without a path through them, which are not fitted to.
        space: how the networks are written.
        operators: that occur in them.
        edges: of them.
        explanations: best first.
        pool: other devices, None where not given.
        networks: how many different ones it was fitted to.
        left_out: names of networks without a path through them.
    """

    name: str
    samples: tuple[NetworkSample, ...]
    space: str
    operators: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    explanations: tuple[DeviceFit, ...]
    pool: DevicePool | None
    networks: int
    left_out: tuple[str, ...] = ()

    @property
    def chosen(self) -> DeviceFit:
        """The explanation that predicts."""
        return self.explanations[0]

    def predict(self, names: Sequence[str], where: str) -> NetworkTimes:
        """What these networks take.

        Args:
            names: of networks.
            where: they were found, for messages.

        Raises:
            InputError: they are not of one search space.
        """
        return self.times(parse(names, where))

    def times(self, networks: NetworkSet) -> NetworkTimes:
        """What these networks take; those that nothing is known of have a reason instead."""
        reasons: list[str | None] = list(self._reasons(networks))
        columns = _columns(networks, self.chosen.kind, self.operators, self.pool)
        seconds = columns @ self.chosen.coefficients
        for row in np.flatnonzero(~(seconds > 0)):
            reasons[row] = reasons[row] or "nothing that was measured tells its time"
        known = np.array([reason is None for reason in reasons], bool)
        return NetworkTimes(np.where(known, seconds, math.nan), tuple(reasons), self.chosen.spread)

    def _reasons(self, networks: NetworkSet) -> list[str | None]:
        if networks.space != self.space or (self.space != NAMES and networks.edges != self.edges):
            return ["it is of another search space than the measured networks"] * len(networks)
        if self.chosen.kind == POOL:
            assert self.pool is not None
            found = self.pool.lacks(networks)
        else:
            found = [
                f"no measured network has {quoted(operator)}" if operator is not None else None
                for operator in networks.unknown(self.operators)
            ]
        return [
            reason or (None if path else "no path leads through it")
            for reason, path in zip(found, networks.connected, strict=True)
        ]


def learn(name: str, samples: Sequence[NetworkSample], pool: DevicePool | None, where: str) -> FewShotDevice:
    """A device from what networks took on it.

    A network that was run several times counts once, with the median.

    Args:
        name: of the device.
        samples: of :data:`FEWEST` networks at least.
        pool: other devices that networks of the same search space took.
        where: the samples were found, for messages.

    Raises:
        InputError: too few networks, not of one search space, unknown to the pool, or nothing explains them.
    """
    runs: dict[str, list[float]] = {}
    for sample in samples:
        runs.setdefault(sample.network, []).append(sample.seconds)
    everything = parse(list(runs), where)
    names = [network for network, path in zip(runs, everything.connected, strict=True) if path]
    left_out = tuple(network for network, path in zip(runs, everything.connected, strict=True) if not path)
    if len(names) < FEWEST:
        through = " with a path through them" if left_out else ""
        raise InputError(
            f"{where} has {len(names)} networks{through}; {FEWEST} are the least that can be learned from, 10 to 50 "
            "are better: measure more"
        )
    networks = parse(names, where)
    times = np.array([float(np.median(runs[name])) for name in names])
    if pool is not None:
        for network, reason in zip(names, pool.lacks(networks), strict=True):
            if reason is not None:
                raise InputError(f"{where}: {quoted(network)}: {reason}: measure networks that the pool knows")
    elif networks.space == NAMES:
        raise InputError(
            f"{where}: nothing tells what {quoted(names[0])} is made of: give cells or blocks, or --pool with what "
            "these networks took on other devices"
        )
    kinds = {NAMES: (), CELLS: (OPERATORS, LIVE)}.get(networks.space, (OPERATORS,))
    kinds += (POOL,) if pool is not None else ()
    found = [_explained(kind, _columns(networks, kind, networks.operators, pool), times) for kind in kinds]
    found = sorted((one for one in found if one.spread <= WIDEST), key=lambda one: one.error)
    if not found:
        raise InputError(
            f"{where}: nothing explains these times, which differ by a factor of {times.max() / times.min():.3g}: look "
            "for lines in another unit, or measure more networks"
        )
    return FewShotDevice(
        name, tuple(samples), networks.space, networks.operators, networks.edges, tuple(found), pool, len(names),
        left_out,
    )  # fmt: skip


def _columns(
    networks: NetworkSet, kind: str, operators: tuple[str, ...], pool: DevicePool | None
) -> NDArray[np.float64]:
    if kind == POOL:
        assert pool is not None
        return pool.times(networks)
    return np.column_stack([np.ones(len(networks)), networks.counts(operators, kind == LIVE)])


def _explained(kind: str, columns: NDArray[np.float64], times: NDArray[np.float64]) -> DeviceFit:
    relative = columns / times[:, None]  # so that the target is 1 everywhere
    count = len(times)
    kept = ~np.eye(count, dtype=bool)
    left_out = np.array([
        relative[row] @ non_negative(relative[kept[row]], np.ones(count - 1)) for row in range(count)
    ])  # fmt: skip
    logs = np.log(np.maximum(left_out, _LEAST_RATIO))
    return DeviceFit(
        kind,
        error=float(np.sqrt(np.mean(np.square(left_out - 1)))),
        mean_error=float(np.mean(np.abs(left_out - 1))),
        spread=_spread(logs),
        order=rank_correlation(left_out * times, times),
        coefficients=non_negative(relative, np.ones(count)),
    )


def _spread(logs: NDArray[np.float64]) -> float:
    """Half-width of the 90 % interval of the next one: conformal where there are enough, else Student's."""
    found = half_width(logs)
    if found is not None:
        return found
    count = len(logs)
    return student_95(count - 1) * math.sqrt(float(np.mean(np.square(logs))) * (1 + 1 / count))


def student_95(freedom: int) -> float:
    """The 95 % quantile of Student's distribution, to 0.3 % from 3 degrees of freedom on.

    Abramowitz, Stegun: "Handbook of Mathematical Functions", 26.7.5.
    """
    z = _NORMAL_95
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))


def rank_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Spearman's, equal values sharing their ranks; NaN where all of one are equal."""
    a, b = _ranks(one), _ranks(other)
    a, b = a - a.mean(), b - b.mean()
    size = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / size if size else math.nan


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[inverse]
