"""Habitat's wave scaling: times recorded on one GPU carried over to another by their datasheets.

Yu, Gao, Golikov, Pekhimenko: "Habitat: A Runtime-Based Computational Performance Predictor for Deep Neural Network
Training" (USENIX ATC 2021).  A kernel runs in waves of thread blocks; with ``D`` the memory bandwidth, ``W`` the blocks
in a wave, ``C`` the clock, ``o`` the GPU of the recording and ``d`` the other one, for kernels of many waves::

    T_d = (D_o / D_d)^g (W_o / W_d)^(1 - g) (C_o / C_d)^(1 - g) T_o

``g`` says how far memory binds, from the kernel's operations per byte ``x`` and those at which ``d``'s roofline bends,
``R``: ``g = 1 - x / (2 R)`` below ``R`` and ``R / (2 x)`` above.  The kernel being the same on both GPUs, so is the
number of its blocks that fit on a unit, and ``W_o / W_d`` is the ratio of the numbers of units (SMs).

Habitat prices convolutions, matrix products and recurrent cells, whose kernels differ between GPUs, by neural networks
trained on measurements of the target; those are not part of this model, which scales everything by waves.
"""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dtypes import DTYPES
from triosim.core.errors import InputError
from triosim.core.registry import registered
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import arithmetic
from triosim.kernels.changes import changed, same_device
from triosim.kernels.classes import GROUPS, by_name, classify, group_of_name
from triosim.kernels.estimate import Estimates, Limit, Source
from triosim.kernels.model import OperatorModel, PricingJob
from triosim.kernels.models._recording import measured_seconds, nothing
from triosim.kernels.models.recorded import Recorded

SCHEMA = "triosim/habitat/1"

_NEEDED = {"memory_bandwidth": "memory bandwidth", "compute_units": "number of units (SMs)", "clock_hz": "clock"}


@functools.lru_cache(maxsize=1)
def load() -> dict[str, Any]:
    """Spreads by class of work, fitted by ``validation/fit/habitat.py``; the times themselves have no constants."""
    text = (resources.files("triosim.kernels") / "data" / "habitat.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    if document["schema"] != SCHEMA:
        raise RuntimeError(f"habitat.json has schema {document['schema']!r}, expected {SCHEMA!r}")
    return document


def wave_scaling(intensity: NDArray, ridge: NDArray, source: Accelerator, target: Accelerator) -> NDArray[np.float64]:
    """Time on ``target`` over time on ``source``.

    Args:
        intensity: operations per byte of each kernel, 0 where it only moves bytes.
        ridge: operations per byte at which the roofline of ``target`` bends, one per kernel.
        source, target: with memory bandwidth, units and clock.

    Raises:
        InputError: one of those is not known.
    """
    for device in (source, target):
        for name, words in _NEEDED.items():
            if not getattr(device, name):
                raise InputError(
                    f"operator times 'habitat' need the {words} of device {device.name or '(unnamed)'!r}: name a "
                    "device of the catalog (triosim devices) or add it to the device's file"
                )
    memory = float(source.memory_bandwidth or 0) / float(target.memory_bandwidth or 1)
    waves = float(source.compute_units or 0) / float(target.compute_units or 1)
    clock = float(source.clock_hz or 0) / float(target.clock_hz or 1)
    below = intensity < ridge
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        bound = np.where(below, 1 - intensity / (2 * ridge), ridge / (2 * intensity))
    return np.asarray(memory**bound * (waves * clock) ** (1 - bound), np.float64)


@registered
class Habitat(OperatorModel):
    """Recorded times of the same shapes on another GPU, by :func:`wave_scaling`."""

    def price(self, job: PricingJob) -> Estimates:
        """Recorded seconds x wave scaling; on the device of the recording, the recorded seconds.

        Raises:
            InputError: nothing was recorded, shapes differ from the recorded ones, an operator has no time, or a device
                has no memory bandwidth, units or clock.
        """
        if job.recorded_on is None:
            raise InputError(
                f"operator times 'habitat' need a trace recorded on another GPU, and {job.recorded.meta.workload!r} "
                "has no measured times: use --operator-times roofline or auto"
            )
        measured = _measured(job)
        if same_device(job.device, job.recorded_on):
            return Recorded().price(job)
        operators = job.trace.operators
        with np.errstate(divide="ignore", invalid="ignore"):
            intensity = np.nan_to_num(operators.flop / operators.bytes, posinf=0.0)
        ratio = wave_scaling(intensity, _ridge(job), job.recorded_on, job.device)
        idle = nothing(job)
        spreads = load()["spread"]
        of_group = np.array([spreads.get(group, spreads["other"]) for group in GROUPS], np.float64)
        spread = np.where(idle, 0.0, of_group[by_name(operators.name, group_of_name)])
        source = np.where(idle, Source.NOTHING, Source.WAVES).astype(np.int8)
        return Estimates(measured * ratio, spread, source, np.full(len(ratio), Limit.UNKNOWN, np.int8))


def _measured(job: PricingJob) -> NDArray[np.float64]:
    moved = changed(job.trace, job.recorded)
    if moved.any():
        row = int(np.flatnonzero(moved)[0])
        raise InputError(
            f"operator times 'habitat' hold only for the recorded shapes, and operator {row} "
            f"({job.trace.operators.name[row]}) has others, the first of {int(moved.sum())}: use --operator-times auto"
        )
    return measured_seconds(job)


def _ridge(job: PricingJob) -> NDArray[np.float64]:
    """Operations per byte at which the target's roofline bends, for each operator's element type."""
    codes = classify(job.trace, job.device).dtype
    if not job.device.peak_flops:
        raise InputError(
            f"operator times 'habitat' need the compute peak of device {job.device.name or '(unnamed)'!r}: name a "
            "device of the catalog (triosim devices) or add it to the device's file"
        )
    peaks = arithmetic(job.device).flops
    return np.where(codes >= 0, peaks[codes], peaks[DTYPES.index("float32")]) / float(job.device.memory_bandwidth or 1)
