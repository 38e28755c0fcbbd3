"""The physical models on a GPU that they never saw, for :mod:`validation.judge.kernels`.

Constants are those of ``validation/fit/physical_KIND.py``, fitted anew to the public measurements of all devices but
the one that is judged, also where that is the only one of its generation (Hopper's FlashAttention-3 is then what
:func:`triosim.kernels.physical.attention.newer` makes of the second).  Kernels that were measured on that device only
are judged on held-out shapes: a fifth of them is left out in turn.

The interval's half-width is the 90 % quantile of the errors on the other devices, each left out in turn as well: pooled
where the judged device's architecture is among theirs, else the largest of one device times ``sqrt(1 + 1/n)`` for
``n`` devices (``linear`` and ``bmm``: one interval, times the margin of the script that fits them).  Where there is
one other device only, the errors between devices are taken from matrix products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from validation.data import kernel_rows
from validation.data.kernel_rows import Rows
from validation.fit import physical_attention as fit_physical_attention
from validation.fit import physical_convolution as fit_physical_convolution
from validation.fit import physical_gemm as fit_physical_gemm
from validation.fit import physical_moe as fit_physical_moe
from validation.fit import physical_stream as fit_physical_stream
from validation.fit.roofline import quantile

from triosim.core.dtypes import DTYPE_BYTES, DTYPE_CODE
from triosim.hardware import catalog
from triosim.kernels.physical.attention import Decode, Prefill, newer
from triosim.kernels.work.attention import FAMILIES, AttentionCalls
from triosim.kernels.work.convolution import convolution
from triosim.kernels.work.gemm import gemm
from triosim.kernels.work.moe import ExpertCalls
from triosim.kernels.work.stream import rowwise

FOLDS = 5
CHECKED = 2000
"""Rows of a device that a spread is found from."""

Seconds = Callable[[Rows], NDArray[np.float64]]


@dataclass(frozen=True)
class Kind:
    """How one kind of kernel is fitted and predicted.

    Attributes:
        fit: constants from the public measurements of a class, without those of some devices.
        fold: constants from the rows given, for families of fewer devices; None where there are none.
        least: other devices that it takes to leave one out.
    """

    fit: Callable[[str, frozenset[str]], Seconds]
    fold: Callable[[Rows], Seconds] | None = None
    least: int = 1


@lru_cache(maxsize=8)
def learning(layout: str) -> Rows:
    """The public measurements of a layout."""
    return kernel_rows.read(kernel_rows.shipped(layout), {})[0]


def available(layout: str) -> bool:
    """Whether the public measurements of a layout are there."""
    return kernel_rows.shipped(layout).exists()


# Matrix products ------------------------------------------------------------------------------------------------------

_ENGINES = {
    "gemm/bfloat16": "tensor", "gemm/float16": "tensor", "gemm/nvfp4": "fourbit",
    "gemm/fp8_block": "tuned", "bmm": "simt", "linear": "simt",
}  # fmt: skip


_UNITS = ("tensor", "narrow", "tuned", "fourbit", "simt")


def _products(rows: Rows) -> fit_physical_gemm.Rows:
    columns, served = rows.columns, rows.layout == "gemm"
    if served:
        m, n, k = (columns[name].astype(float) for name in "mnk")
        batch = np.ones(len(rows))
    else:  # NeuSight calls the summed dimension N and the columns of the product K
        batch, m, k, n = (np.nan_to_num(columns[name].astype(float)) for name in "BMNK")
        batch = np.where(rows.label == "bmm", batch, 1.0)
    casts = served and not str(rows.label[0]).endswith("16")
    tuned = str(rows.label[0]) == "gemm/fp8_block"
    work = gemm(m, n, k, str(rows.dtype[0]), batch, warm=True, casts=casts, tuned=tuned)
    return fit_physical_gemm.Rows(rows.device, work, rows.seconds)


@lru_cache(maxsize=1)
def _gemm_data() -> fit_physical_gemm.Data:
    return fit_physical_gemm.measured()


@lru_cache(maxsize=64)
def _gemm_constants(vector: bool, without: frozenset[str]) -> dict[str, Any]:
    data = _gemm_data()
    few = np.arange(8)  # the units that are not asked for: a handful of rows, so as not to spend time on them
    shrunk = {name: getattr(data, name) for name in _UNITS}
    for name, rows in shrunk.items():
        rows = rows.take(np.flatnonzero(~np.isin(rows.device, list(without))))
        shrunk[name] = rows if (name == "simt") == vector or not len(rows) else rows.take(few)
    found: dict[str, Any] = fit_physical_gemm.fit(fit_physical_gemm.Data(**shrunk), without)
    return found


def _fit_gemm(label: str, without: frozenset[str]) -> Seconds:
    engine = _ENGINES.get(label, "narrow")
    constants = _gemm_constants(engine == "simt", without)[engine]
    return lambda rows: fit_physical_gemm.predicted(_products(rows), constants)


def _gemm_from(rows: Rows) -> Seconds:
    """Constants of a type that one device was measured with; those of wider types are where its fit begins."""
    engine = _ENGINES.get(str(rows.label[0]), "narrow")
    data = _gemm_data()
    known = {name: getattr(data, name).without(str(rows.device[0])) for name in _UNITS}
    if engine != "simt":  # not asked for: a handful of rows, so as not to spend time on them
        known["simt"] = known["simt"].take(np.arange(8))
    known[engine] = fit_physical_gemm.even(_products(rows))
    constants = fit_physical_gemm.fit(fit_physical_gemm.Data(**known), None)[engine]
    return lambda asked: fit_physical_gemm.predicted(_products(asked), constants)


# Attention ------------------------------------------------------------------------------------------------------------


def _family(rows: Rows) -> NDArray[np.str_]:
    source = rows.columns["kernel_source"].astype(str)
    hopper = rows.fact(lambda name: float(catalog.accelerator(name).architecture.startswith("Hopper"))) > 0
    flash = np.where(hopper, "flash3", "flash2")
    return np.where(source == "flash_attention", flash, np.where(source == "triton", "triton", "trtllm"))


def _attention(rows: Rows) -> fit_physical_attention.Measured:
    c = rows.columns
    batch, heads, kv_heads, head, queries, step = (
        c[name].astype(float) for name in ("batch_size", "num_heads", "num_key_value_heads", "head_dim", "isl", "step")
    )
    kv_heads = np.where(kv_heads > 0, kv_heads, heads)
    keys = queries if rows.layout == "attention_prefill" else step + 1
    window = np.nan_to_num(c["window_size"].astype(float))
    kv_type = np.where(c["kv_cache_dtype"].astype(str) == "bfloat16", "bfloat16", "float8_e4m3fn")
    yes, no = np.ones(len(rows), bool), np.zeros(len(rows), bool)
    work = AttentionCalls(
        batch, queries, keys, heads, kv_heads, head, head, window, yes, no, yes, no, yes,
        np.array([DTYPE_CODE[d] for d in rows.dtype.tolist()], np.int8), np.full(len(rows), 2.0),
        np.array([DTYPE_BYTES[d] for d in kv_type.tolist()], np.float64),
        np.array([FAMILIES.index(f) for f in _family(rows).tolist()], np.int8),
    )  # fmt: skip
    variant = np.char.add(np.char.add(c["attn_dtype"].astype(str), "/"), c["kv_cache_dtype"].astype(str))
    return fit_physical_attention.Measured(work, rows.device, variant, rows.seconds)


def _phase(layout: str) -> fit_physical_attention.Phase:
    return Prefill if layout == "attention_prefill" else Decode


def _attention_from(rows: Rows) -> Seconds:
    """Constants per kernel family of the rows; others' where a family is not among them."""
    measured, cls = _attention(rows), _phase(rows.layout)
    family = measured.work.family
    found = {
        int(code): fit_physical_attention.fit(measured.take(np.flatnonzero(family == code)), cls)
        for code in np.unique(family)
    }

    def seconds(asked: Rows) -> NDArray[np.float64]:
        work = _attention(asked)
        out = np.full(len(asked), np.nan)
        for code, constants in found.items():
            at = np.flatnonzero(work.work.family == code)
            if at.size:
                out[at] = fit_physical_attention.predict(work.take(at), constants)
        return out

    return seconds


