"""The kinds of kernels that have a physical model, each behind the same few functions.

A *kind* is a table of work (:mod:`triosim.kernels.work`) with the model that prices it.  Within a kind kernels are told
apart by *class* (``"matrix/tensor"``, ``"softmax"``): kernels of a class are off in the same way, so that a calibration
has scalars of its own for each.  :func:`price` prices any table of work; :mod:`triosim.kernels.models.physical`
finds the work of a trace's operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import distinct
from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPES
from triosim.hardware import catalog
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import ASSUMED_SPREAD, GPUS, arithmetic, refuse
from triosim.kernels.estimate import Estimates, Source
from triosim.kernels.physical import _constants, attention, convolution, gemm, moe, scan, stream
from triosim.kernels.physical._tables import FamilyConstants
from triosim.kernels.physical.predicted import KernelPredictions
from triosim.kernels.physical.unknown import guessed
from triosim.kernels.work.attention import AttentionCalls
from triosim.kernels.work.convolution import ConvolutionCalls
from triosim.kernels.work.gemm import Gemm
from triosim.kernels.work.moe import FAMILIES, ExpertCalls
from triosim.kernels.work.scan import ScanCalls
from triosim.kernels.work.stream import Stream

Work = Gemm | ConvolutionCalls | AttentionCalls | ExpertCalls | ScanCalls | Stream


@dataclass(frozen=True)
class RateFactors:
    """What a calibration moves of a class: factors of the rate of computing, of the bandwidths, of launches, and of the
    part of the cache in which the operands of a repeated kernel stay."""

    compute: float = 1.0
    bandwidth: float = 1.0
    launch: float = 1.0
    cache: float = 1.0


@dataclass(frozen=True)
class KernelKind:
    """One kind of kernel.

    Attributes:
        name: ``"gemm"``, ``"convolution"``, ``"attention"``, ``"moe"``, ``"scan"`` or ``"stream"``.
        work: the dataclass of its columns.
        classes: names of the classes that :attr:`class_of` counts.
        class_of: class of every row of work.
        constants: those that come with the program.
        scaled: constants with a calibration's scalars in them.
        predict: seconds and limit of every row of work on a device under some constants.
        spread: half-width of the 90 % interval (natural logarithm) of predictions under the shipped constants, given
            what binds and the device; without a device, that on devices of families that were fitted.
        shape: logarithms to base 2 of the sizes that tell kernels apart, shape (rows, sizes); near is similar.
    """

    name: str
    work: type
    classes: tuple[str, ...]
    class_of: Callable[[Any], NDArray[np.int64]]
    constants: Callable[[], Any]
    scaled: Callable[[Any, RateFactors], Any]
    predict: Callable[[Any, Accelerator, Any], KernelPredictions]
    spread: Callable[[Any, NDArray[np.int8], Accelerator | None], NDArray[np.float64]]
    shape: Callable[[Any], NDArray[np.float64]]


COMPUTE, BANDWIDTH, LAUNCH, CACHE = "compute", "bandwidth", "launch", "cache"
_FOLLOWS: Mapping[str, Mapping[str, tuple[str, int]]] = {
    "gemm": {
        "reach": (COMPUTE, 1), "joule": (COMPUTE, -1), "memory": (BANDWIDTH, 1), "launch_s": (LAUNCH, 1),
        "prologue_s": (LAUNCH, 1), "split_s": (LAUNCH, 1), "cast_s": (LAUNCH, 1), "latency_s": (LAUNCH, 1),
        "cache": (CACHE, 1),
    },
    "convolution": {
        "reach": (COMPUTE, 1), "joule": (COMPUTE, -1), "fused": (COMPUTE, 1), "filtered": (COMPUTE, 1),
        "depthwise": (COMPUTE, 1), "memory": (BANDWIDTH, 1), "layout": (BANDWIDTH, 1), "fused_memory": (BANDWIDTH, 1),
        "filtered_memory": (BANDWIDTH, 1), "launch_s": (LAUNCH, 1), "filtered_s": (LAUNCH, 1), "split_s": (LAUNCH, 1),
    },
    "prefill": {
        "efficiency": (COMPUTE, 1), "joule_per_flop": (COMPUTE, -1), "softmax_cycles": (COMPUTE, -1),
        "narrow_cycles": (COMPUTE, -1),
        "bandwidth_fraction": (BANDWIDTH, 1), "cache_rate": (BANDWIDTH, 1), "launch_s": (LAUNCH, 1),
        "cast_s": (LAUNCH, 1), "prologue_cycles": (LAUNCH, 1), "cache_fraction": (CACHE, 1),
    },
    "decode": {
        "bandwidth_fraction": (BANDWIDTH, 1), "cache_rate": (BANDWIDTH, 1), "block_rate": (BANDWIDTH, 1),
        "launch_s": (LAUNCH, 1), "split_s": (LAUNCH, 1), "part_s": (LAUNCH, 1), "block_cycles": (LAUNCH, 1),
        "head_cycles": (LAUNCH, 1), "cache_fraction": (CACHE, 1),
    },
    "moe": {
        "efficiency": (COMPUTE, 1), "tuned_efficiency": (COMPUTE, 1), "joule_per_flop": (COMPUTE, -1),
        "joule_per_byte": (COMPUTE, -1), "feed_rate": (COMPUTE, 1),
        "bandwidth_fraction": (BANDWIDTH, 1), "large_fraction": (BANDWIDTH, 1), "cache_rate": (BANDWIDTH, 1),
        "token_rate": (BANDWIDTH, 1), "launch_s": (LAUNCH, 1), "align_s": (LAUNCH, 1), "serial_cycles": (LAUNCH, 1),
        "prologue_s": (LAUNCH, 1), "cache_fraction": (CACHE, 1),
    },
    "stream": {
        "issue": (COMPUTE, 1), "row": (COMPUTE, -1), "memory": (BANDWIDTH, 1), "launch_s": (LAUNCH, 1),
    },
}  # fmt: skip
"""Constants that follow a scalar, and with which power; the others say how a kernel works, not how fast."""


def _follow(kind: str, constants: Any, by: RateFactors) -> Any:
    factors = {name: getattr(by, scalar) ** power for name, (scalar, power) in _FOLLOWS[kind].items()}
    return replace(constants, **{name: getattr(constants, name) * factor for name, factor in factors.items()})


def _each(kind: str) -> Callable[[Mapping[str, Any], RateFactors], dict[str, Any]]:
    return lambda constants, by: {name: _follow(kind, one, by) for name, one in constants.items()}


def _attention_scaled(constants: attention.AttentionConstants, by: RateFactors) -> attention.AttentionConstants:
    prefill = replace(constants.prefill, families=_each("prefill")(constants.prefill.families, by))
    return attention.AttentionConstants(
        prefill, replace(constants.decode, families=_each("decode")(constants.decode.families, by))
    )


def _scan_scaled(constants: scan.ScanConstants, by: RateFactors) -> scan.ScanConstants:
    return scan.ScanConstants(_follow("moe", constants.tiles, by), constants.launch_s * by.launch)


def _or_on_a_processor(on_gpu: Callable[..., KernelPredictions], name: str) -> Callable[..., KernelPredictions]:
    """A model of GPUs, and for processors the function of that name in :mod:`triosim.kernels.physical.processor`."""

    def predict(work: Any, device: Accelerator, constants: Any) -> KernelPredictions:
        if device.kind != "cpu":
            return on_gpu(work, device, constants)
        from triosim.kernels.physical import processor  # which runs on other devices do not load

        found: KernelPredictions = getattr(processor, name)(work, device, constants)
        return found

    return predict


# Spreads --------------------------------------------------------------------------------------------------------------


def _family(device: Accelerator) -> str:
    """Generation of an NVIDIA GPU, a server's and a workstation's apart since Ampere; empty for others."""
    return gemm.generation_of(device) or gemm.family_of(device)


@lru_cache(maxsize=64)
def _fitted_on(kind: str, *path: str) -> frozenset[str]:
    """Families of the devices that are named below ``path`` in the provenance of a kind's constants."""
    found = _constants.document(kind)["provenance"]
    for step in path:
        found = found[step]
    return frozenset(_family(catalog.accelerator(name)) for name in catalog.accelerators() if name in found)


