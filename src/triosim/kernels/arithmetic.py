"""How a device multiplies an element type: on its matrix units, on its vector units, emulated, or not at all.

What a datasheet has is multiplied natively.  What it has not is decided here, the way PyTorch and the vendors'
libraries decide it:

* **16 bits on NVIDIA GPUs without matrix units for them.**  cuBLAS accumulates in float32 (``CUBLAS_COMPUTE_32F``, what
  PyTorch asks for), so that float16 runs at float32's rate, whatever packed arithmetic the chip has.  bfloat16 exists
  in hardware from compute capability 8.0 on; from 5.0 on cuBLAS converts each element to float32 and multiplies on the
  vector units, which costs instructions of its own (PyTorch pull request 50442; ``cublasGemmEx`` refuses anything
  older).  ``data/physical/emulation.json`` has the measured rates.
* **TF32** without such units is float32: the flag that asks for it has no effect.
* **8 and 4 bits in floating point** on GPUs that lack them: nothing multiplies them (``torch._scaled_mm`` wants compute
  capability 8.9 or MI300, 4 bits 10.0 or MI350).
* **float32 on TPUs** runs in one pass of bfloat16, XLA's default precision.
* Anything else is assumed to run like the next type that the datasheet has, which is said and makes the interval wide.

What only moves bytes runs in every type, everywhere, at the speed of the memory.
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from functools import lru_cache
from math import hypot, log

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_CODE, DTYPES
from triosim.core.errors import InputError
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.physical import _constants
from triosim.trace.tables import ITEM_BYTES

GPUS = ("gpu", "edge-gpu", "apu")
"""Kinds of devices that the libraries above run on, and that constants were fitted on."""

UNITS = ("simt", "tensor", "narrow", "fourbit")
"""What multiplies: the vector units (32 and 64 bits), the matrix units at 16 bits and TF32, at 8 bits, and below."""

_VECTOR_TYPES = ("float64", "float32", "complex64", "complex128", "int64", "int32", "int16", "unknown")
_LIKE_INT8 = ("int4", "uint8", "bool")
"""Types whose rate datasheets seldom give: that of int8 where they do not."""
_HALVES = ("float16", "bfloat16")
_NARROW_FLOATS = {"float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e4m3fn", "float4_e2m1": "float4_e2m1"}
"""Floating-point types of 8 and 4 bits, and the one whose rate holds for them."""
_NEEDS = {
    "float8_e4m3fn": "8 bits take matrix units of compute capability 8.9, of CDNA3, or newer",
    "float4_e2m1": "4 bits take matrix units of compute capability 10.0, of CDNA4, or newer",
}
_NEXT = {  # what a type is assumed to run like where the datasheet does not have it
    "bfloat16": ("float16", "tfloat32", "float32"), "float16": ("bfloat16", "float32"),
    "tfloat32": ("bfloat16", "float16"), "float32": ("tfloat32", "bfloat16", "float16"),
    "float64": ("float32", "bfloat16", "float16"), "int8": ("bfloat16", "float16", "float32"),
    "float8_e4m3fn": ("bfloat16", "float16", "float32"),
    "float4_e2m1": ("float8_e4m3fn", "bfloat16", "float16", "float32"),
}  # fmt: skip
ASSUMED_SPREAD = log(2.0)
"""Half-width of the 90 % interval (natural logarithm) of a rate that is assumed; chosen, nothing was measured."""


class MultiplicationMethod(IntEnum):
    """How a type is multiplied."""

    NATIVE = 0
    EMULATED = 1
    ASSUMED = 2
    IMPOSSIBLE = 3


@dataclass(frozen=True)
class Multiplication:
    """How a device multiplies one element type.

    Attributes:
        dtype: whose rate in the datasheet holds.
        unit: of :data:`UNITS`.
        rate: part of what products of ``dtype`` reach.
        method: of :class:`MultiplicationMethod`.
        spread: natural logarithm of the factor of the 90 % interval of ``rate``.
        words: what a reader of a prediction should know, ``""`` where all is as expected.
        why: more about it.
        suggestion: what to do about it.
    """

    dtype: str
    unit: str
    rate: float = 1.0
    method: MultiplicationMethod = MultiplicationMethod.NATIVE
    spread: float = 0.0
    words: str = ""
    why: str = ""
    suggestion: str = ""

    def warning(self) -> str:
        """What is not as one would expect, and the suggestion."""
        return "; ".join(x for x in (self.words, self.suggestion) if x)

    def source(self) -> str:
        """Where the rate is from."""
        return f"types: {self.words}" + (f" ({self.why})" if self.why else "")


@lru_cache(maxsize=1)
def _ratios() -> dict[str, dict[str, float]]:
    """Measured rates in that of float32, ``validation/fit/emulation.py``."""
    found: dict[str, dict[str, float]] = _constants.document("emulation")["ratios"]
    return found


def unit_of(dtype: str) -> str:
    """The unit that multiplies a type where a device has one for it, of :data:`UNITS`."""
    if dtype in _VECTOR_TYPES:
        return "simt"
    size = ITEM_BYTES[DTYPE_CODE[dtype]]
    return "tensor" if size > 1 else "narrow" if size == 1 else "fourbit"


def multiplication(device: Accelerator, dtype: str) -> Multiplication:
    """How ``device`` multiplies ``dtype``.  What it cannot multiply has the method ``IMPOSSIBLE`` and some rate.

    Raises:
        InputError: the device has no compute peak at all.
    """
    return arithmetic(device).rows[DTYPE_CODE[dtype]]


def _multiplication(device: Accelerator, dtype: str) -> Multiplication:
    peaks, unit = device.peak_flops, unit_of(dtype)
    name = _NARROW_FLOATS.get(dtype, dtype)
    if dtype in _LIKE_INT8 and dtype not in peaks:
        name = "int8"
    elif dtype in _VECTOR_TYPES and dtype not in peaks and dtype != "float64":
        name = "float32"
    if unit == "tensor" and "float32" in peaks:
        on_matrix_units = device.matrix_types is None or name in device.matrix_types
        if name == "tfloat32" and not (on_matrix_units and name in peaks):
            return Multiplication("float32", "simt")
        if not on_matrix_units:
            return _on_vector_units(device, name)
    return Multiplication(name, unit) if name in peaks else _missing(device, name)


def _on_vector_units(device: Accelerator, dtype: str) -> Multiplication:
    """float16 or bfloat16 on a device that has no matrix units for it."""
    where = device.name or "this device"
    if device.vendor == "NVIDIA" and device.kind in GPUS and device.compute_capability:
        if dtype == "bfloat16":
            return _converted(device, where)
        one = _ratios()["float16"]
        words = f"float16 products on {where} are summed in float32, at {one['rate']:.2g} of its rate"
        why = f"no matrix units in compute capability {device.compute_capability}"
        return Multiplication("float32", "simt", one["rate"], MultiplicationMethod.NATIVE, one["spread"], words, why)
    if dtype in device.peak_flops:  # packed arithmetic with sums in 32 bits
        return Multiplication(dtype, "simt")
    if device.vendor == "AMD" and device.kind in GPUS and dtype == "bfloat16":
        one = _ratios()["bfloat16 AMD"]
        return Multiplication(
            "float32", "simt", one["rate"], MultiplicationMethod.EMULATED, one["spread"],
            f"bfloat16 products are emulated on {where} at {one['rate']:.2g} of float32's rate",
            "measured on another card", _faster(device),
        )  # fmt: skip
    return _missing(device, dtype)


def _converted(device: Accelerator, where: str) -> Multiplication:
    """bfloat16 on an NVIDIA GPU that has no units for it."""
    if device.major < 5:
        return Multiplication(
            "float32", "simt", 1.0, MultiplicationMethod.IMPOSSIBLE, 0.0,
            f"bfloat16 products cannot run on {where} (compute capability {device.compute_capability}), only from 5.0 "
            "on",
        )  # fmt: skip
    one = _ratios()["bfloat16 x.0" if device.compute_capability.endswith(".0") else "bfloat16 other"]
    return Multiplication(
        "float32", "simt", one["rate"], MultiplicationMethod.EMULATED, one["spread"],
        f"bfloat16 products are emulated on {where} at {one['rate']:.2g} of float32's rate",
        f"compute capability {device.compute_capability} has no units for them: cuBLAS converts to float32 and "
        "multiplies on the vector units", _faster(device),
    )  # fmt: skip


def _faster(device: Accelerator) -> str:
    """The other type of 16 bits, where it is faster."""
    if device.matrix_types and "float16" in device.matrix_types:
        return "float16 (--precision) runs on its matrix units"
    return "float16 (--precision) is faster"


def _missing(device: Accelerator, dtype: str) -> Multiplication:
    """A type for which the datasheet has no rate."""
    where, peaks = device.name or "this device", device.peak_flops
    floats = [name for name in peaks if not name.startswith("int")]
    found = next((name for name in _NEXT.get(dtype, ()) if name in peaks), None) or max(peaks, key=peaks.__getitem__)
    like = _multiplication(device, found)
    if dtype == "float32" and device.vendor == "Google" and found == "bfloat16":
        return replace(
            like, words=f"float32 products on {where} run in one pass of bfloat16", why="XLA's default precision"
        )
    impossible = ""
    if dtype in _NEEDS and device.kind in (*GPUS, "soc"):
        impossible = f"{where} has no units for {dtype}, and no kernel emulates them ({_NEEDS[dtype]})"
    elif not floats and not dtype.startswith("int"):
        impossible = f"{where} multiplies integers only, not {dtype}"
    elif dtype == "float64":
        impossible = f"the datasheet of {where} has no rate for float64, which may be any part of that of float32"
    if impossible:
        return replace(like, method=MultiplicationMethod.IMPOSSIBLE, words=impossible, why="", suggestion="")
    return replace(
        like, method=MultiplicationMethod.ASSUMED, spread=hypot(like.spread, ASSUMED_SPREAD),
        words=f"the datasheet of {where} has no rate for {dtype}: its products are assumed to run like {found}",
        why="", suggestion="a device file can give it: peak_flops",
    )  # fmt: skip


@dataclass(frozen=True)
class Arithmetic:
    """How a device multiplies every element type, one row per code of :data:`~triosim.trace.tables.DTYPES`.

    Attributes:
        rows: by code.
        flops: FLOP/s of the datasheet's peaks, times the part that is left.
        spread: natural logarithm of the factor of the 90 % interval that this part has.
        emulated: whether the type is emulated.
    """

    rows: tuple[Multiplication, ...]
    flops: NDArray[np.float64]
    spread: NDArray[np.float64]
    emulated: NDArray[np.bool_]


def arithmetic(device: Accelerator) -> Arithmetic:
    """How ``device`` multiplies every type.

    Raises:
        InputError: it has no compute peak at all.
    """
    if not device.peak_flops:
        name = device.name or "(unnamed)"
        raise InputError(f"device {name!r} has no compute peak: name a device of the catalog or give peak_flops")
    return _of_figures(
        device.name, device.vendor, device.kind, device.compute_capability, device.matrix_types,
        tuple(device.peak_flops.items()),
    )  # fmt: skip


@lru_cache(maxsize=256)
def _of_figures(
    name: str, vendor: str, kind: str, capability: str, matrix_types: tuple[str, ...] | None,
    peaks: tuple[tuple[str, float], ...],
) -> Arithmetic:  # fmt: skip
    """All that decides it, since a device with a table of peaks cannot be a key."""
    device = Accelerator(
        name, vendor, kind, compute_capability=capability, matrix_types=matrix_types, peak_flops=dict(peaks)
    )
    rows = tuple(_multiplication(device, dtype) for dtype in DTYPES)
    flops = np.array([device.peak(row.dtype) * row.rate for row in rows])
    spread, emulated = (
        np.array([row.spread for row in rows]),
        np.array([row.method == MultiplicationMethod.EMULATED for row in rows]),
    )
    return Arithmetic(rows, flops, spread, emulated)


def rate(dtype: str, device: Accelerator) -> float:
    """FLOP/s that no product of a type exceeds on a device: the datasheet's, or those of what stands in for it.

    Raises:
        InputError: the device has no compute peak at all.
    """
    return float(arithmetic(device).flops[DTYPE_CODE[dtype]])


def works(device: Accelerator) -> list[str]:
    """Types of models that the device multiplies, widest first."""
    names = [name for name in DTYPES if name.startswith(("float", "bfloat")) or name == "int8"]
    return [name for name in names if multiplication(device, name).method < MultiplicationMethod.ASSUMED]


def refuse(device: Accelerator, dtype: str) -> None:
    """Refuse a type that the device cannot multiply.

    Raises:
        InputError: it cannot; the message names types that work.
    """
    found = multiplication(device, dtype)
    if found.method == MultiplicationMethod.IMPOSSIBLE:
        raise InputError(f"{found.words}: types that work are {', '.join(works(device)) or 'none'}")