@lru_cache(maxsize=64)
def _attention_of(layout: str, family: str, without: frozenset[str]) -> Seconds:
    """Constants of a family; where only devices that were left out have it, what an older one makes of it."""
    rows = learning(layout)
    others = ~np.isin(rows.device, list(without))
    if (own := others & (_family(rows) == family)).any():
        return _attention_from(rows.take(np.flatnonzero(own)))
    if not (old := others & (_family(rows) == "flash2")).any():
        return _attention_of(layout, "flash3", without)
    older = rows.take(np.flatnonzero(old))
    constants = newer(fit_physical_attention.fit(_attention(older), _phase(layout)))
    return lambda asked: fit_physical_attention.predict(_attention(asked), constants)


def _fit_attention(label: str, without: frozenset[str]) -> Seconds:
    layout = label.partition("/")[0]

    def seconds(rows: Rows) -> NDArray[np.float64]:
        out = np.full(len(rows), np.nan)
        families = _family(rows)
        for family in np.unique(families).tolist():
            at = np.flatnonzero(families == family)
            out[at] = _attention_of(layout, family, without)(rows.take(at))
        return out

    return seconds


# Convolutions ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _convolutions() -> tuple[fit_physical_convolution.Rows, dict[str, float]]:
    """Measured convolutions without the host's time, and that time by device."""
    rows = learning("fp32_ops")
    whole = fit_physical_convolution.isolated()[0]
    host = {}
    for name in np.unique(whole.device).tolist():
        seconds = rows.seconds[(rows.device == name) & (rows.label == "conv")]
        host[str(name)] = float(np.quantile(seconds, fit_physical_convolution.SHORTEST))
    return fit_physical_convolution.sampled(whole), host