def _there(device: Accelerator | None, families: frozenset[str]) -> bool:
    return device is None or _family(device) in families


def _gemm_spread(work: Gemm, limit: NDArray[np.int8], device: Accelerator | None) -> NDArray[np.float64]:
    fitted = gemm.load()
    if device is not None:
        return gemm.spread(work, limit, device, fitted)
    rows = np.array([fitted.spread[name].seen for name in gemm.ENGINES])
    return np.asarray(rows[_gemm_class(work), limit])


def _of_class(pairs: list[tuple[float, float]], seen: list[bool], rows: NDArray) -> NDArray[np.float64]:
    """The first of a pair on families that were fitted, else the second."""
    return np.array([pair[not here] for pair, here in zip(pairs, seen, strict=True)], np.float64)[rows]


STEP_FAMILY = frozenset({"wgmma"})
"""Convolutions on matrix units and batch norm were fitted to a training step on an H100."""


def _convolution_spread(
    work: ConvolutionCalls, limit: NDArray[np.int8], device: Accelerator | None
) -> NDArray[np.float64]:
    names, spreads = ("simt", "tensor"), convolution.spreads()
    seen = [_there(device, _fitted_on("convolution", "left_out")), _there(device, STEP_FAMILY)]
    return _of_class([spreads[name] for name in names], seen, _convolution_engine(work))


