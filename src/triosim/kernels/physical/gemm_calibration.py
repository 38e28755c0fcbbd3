"""Constants of matrix products brought closer to one device by a few measured kernels of it.

Four scalars move what a datasheet cannot tell, within what is plausible (Gaussian priors on their logarithms): the
sustained rate, the reached bandwidth, the time of a launch, and how much of the cache a repeated call finds again.
What is left of the error at the measured kernels is carried over to kernels of similar shape: the mean of the nearest
measured ones, weighted by the inverse of the distance in log2 (m, n, k, batch), less the farther they are.  A kernel
that was measured is reproduced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from triosim.errors import InputError
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.physical.gemm import ENGINES, Constants, engine, predict
from triosim.kernels.physical.predicted import Predicted
from triosim.kernels.work.gemm import Gemm

FEWEST = 3
"""Kernels of one engine below which its constants stay as they are."""

_WIDTHS = np.array([0.35, 0.35, 0.7, 1.0])
"""Standard deviations of the scalars' logarithms: rate, bandwidth, launch, cache."""
_NOISE = 0.1
"""Error (logarithm) of one measured kernel that the scalars do not try to follow."""
_NEAREST = 5
_REACH = 1.5
"""Distance in powers of two at which half of a neighbour's error is carried over."""
_LEVEL = 0.9
_CHUNK = 65536


@dataclass(frozen=True)
class Anchors:
    """Measured kernels of one engine: log2 (m, n, k, batch), and log (measured / predicted) under the constants."""

    shape: NDArray[np.float64]
    error: NDArray[np.float64]

    def correction(self, shape: NDArray[np.float64], leave_out: bool = False) -> NDArray[np.float64]:
        """What to add to the logarithm of predictions at ``shape``.

        Args:
            shape: log2 (m, n, k, batch), one row each.
            leave_out: ``shape`` is that of the anchors themselves, and none may use its own error.
        """
        distance = np.sqrt(np.maximum(
            (shape**2).sum(1)[:, None] + (self.shape**2).sum(1)[None, :] - 2 * shape @ self.shape.T, 0.0
        ))  # fmt: skip
        if leave_out:
            np.fill_diagonal(distance, np.inf)
        count = min(_NEAREST, len(self.error) - leave_out)
        nearest = np.argpartition(distance, count - 1, axis=1)[:, :count]
        d = np.take_along_axis(distance, nearest, 1)
        d = np.where(d < 1e-6, 0.0, d)
        weight = 1.0 / np.maximum(d, 1e-9)
        mean = (weight * self.error[nearest]).sum(1) / weight.sum(1)
        return np.asarray(mean / (1.0 + d.min(1) / _REACH))


@dataclass(frozen=True)
class Calibrated:
    """Constants for one device, with the measured kernels that they came from.

    Attributes:
        constants: by engine.
        anchors: by engine; engines without measurements are not there.
        spread: half-width of the 90 % interval (natural logarithm) by engine: split-conformal quantile of the errors at
            the measured kernels, each corrected by the others only.
    """

    constants: Mapping[str, Constants]
    anchors: Mapping[str, Anchors]
    spread: Mapping[str, float]

    def predict(self, work: Gemm, device: Accelerator) -> Predicted:
        """As :func:`triosim.kernels.physical.gemm.predict`, corrected by the measured kernels nearby."""
        found = predict(work, device, self.constants)
        for name, rows in by_engine(work).items():
            anchors = self.anchors.get(name)
            if anchors is None:
                continue
            for start in range(0, len(rows), _CHUNK):
                at = rows[start : start + _CHUNK]
                found.seconds[at] *= np.exp(anchors.correction(shape_of(work.take(at))))
        return found


def shape_of(work: Gemm) -> NDArray[np.float64]:
    """log2 (m, n, k, batch), one row per call."""
    return np.log2(np.stack([work.m, work.n, work.k, work.batch], axis=1))