def _fit_convolution(label: str, without: frozenset[str]) -> Seconds:
    _, host = _convolutions()
    constants = _convolution_constants(without)
    issued = float(np.median([h for name, h in host.items() if name not in without]))

    def seconds(rows: Rows) -> NDArray[np.float64]:
        names = ("B", "Input_Channel", "Output_Channel", "Input_Size")
        batch, channels, filters, side = (rows.columns[name].astype(float) for name in names)
        work = convolution(batch, channels, filters, side, 3, DTYPE_CODE["float32"])
        asked = fit_physical_convolution.Rows(rows.device, work, rows.seconds)
        return issued + fit_physical_convolution.predicted(asked, constants)

    return seconds


@lru_cache(maxsize=32)
def _convolution_constants(without: frozenset[str]) -> Any:
    measured, _ = _convolutions()
    keep = np.flatnonzero(~np.isin(measured.device, list(without)))
    return fit_physical_convolution.fit(measured.take(keep), "simt")


# Mixture of experts ---------------------------------------------------------------------------------------------------


def _experts(rows: Rows) -> fit_physical_moe.Measured:
    c = rows.columns
    tokens, hidden, inner, topk, experts, tp, ep = (
        c[name].astype(float)
        for name in ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
    )
    dtype, family = c["moe_dtype"].astype(str), _expert_family(rows)
    skew = np.array([0.0 if d == "balanced" else float(d.rsplit("_", 1)[1]) for d in c["distribution"].astype(str)])
    blackwell = rows.fact(lambda name: float(catalog.accelerator(name).architecture.startswith("Blackwell"))) > 0
    types = fit_physical_moe.TYPES
    yes = np.ones(len(rows), bool)
    work = ExpertCalls(
        tokens, topk, hidden, inner / tp, experts, ep, skew, blackwell & (family != "marlin"), yes, yes,
        np.array([DTYPE_CODE[types[name][0]] for name in dtype], np.int8), np.array([types[name][1] for name in dtype]),
        np.where(dtype == "fp8_block", 1.0, np.where(dtype == "nvfp4", 0.5, 2.0)),
        np.array([fit_physical_moe.FAMILIES.index(name) for name in family], np.int8), ~yes,
        fit_physical_moe.tiles_looked_for(dtype, rows.device, experts / ep, inner / tp),
    )  # fmt: skip
    return fit_physical_moe.Measured(work, rows.device, dtype, rows.seconds)


def _expert_family(rows: Rows) -> NDArray[np.str_]:
    found, at = np.unique(rows.columns["kernel_source"].astype(str), return_inverse=True)
    return np.array([fit_physical_moe.KERNELS.get(str(name), "") for name in found])[at]


def _experts_from(rows: Rows) -> Seconds:
    constants = fit_physical_moe.fit(_experts(rows))
    return lambda asked: fit_physical_moe.predict(_experts(asked), constants)


@lru_cache(maxsize=64)
def _experts_of(family: str, without: frozenset[str]) -> Seconds:
    rows = learning("moe")
    known = np.isin(rows.columns["moe_dtype"].astype(str), list(fit_physical_moe.TYPES))
    keep = known & ~np.isin(rows.device, list(without)) & (_expert_family(rows) == family)
    return _experts_from(rows.take(np.flatnonzero(keep)))