def _stream_spread(work: Stream, limit: NDArray[np.int8], device: Accelerator | None) -> NDArray[np.float64]:
    spreads = stream.spreads()
    seen = [
        _there(device, STEP_FAMILY if name == "batch_norm" else _fitted_on("stream", "left_out", name))
        for name in stream.CLASSES
    ]
    return _of_class([spreads[name] for name in stream.CLASSES], seen, stream.CLASS_OF[work.kind])


def _attention_spread(work: AttentionCalls, limit: NDArray[np.int8], device: Accelerator | None) -> NDArray[np.float64]:
    table, out, decodes = attention.constants(), np.empty(len(work)), work.decodes()
    for code in distinct(work.family).tolist():
        family = attention.resolved(attention.FAMILIES[code], device) if device else ""
        for phase, name, of in ((False, "prefill", table.prefill), (True, "decode", table.decode)):
            out[(decodes == phase) & (work.family == code)] = _of_family(of, name, family, device)
    return out


def _of_family(of: FamilyConstants, phase: str, family: str, device: Accelerator | None) -> float:
    """Of kernels of a family: on a device that was measured, on another of its generation, on any other."""
    if device is None or not family:
        return of.spread
    if family not in of.families or not _there(device, _fitted_on("attention", phase, "devices", family)):
        return of.spread_unseen
    measured = _constants.document("attention")["provenance"][phase]["devices"][family]
    return of.spread if device.name in measured else math.hypot(of.spread, of.spread_between)


def _moe_spread(work: ExpertCalls, limit: NDArray[np.int8], device: Accelerator | None) -> NDArray[np.float64]:
    table = moe.constants()
    seen = _there(device, _fitted_on("moe", "devices", "triton"))
    spread = np.full(len(work), table.spread if seen else table.spread_unseen)
    if device is None or device.vendor in ("NVIDIA", ""):
        return spread
    # Marlin is of NVIDIA GPUs, and of kernels that make 16 bits of 4 elsewhere a single call is known
    elsewhere = (work.family == FAMILIES.index("marlin")) | (work.family == FAMILIES.index("upcast"))
    return np.where(elsewhere, np.hypot(spread, ASSUMED_SPREAD), spread)


def _scan_spread(work: ScanCalls, limit: NDArray[np.int8], device: Accelerator | None) -> NDArray[np.float64]:
    seen = _there(device, _fitted_on("moe", "devices", "triton"))
    known = scan.spreads()
    pairs = [known.get(name, (ASSUMED_SPREAD, ASSUMED_SPREAD)) for name in _SCANS]  # nobody published selective scans
    return _of_class(pairs, [seen] * len(pairs), _scan_class(work))


# Classes --------------------------------------------------------------------------------------------------------------


def _gemm_class(work: Gemm) -> NDArray[np.int64]:
    codes, at = np.unique(work.dtype, return_inverse=True)
    found = np.array([gemm.ENGINES.index(gemm.engine(code)) for code in codes.tolist()], np.int64)[at.ravel()]
    return np.where(work.tuned & (found == gemm.ENGINES.index("narrow")), gemm.ENGINES.index(gemm.TUNED), found)


def _convolution_engine(work: ConvolutionCalls) -> NDArray[np.int64]:
    codes, at = np.unique(work.dtype, return_inverse=True)
    return np.array([convolution.engine(code) == "tensor" for code in codes.tolist()], np.int64)[at.ravel()]


def _convolution_class(work: ConvolutionCalls) -> NDArray[np.int64]:
    return _convolution_engine(work) + 2 * ~work.forward


def _attention_class(work: AttentionCalls) -> NDArray[np.int64]:
    return np.where(work.backward, 2, work.decodes().astype(np.int64))


_SCANS = ("scan", "scan_backward", "selective_scan", "selective_scan_backward")


def _scan_class(work: ScanCalls) -> NDArray[np.int64]:
    return work.backward.astype(np.int64) + 2 * work.selective


def _stream_class(work: Stream) -> NDArray[np.int64]:
    return work.kind.astype(np.int64)


# Shapes ---------------------------------------------------------------------------------------------------------------


def _log2(*columns: NDArray) -> NDArray[np.float64]:
    return np.log2(np.maximum(np.stack(columns, axis=1).astype(np.float64), 0.5))


def _convolution_shape(w: ConvolutionCalls) -> NDArray[np.float64]:
    return _log2(w.images, w.in_channels, w.out_channels, w.groups, w.out_rows * w.out_columns, w.taps(), w.stride)


def _attention_shape(w: AttentionCalls) -> NDArray[np.float64]:
    return _log2(w.batch, w.queries, w.keys, w.heads, w.kv_heads, w.head, w.window + 1)


def _moe_shape(w: ExpertCalls) -> NDArray[np.float64]:
    return _log2(w.tokens, w.topk, w.hidden, w.inner, w.local())


