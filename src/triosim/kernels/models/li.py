"""Li's model: operator times by linear regression on the work, carried to other devices by their memory bandwidth.

The method is that of Li, Sun, Jog: "Path Forward Beyond Simulators: Fast and Accurate GPU Execution Time Prediction for
DNN Workloads" (MICRO 2023): the time of a kernel is a straight line of what drives it, which is its count of operations
or the size of its input or output; on a device that was not measured the rates (the inverses of the slopes) follow from
straight lines of the rates over the devices' memory bandwidth.  Per class of work::

    seconds = intercept + FLOP / flop_rate + bytes / byte_rate
    flop_rate = flop_rate_offset + flop_rate_slope * bandwidth          byte_rate likewise

Where this departs from the paper:

* The paper has a line for each kernel, told by its name, and chooses the kernel's one driver by the best fit.  Here a
  class of operators is one "kernel"; as it holds both shapes driven by operations and shapes driven by size (a
  matrix product of one row), both drivers stand in one regression with coefficients that are not negative.
* The paper has inference in float32.  An operation in a type whose peak is twice that of the class's own type
  (:data:`TYPES`) counts half.
* Training, as TrioSim (ISCA 2025) extended the model to it: a backward operator is priced by a line over its own
  operations and bytes, that of its own class where backward kernels were measured (convolutions) and else that of the
  forward class; optimizer steps, losses and everything else that has no count of operations, by the line of
  element-wise operators over bytes.
* Errors are relative, not absolute, so that small kernels count as much as large ones.

The constants are fitted by ``validation/fit/li.py``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dtypes import DTYPE_CODE
from triosim.core.errors import InputError
from triosim.core.registry import registered
from triosim.hardware.accelerator import Accelerator
from triosim.kernels import pack as packs
from triosim.kernels.arithmetic import MultiplicationMethod, arithmetic
from triosim.kernels.classes import NOTHING
from triosim.kernels.estimate import Estimates, Source
from triosim.kernels.model import OperatorModel, PricingJob
from triosim.kernels.models.roofline import predict
from triosim.kernels.pack import RooflinePack

SCHEMA = "triosim/li/1"

TYPES = {"simt": "float32", "tensor": "bfloat16", "narrow": "float8_e4m3fn"}
"""Engine -> element type whose operations count one."""

CONSTANTS = (
    "intercept_s", "flop_rate_offset", "flop_rate_slope", "byte_rate_offset", "byte_rate_slope", "spread",
    "spread_unseen",
)  # fmt: skip


@functools.lru_cache(maxsize=1)
def load() -> dict[str, Any]:
    """The constants that come with the program, by class."""
    text = (resources.files("triosim.kernels") / "data" / "li.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    if document["schema"] != SCHEMA:
        raise RuntimeError(f"li.json has schema {document['schema']!r}, expected {SCHEMA!r}")
    return document


def rate(offset: NDArray | float, slope: NDArray | float, bandwidth: NDArray | float) -> NDArray[np.float64]:
    """Operations or bytes per second on a device of this memory bandwidth (bytes per second)."""
    return np.asarray(offset + slope * bandwidth, np.float64)


def lines(device: Accelerator) -> RooflinePack:
    """The regressions on one device, as parts of its datasheet's figures.

    Raises:
        InputError: the device has no compute peak or no memory bandwidth.
    """
    if device.memory_bandwidth is None or not device.peak_flops:
        missing = "compute peak" if not device.peak_flops else "memory bandwidth"
        raise InputError(
            f"operator times 'li' need the {missing} of device {device.name or '(unnamed)'!r}: name a device of the "
            "catalog (triosim devices) or add it to the device's file"
        )
    classes = load()["classes"]
    base = packs.load()
    chosen = [classes[key] for key in base.keys]
    column = {name: np.array([entry[name] for entry in chosen], np.float64) for name in CONSTANTS}
    bandwidth = device.memory_bandwidth
    flop_rate = rate(column["flop_rate_offset"], column["flop_rate_slope"], bandwidth)
    byte_rate = rate(column["byte_rate_offset"], column["byte_rate_slope"], bandwidth)
    return replace(
        base,
        name="li",
        floor_s=column["intercept_s"],
        compute=np.where(flop_rate > 0, flop_rate, np.inf) / _peaks(base.keys, device),
        memory=np.where(byte_rate > 0, byte_rate, np.inf) / bandwidth,
        overlap=np.ones(len(chosen)),
        spread=column["spread"],
        spread_unseen=column["spread_unseen"],
        families=tuple(tuple(entry["families"]) for entry in chosen),
    )


def _peaks(keys: Sequence[str], device: Accelerator) -> NDArray[np.float64]:
    return np.array([_peak(device, key.partition("/")[2] or "simt") for key in keys], np.float64)


def _peak(device: Accelerator, engine: str) -> float:
    """FLOP/s at which an operation counts one: of the engine's own type, or else of the fastest that it multiplies."""
    types = arithmetic(device)
    own = DTYPE_CODE[TYPES[engine]]
    there = [
        code for code, row in enumerate(types.rows) if row.unit == engine and row.method == MultiplicationMethod.NATIVE
    ]
    return float(types.flops[own] if own in there or not there else types.flops[there].max())


@registered
class Li(OperatorModel):
    """Every operator from the regressions; a recording is not looked at."""

    def price(self, job: PricingJob) -> Estimates:
        """See the module's docstring.

        Raises:
            InputError: the device has no compute peak or no memory bandwidth.
        """
        found = predict(job.trace, job.device, lines(job.device))
        source = np.where(found.classified.group == NOTHING, Source.NOTHING, Source.REGRESSION).astype(np.int8)
        return Estimates(found.seconds, found.spread, source, found.limit)