def _fit_experts(label: str, without: frozenset[str]) -> Seconds:
    return _experts_of(fit_physical_moe.KERNELS[label.split("/")[1]], without)


# What is bound by bytes -----------------------------------------------------------------------------------------------

_CLASSES = {"elementwise": "elementwise", "softmax": "softmax", "ln": "layer_norm"}


@lru_cache(maxsize=4)
def _moved(name: str) -> fit_physical_stream.Rows:
    return fit_physical_stream.sampled(fit_physical_stream.isolated(name)[0])


@lru_cache(maxsize=64)
def _fit_stream(label: str, without: frozenset[str]) -> Seconds:
    name = _CLASSES[label]
    measured = _moved(name)
    measured = measured.take(np.flatnonzero(~np.isin(measured.device, list(without))))
    found = fit_physical_stream.fit(measured, name)
    shortest = [np.median(measured.shortest[measured.device == d]) for d in np.unique(measured.device)]
    usual = float(np.median(shortest))  # the host of the judged device is not known
    issued = found.share * usual

    def seconds(rows: Rows) -> NDArray[np.float64]:
        sizes = (np.nan_to_num(rows.columns[column].astype(float)) for column in "BH")
        work = rowwise(name, *sizes)
        two = np.isin(rows.columns["op"].astype(str), ("add", "mul", "div", "pow"))
        work = replace(work, read=np.where(two, 2 * work.read, work.read))
        ones, zeros = np.ones(len(rows)), np.zeros(len(rows))
        asked = fit_physical_stream.Rows(rows.device, work, ones, zeros)
        late = min(found.late_s, usual - issued)
        return issued + late + np.exp(fit_physical_stream.errors(asked, found))

    return seconds


# The host that issues isolated operators ------------------------------------------------------------------------------

SHORT = 1.5
"""Isolated operators up to this multiple of the shortest take the time of the host that issues them."""


@lru_cache(maxsize=64)
def _issue_time(label: str, without: frozenset[str]) -> float:
    """Seconds of the operators that are too short for the device to matter: median of the other devices' hosts."""
    public = learning("fp32_ops")
    found = []
    for name in np.unique(public.device[~np.isin(public.device, list(without))]).tolist():
        seconds = public.seconds[(public.device == name) & (public.label == label)]
        if seconds.size:
            found.append(float(np.median(seconds[seconds <= SHORT * np.quantile(seconds, 0.01)])))
    return float(np.median(found))


def _issued(fit: Callable[[str, frozenset[str]], Seconds]) -> Callable[[str, frozenset[str]], Seconds]:
    """What was measured of isolated operators takes at least as long as the host needs to issue them."""

    def issued(label: str, without: frozenset[str]) -> Seconds:
        seconds, least = fit(label, without), _issue_time(label, without)
        return lambda rows: np.maximum(seconds(rows), least)

    return issued


# All of them ----------------------------------------------------------------------------------------------------------

KINDS: dict[str, Kind] = {
    "gemm/": Kind(_fit_gemm, _gemm_from, 2), "bmm": Kind(_issued(_fit_gemm)), "linear": Kind(_issued(_fit_gemm)),
    "attention_": Kind(_fit_attention, _attention_from), "conv": Kind(_issued(_fit_convolution)),
    "moe/": Kind(_fit_experts, _experts_from), "elementwise": Kind(_issued(_fit_stream)),
    "softmax": Kind(_issued(_fit_stream)), "ln": Kind(_issued(_fit_stream)),
}  # fmt: skip
"""Beginnings of labels -> kind."""


