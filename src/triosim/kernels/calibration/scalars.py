"""Factors that bring the constants of a class of kernels closer to one device.

What a datasheet cannot tell is how much of the peak and of the bandwidth kernels sustain, and how long a launch takes.
The factors' logarithms have Gaussian priors around 0, so that a few kernels cannot move what they say nothing about,
and large errors count linearly, so that one odd kernel does not decide.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import GPUS
from triosim.kernels.physical.kinds import KernelKind, RateFactors, Work

WIDTHS = np.array([0.35, 0.35, 0.7, 1.0])
"""Standard deviations of the logarithms: computing, bandwidth, launch, cache.  Chosen, not fitted: two times
out of three sustained rates are within a factor of 1.4 of what a datasheet suggests, launches within a factor of 2."""
FARTHER = 4.0
"""How much wider they are on what is not a GPU: the constants were fitted to GPUs only."""
NOISE = 0.1
"""Error (logarithm) of one measured kernel that the factors do not try to follow."""
_STEPS, _STEPS_FROM_NEAR = 30, 2


def widths(device: Accelerator) -> NDArray[np.float64]:
    """Standard deviations of the logarithms on a device."""
    return WIDTHS if device.kind in GPUS else WIDTHS * FARTHER


def of_logs(x: NDArray[np.float64]) -> RateFactors:
    """The factors of logarithms."""
    return RateFactors(*np.exp(x).tolist())


def fitted(
    kind: KernelKind, constants: Any, work: Work, seconds: NDArray[np.float64], device: Accelerator,
    start: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:  # fmt: skip
    """Logarithms of the factors that predict ``seconds`` best, by damped Gauss-Newton steps (Levenberg-Marquardt).

    Args:
        kind: of the kernels, all of one class.
        constants: where the factors are 1.
        work, seconds: what was measured.
        device: on what.
        start: where to begin, 0 if not given; from near the end few steps are needed.

    Returns:
        Shape (4,), in the order of :class:`~triosim.kernels.physical.kinds.RateFactors`.
    """
    measured, width = np.log(seconds), widths(device)

    def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
        error = np.log(kind.predict(work, device, kind.scaled(constants, of_logs(x))).seconds) - measured
        tails = np.sign(error) * np.sqrt(2 * (np.sqrt(1 + (error / NOISE) ** 2) - 1))  # count linearly
        return np.concatenate([tails, x / width])

    x = np.zeros(len(width)) if start is None else start
    damping, step = 1e-2, 1e-4
    r = residuals(x)
    for _ in range(_STEPS if start is None else _STEPS_FROM_NEAR):
        jacobian = np.stack([(residuals(x + step * e) - r) / step for e in np.eye(len(width))], axis=1)
        normal = jacobian.T @ jacobian
        trial = x - np.linalg.solve(normal + damping * np.diag(np.diag(normal)), jacobian.T @ r)
        trial = np.clip(trial, -6 * width, 6 * width)
        there = residuals(trial)
        if there @ there < r @ r:
            done = r @ r - there @ there < 1e-5 * (r @ r)
            x, r, damping = trial, there, damping / 10
            if done:
                break
        else:
            damping *= 10
            if damping > 1e6:
                break
    return x