def by_engine(work: Gemm) -> dict[str, NDArray[np.int64]]:
    """Rows of each engine that has any."""
    codes, at = np.unique(work.dtype, return_inverse=True)
    which = np.array([ENGINES.index(engine(code)) for code in codes.tolist()])[at] if len(codes) else at
    return {name: rows for i, name in enumerate(ENGINES) if len(rows := np.flatnonzero(which == i))}


def calibrate(
    constants: Mapping[str, Constants], work: Gemm, seconds: NDArray[np.float64], device: Accelerator
) -> Calibrated:
    """Constants, anchors and spreads for ``device`` from measured kernels of it.

    Args:
        constants: by engine, where to start from.
        work: what was measured.
        seconds: device time of each, without time of the host.
        device: that they ran on.

    Raises:
        InputError: lengths differ, or a time is not a positive number.
    """
    if len(seconds) != len(work):
        raise InputError(f"{len(work)} products but {len(seconds)} times: give one time per product")
    if not (np.isfinite(seconds) & (seconds > 0)).all():
        raise InputError("a measured time is not a positive number: remove that kernel or measure it again")
    found, anchors, spread = dict(constants), {}, {}
    for name, rows in by_engine(work).items():
        if len(rows) < FEWEST:
            continue
        kernels, measured = work.take(rows), np.log(seconds[rows])
        found[name] = _scaled_to(constants[name], name, kernels, measured, device)
        anchors[name] = _anchors(found, kernels, measured, device)
        left = anchors[name].error - anchors[name].correction(anchors[name].shape, leave_out=True)
        rank = min(math.ceil(_LEVEL * (len(left) + 1)), len(left))
        spread[name] = float(np.sort(np.abs(left))[rank - 1])
    return Calibrated(found, anchors, spread)


def _anchors(
    constants: Mapping[str, Constants], work: Gemm, measured: NDArray[np.float64], device: Accelerator
) -> Anchors:
    """One anchor per shape: repeats take the median error."""
    error = measured - np.log(predict(work, device, constants).seconds)
    shape, at = np.unique(shape_of(work), axis=0, return_inverse=True)
    middle = np.array([float(np.median(error[at.ravel() == i])) for i in range(len(shape))])
    return Anchors(shape, middle)


def _scaled(constants: Constants, x: NDArray[np.float64]) -> Constants:
    rate, bandwidth, launch, cache = np.exp(x).tolist()
    return replace(
        constants, reach=constants.reach * rate, joule=constants.joule / rate, memory=constants.memory * bandwidth,
        cache=constants.cache * cache,
        launch_s=constants.launch_s * launch, prologue_s=constants.prologue_s * launch,
        split_s=constants.split_s * launch, cast_s=constants.cast_s * launch, latency_s=constants.latency_s * launch,
    )  # fmt: skip


def _scaled_to(
    constants: Constants, name: str, work: Gemm, measured: NDArray[np.float64], device: Accelerator
) -> Constants:
    """Constants with the scalars that predict ``measured`` (logarithms) best, by damped Gauss-Newton steps."""

    def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
        error = np.log(predict(work, device, {name: _scaled(constants, x)}).seconds) - measured
        robust = np.sign(error) * np.sqrt(2 * (np.sqrt(1 + (error / _NOISE) ** 2) - 1))  # tails count linearly
        return np.concatenate([robust, x / _WIDTHS])

    x, damping, step = np.zeros(len(_WIDTHS)), 1e-2, 1e-4
    r = residuals(x)
    for _ in range(30):
        jacobian = np.stack([(residuals(x + step * e) - r) / step for e in np.eye(len(x))], axis=1)
        normal = jacobian.T @ jacobian
        trial = x - np.linalg.solve(normal + damping * np.diag(np.diag(normal)), jacobian.T @ r)
        there = residuals(np.clip(trial, -2.0, 2.0))
        if there @ there < r @ r:
            done = r @ r - there @ there < 1e-6 * (r @ r)
            x, r, damping = np.clip(trial, -2.0, 2.0), there, damping / 10
            if done:
                break
        else:
            damping *= 10
            if damping > 1e6:
                break
    return _scaled(constants, x)