def predict(rows: Rows, device: str, everything: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Seconds and spread of the kernels of one class on ``device``; NaN where there is nothing to learn from."""
    label = str(rows.label[0])
    nothing = np.full(len(rows), np.nan)
    kind = next((kind for beginning, kind in KINDS.items() if label.startswith(beginning)), None)
    if kind is None or not available(rows.layout) or not _known(rows):
        return nothing, nothing
    others = _others(rows, device)
    if len(others) >= kind.least:
        seconds = kind.fit(label, frozenset([device]))(rows)
        return seconds, np.full(len(rows), _spread(kind, rows, device, others))
    if kind.fold is None:
        return nothing, nothing
    return _held_out_shapes(kind.fold, rows)


def _known(rows: Rows) -> bool:
    """Whether the fitting scripts know the kernels of this class."""
    if rows.layout != "moe":
        return True
    known = _expert_family(rows)[0] != "" and str(rows.columns["moe_dtype"][0]) in fit_physical_moe.TYPES
    return bool(known) and len(rows) > FOLDS


def _same(rows: Rows, label: str) -> NDArray[np.bool_]:
    """Rows of one class and of the kernel families that it stands for."""
    return np.asarray(rows.label == label)


def _others(rows: Rows, device: str) -> list[str]:
    """Other devices that have kernels of the same family."""
    public = learning(rows.layout)
    there = public.take(np.flatnonzero(public.device != device))
    if rows.layout == "moe":
        there = there.take(np.flatnonzero(_expert_family(there) == _expert_family(rows)[0]))
    else:
        there = there.take(np.flatnonzero(_same(there, str(rows.label[0]))))
    return [str(name) for name in np.unique(there.device)]


@lru_cache(maxsize=128)
def _errors(label: str, layout: str, device: str, without: frozenset[str]) -> NDArray[np.float64]:
    """log(measured / predicted) of some public kernels of a class on ``device``."""
    public = learning(layout)
    at = np.flatnonzero((public.device == device) & _same(public, label))
    rows = public.take(np.random.default_rng(0).permutation(at)[:CHECKED])
    kind = next(kind for beginning, kind in KINDS.items() if label.startswith(beginning))
    errors = np.log(rows.seconds / kind.fit(label, without)(rows))
    return np.asarray(errors[np.isfinite(errors)])


def _spread(kind: Kind, rows: Rows, device: str, others: list[str]) -> float:
    label = str(rows.label[0])
    if len(others) == 1:
        return float(np.hypot(_shapes_only(label, rows, device, others[0]), _between_devices(device)))
    labels = [one for one in _ENGINES if _ENGINES[one] == "simt"] if _ENGINES.get(label) == "simt" else [label]
    each = [
        np.concatenate([_errors(one, rows.layout, other, frozenset([device, other])) for one in labels])
        for other in others
    ]
    each = [errors for errors in each if errors.size]
    if not each:  # others have kernels of the family, but none of this class
        return _between_devices(device)
    if _seen(label, device, others):
        return quantile(np.concatenate(each))
    # a new device is off from the mean of n by that much more than they are among themselves
    vector = _ENGINES.get(label) == "simt"  # whose libraries differ more than the devices
    margin = fit_physical_gemm.MARGIN["simt"] if vector else float(np.sqrt(1 + 1 / len(each)))
    return max(quantile(errors) for errors in each) * margin


def _seen(label: str, device: str, others: list[str]) -> bool:
    """Whether the other devices have the architecture of this one or, for products of vector units, its library."""
    family = catalog.accelerator(device).architecture.split(" ")[0]
    known = {catalog.accelerator(other).architecture.split(" ")[0] for other in others}
    if _ENGINES.get(label) == "simt":
        known |= set(dict(fit_physical_gemm.simt(others).families))
    return family in known


def _shapes_only(label: str, rows: Rows, device: str, other: str) -> float:
    """Errors on the one other device, which the constants are from."""
    errors = _errors(label, rows.layout, other, frozenset([device]))
    return quantile(errors) if errors.size else 0.0


@lru_cache(maxsize=16)
def _between_devices(device: str) -> float:
    """What devices differ by where that was measured: the largest error of matrix products on one of the others."""
    label, layout = "gemm/bfloat16", "gemm"
    public = learning(layout)
    others = np.unique(public.device[(public.label == label) & (public.device != device)]).tolist()
    return max(quantile(_errors(label, layout, str(other), frozenset([device, str(other)]))) for other in others)


def _held_out_shapes(fold: Callable[[Rows], Seconds], rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    _, shape = np.unique(rows.shape, axis=0, return_inverse=True)
    part = np.random.default_rng(0).permutation(int(shape.max()) + 1)[shape.ravel()] % FOLDS
    seconds, spread = np.empty(len(rows)), np.empty(len(rows))
    for one in range(FOLDS):
        left = np.flatnonzero(part == one)
        seconds[left] = fold(rows.take(np.flatnonzero(part != one)))(rows.take(left))
    errors = np.log(rows.seconds / seconds)
    for one in range(FOLDS):
        spread[part == one] = quantile(errors[part != one])
    return seconds, spread