def _scan_shape(w: ScanCalls) -> NDArray[np.float64]:
    return _log2(w.sequences, w.length, w.heads, w.groups, w.state, w.head, w.chunk)


def _stream_shape(w: Stream) -> NDArray[np.float64]:
    return _log2(w.read, w.written, w.row_bytes)


KINDS: tuple[KernelKind, ...] = (
    KernelKind(
        "gemm", Gemm, tuple(f"matrix/{engine}" for engine in gemm.ENGINES), _gemm_class,
        lambda: gemm.load().constants, _each("gemm"), _or_on_a_processor(gemm.predict, "products"), _gemm_spread,
        lambda w: _log2(w.m, w.n, w.k, w.batch),
    ),
    KernelKind(
        "convolution", ConvolutionCalls,
        ("convolution/simt", "convolution/tensor", "convolution_backward/simt", "convolution_backward/tensor"),
        _convolution_class, convolution.load, _each("convolution"),
        _or_on_a_processor(convolution.predict, "convolutions"), _convolution_spread, _convolution_shape,
    ),
    KernelKind(
        "attention", AttentionCalls, ("attention", "attention_decode", "attention_backward"), _attention_class,
        attention.constants, _attention_scaled, attention.predict, _attention_spread, _attention_shape,
    ),
    KernelKind(
        "moe", ExpertCalls, ("experts",), lambda w: np.zeros(len(w), np.int64), moe.constants,
        lambda table, by: replace(table, families=_each("moe")(table.families, by)), moe.predict, _moe_spread,
        _moe_shape,
    ),
    KernelKind(
        "scan", ScanCalls, _SCANS, _scan_class, scan.constants,
        _scan_scaled, scan.predict, _scan_spread, _scan_shape,
    ),
    KernelKind(
        "stream", Stream, stream.KINDS, _stream_class, stream.load, _each("stream"), stream.predict, _stream_spread,
        _stream_shape,
    ),
)  # fmt: skip
"""Every kind; a new one is one more entry."""

BY_NAME: Mapping[str, KernelKind] = {kind.name: kind for kind in KINDS}


def kind_of(work: Work) -> KernelKind:
    """The kind that a table of work belongs to.

    Raises:
        TypeError: it is none of :data:`KINDS`.
    """
    for kind in KINDS:
        if isinstance(work, kind.work):
            return kind
    raise TypeError(f"{type(work).__name__} is not a table of work")


class KernelTimes(NamedTuple):
    """Kernels with their intervals, one row each: seconds, what binds, and half-width as a logarithm."""

    seconds: NDArray[np.float64]
    limit: NDArray[np.int8]
    spread: NDArray[np.float64]


def shipped(kind: KernelKind, work: Any, device: Accelerator, names: Sequence[str] = ()) -> KernelTimes:
    """Work of one kind under the constants that come with the program; the operators' names do not matter to them.

    Raises:
        InputError: the device has no compute peak or no memory bandwidth.
    """
    seconds, limit = kind.predict(work, device, kind.constants())
    spread = np.hypot(kind.spread(work, limit, device), guessed(kind.name, device))
    if not isinstance(work, Stream):
        spread = np.hypot(spread, arithmetic(device).spread[work.dtype])
    return KernelTimes(seconds, limit, spread)


def least(kind: KernelKind, work: Any, device: Accelerator, names: Sequence[str] = ()) -> KernelTimes:
    """Seconds that :func:`shipped` never says less of, convex in samples that work grows with; 0 where nothing is said.

    Raises:
        InputError: the device has no compute peak or no memory bandwidth.
    """
    seconds = np.zeros(len(work))
    if kind.name == "attention":
        seconds = attention.least(work, device)
    elif kind.name == "stream":
        seconds = stream.least(work, device)
    return KernelTimes(seconds, np.zeros(len(work), np.int8), np.zeros(len(work)))


def price(work: Work, device: Accelerator) -> Estimates:
    """Estimates of kernels given by their sizes, with the constants that come with the program.

    They say nothing about what is not a GPU, whose cores are of another width and whose memory is fed in another way:
    there the roofline stands in, as for the operators of a trace.

    Args:
        work: what is done, any number of rows of one kind.
        device: with its peaks and memory bandwidth.

    Raises:
        InputError: the device has no compute peak or no memory bandwidth, or cannot multiply an element type.
    """
    if not isinstance(work, Stream):
        for code in distinct(work.dtype).tolist():
            refuse(device, DTYPES[code])
    if device.kind not in GPUS:
        from triosim.kernels.models.roofline import of_work

        return of_work(work, device)
    found = shipped(kind_of(work), work, device)
    return Estimates(found.seconds, found.spread, np.full(len(work), Source.PHYSICAL, np.int8), found.limit)
