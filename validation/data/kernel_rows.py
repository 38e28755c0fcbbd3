"""Measured kernels of any file with the columns of ``../shared/data/kernels``, made ready to be judged.

Five layouts are told apart by their columns: GEMM (``gemm_dtype``), attention (``attn_dtype``; prefill and decoding),
mixture of experts (``moe_dtype``) of ai-dynamo/aiconfigurator, and float32 operators (``op``, ``gpu``) of
sitar-lab/NeuSight.  Latencies are in milliseconds.  Parquet or CSV.

Rows that cannot be what their columns say are dropped and counted by reason; repeats of a kernel on a device become
their median.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from validation.data.kernels import DATA, DEVICES, PLAUSIBLE, Sample

from triosim.core.errors import InputError
from triosim.hardware import catalog

Columns = Mapping[str, NDArray]

FILES = ("gemm", "attention_prefill", "attention_decode", "moe", "fp32_ops")
WINOGRAD = 2.25
"""F(2 x 2, 3 x 3) takes 16 multiplications where the direct convolution takes 36 (Lavin, Gray: "Fast Algorithms for
Convolutional Neural Networks", CVPR 2016)."""

_DTYPES = {
    "bfloat16": "bfloat16", "float16": "float16", "fp8": "float8_e4m3fn", "fp8_block": "float8_e4m3fn",
    "nvfp4": "float4_e2m1", "w4a8_mxfp4_mxfp8": "float8_e4m3fn", "w4a16_mxfp4": "bfloat16", "int4_wo": "bfloat16",
    "int8_wo": "bfloat16", "float32": "float32",
}  # fmt: skip
"""Names in the data -> type that is multiplied."""
_WEIGHT_BYTES = {
    "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5, "w4a8_mxfp4_mxfp8": 0.5,
    "w4a16_mxfp4": 0.5, "int4_wo": 0.5, "int8_wo": 1.0, "float32": 4.0,
}  # fmt: skip
_INPUT_BYTES = {**_WEIGHT_BYTES, "w4a8_mxfp4_mxfp8": 1.0, "w4a16_mxfp4": 2.0, "int4_wo": 2.0, "int8_wo": 2.0}
_TWO_OPERANDS = ("add", "mul", "div", "pow")
_SPECIAL = ("bmm", "linear", "conv", "softmax", "ln")


@dataclass(frozen=True)
class Rows:
    """Measured kernels, one row each.

    Attributes:
        layout: of the file: ``"gemm"``, ``"attention_prefill"``, ``"attention_decode"``, ``"moe"`` or ``"fp32_ops"``.
        label: class that is judged, ``"gemm/bfloat16"``; kernel families are classes of their own.
        device: catalog name.
        dtype: element type that is multiplied, ``"float32"``.
        seconds: measured.
        flop: operations.
        moved: bytes, each tensor once.
        before: bytes of another kernel inside the measured time (quantization of the input).
        shape: everything that identifies a kernel besides its class and device.
        columns: the file's own columns.
    """

    layout: str
    label: NDArray[np.str_]
    device: NDArray[np.str_]
    dtype: NDArray[np.str_]
    seconds: NDArray[np.float64]
    flop: NDArray[np.float64]
    moved: NDArray[np.float64]
    before: NDArray[np.float64]
    shape: NDArray[np.float64]
    columns: Columns

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, rows: NDArray) -> Rows:
        """These rows only."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        arrays = {
            name: getattr(self, name)[rows]
            for name in ("label", "device", "dtype", "seconds", "flop", "moved", "before", "shape")
        }
        return Rows(self.layout, columns=columns, **arrays)

    def fact(self, what: Callable[[str], float]) -> NDArray[np.float64]:
        """A figure of each row's device."""
        names, at = np.unique(self.device, return_inverse=True)
        return np.array([what(str(name)) for name in names], np.float64)[at]

    def peak(self) -> NDArray[np.float64]:
        """FLOP/s of each row's device for its element type, NaN where the datasheet gives none."""
        keys, at = np.unique(np.char.add(np.char.add(self.device, "|"), self.dtype), return_inverse=True)
        pairs = [str(key).split("|") for key in keys]
        found = [catalog.accelerator(device).peak_flops.get(dtype, np.nan) for device, dtype in pairs]
        return np.array(found, np.float64)[at]

    def sample(self) -> Sample:
        """The same rows in seconds of the datasheet's peaks."""
        bandwidth = self.fact(bandwidth_of)
        compute_s = np.where(self.flop > 0, self.flop / self.peak(), 0.0)
        return Sample(
            self.device, compute_s, self.moved / bandwidth, self.before / bandwidth, self.seconds, self.shape, self.flop
        )


def bandwidth_of(device: str) -> float:
    """Bytes per second."""
    return float(catalog.accelerator(device).memory_bandwidth or np.nan)


def cache_of(device: str) -> float:
    """Bytes of the last-level cache, 0 where not known."""
    return float(catalog.accelerator(device).cache_bytes or 0)


def shipped(layout: str) -> Path:
    """Where the public measurements of a layout lie."""
    return DATA / "kernels" / f"{layout}.parquet"


def read(path: Path, names: Mapping[str, str]) -> tuple[Rows, dict[str, int]]:
    """The plausible rows of a file, repeats by their median, and how many were dropped for each reason.

    Args:
        path: Parquet or CSV.
        names: catalog names of devices that the catalog does not know under the file's name.

    Raises:
        InputError: the file cannot be read or has other columns.
    """
    columns = _table(path)
    layout = _layout(columns, path)
    device, unknown = _devices(columns, layout, names)
    known = np.flatnonzero(device != "")
    rows = _MAKE[layout]({name: column[known] for name, column in columns.items()}, device[known])
    kept, dropped = plausible(rows)
    return medians(kept), {**unknown, **dropped}


def plausible(rows: Rows) -> tuple[Rows, dict[str, int]]:
    """Without the rows that cannot be what their columns say; how many were dropped for each reason.

    What lies in the last-level cache beats the memory's bandwidth legitimately: these kernels ran again and again on
    the same tensors.
    """
    peak = rows.peak()
    compute_s = np.where(rows.flop > 0, rows.flop / peak, 0.0)
    memory_s = rows.moved / rows.fact(bandwidth_of)
    saved = np.where(rows.label == "conv", WINOGRAD, 1.0)
    reasons = {
        "device without a peak for the element type": (rows.flop > 0) & ~np.isfinite(peak),
        "not a positive time": ~(rows.seconds > 0),
        "trtllm_mha prefill of B200 with window_size 0: not full causal attention": _mislabelled(rows),
        f"faster than the compute peak / {PLAUSIBLE}": rows.seconds < PLAUSIBLE * compute_s / saved,
        "cutedsl mixture of experts in nvfp4 faster than its bytes allow": _too_fast(rows, memory_s),
        f"faster than the memory bandwidth / {PLAUSIBLE} from beyond the cache": (
            (rows.seconds < PLAUSIBLE * memory_s) & (rows.moved > rows.fact(cache_of))
        ),
    }
    keep, dropped = np.ones(len(rows), bool), {}
    for reason, at in reasons.items():
        dropped[reason] = int((at & keep).sum())
        keep &= ~at
    return rows.take(np.flatnonzero(keep)), {reason: count for reason, count in dropped.items() if count}


def _mislabelled(rows: Rows) -> NDArray[np.bool_]:
    if rows.layout != "attention_prefill":
        return np.zeros(len(rows), bool)
    window = np.nan_to_num(rows.columns["window_size"].astype(float))
    b200 = np.char.startswith(rows.device, "B200")
    return b200 & (rows.columns["kernel_source"].astype(str) == "trtllm_mha") & (window == 0)


def _too_fast(rows: Rows, memory_s: NDArray) -> NDArray[np.bool_]:
    cutedsl = np.char.endswith(rows.label, "cutedsl_moe/nvfp4") & np.char.startswith(rows.device, "B200")
    return cutedsl & (rows.seconds < PLAUSIBLE * memory_s)


def medians(rows: Rows) -> Rows:
    """One row for every different kernel on every device: the median of its times."""
    if not len(rows):
        return rows
    keys = [np.unique(c, return_inverse=True)[1].ravel() for c in (rows.label, rows.device, *rows.shape.T)]
    order = np.lexsort((rows.seconds, *keys))
    sorted_keys = np.stack([key[order] for key in keys], 1)
    first = np.flatnonzero(np.r_[True, np.any(sorted_keys[1:] != sorted_keys[:-1], axis=1)])
    last = np.r_[first[1:], len(order)] - 1
    low, high = order[(first + last) // 2], order[(first + last + 1) // 2]
    found = rows.take(low)
    middle = (rows.seconds[low] + rows.seconds[high]) / 2
    return Rows(**{**{name: getattr(found, name) for name in found.__dataclass_fields__}, "seconds": middle})


def _table(path: Path) -> dict[str, NDArray]:
    import pyarrow as arrow
    from pyarrow import csv, parquet

    try:
        table = csv.read_csv(path) if path.suffix.lower() == ".csv" else parquet.read_table(path)
    except (OSError, arrow.ArrowException) as error:
        kind = "CSV" if path.suffix.lower() == ".csv" else "Parquet"
        raise InputError(f"{path}: cannot be read as {kind} ({error})") from None
    return {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names}


_WANTED = {
    "gemm": ("system", "gemm_dtype", "m", "n", "k", "latency"),
    "attention": (
        "system", "kernel_source", "batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "attn_dtype",
        "kv_cache_dtype", "step", "latency", "window_size",
    ),
    "moe": (
        "system", "kernel_source", "moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts",
        "moe_tp_size", "moe_ep_size", "distribution", "latency",
    ),
    "fp32_ops": ("gpu", "op", "Latency", "B", "M", "N", "K", "H", "Input_Channel", "Output_Channel", "Input_Size"),
}  # fmt: skip


def _layout(columns: Columns, path: Path) -> str:
    mark = {"gemm": "gemm_dtype", "attention": "attn_dtype", "moe": "moe_dtype", "fp32_ops": "op"}
    found = next((layout for layout, column in mark.items() if column in columns), None)
    if found is None:
        raise InputError(f"{path}: has none of the columns {', '.join(mark.values())}: not a table of kernels")
    missing = [name for name in _WANTED[found] if name not in columns]
    if missing:
        raise InputError(f"{path}: a table of {found} without the columns {', '.join(missing)}")
    if found != "attention":
        return found
    return "attention_decode" if bool((columns["isl"] == 1).all()) else "attention_prefill"


def _devices(columns: Columns, layout: str, names: Mapping[str, str]) -> tuple[NDArray[np.str_], dict[str, int]]:
    given = columns["gpu" if layout == "fp32_ops" else "system"].astype(str)
    printed = columns["device"].astype(str) if "device" in columns else given
    pairs, at, counts = np.unique(np.stack([given, printed], 1), axis=0, return_inverse=True, return_counts=True)
    resolved = [device_name(str(a), str(b), names) for a, b in pairs]
    unknown: dict[str, int] = {}
    for (a, b), found, count in zip(pairs, resolved, counts, strict=True):
        if found is None:
            words = str(a) if a == b else f"{a} ({b})"
            unknown[f"device {words} is not in the catalog: say which it is with --as {a}=NAME"] = int(count)
    return np.array([name or "" for name in resolved])[at.ravel()], unknown


def device_name(given: str, printed: str, names: Mapping[str, str]) -> str | None:
    """The catalog's name of a device, None where it knows none by that name."""
    if given in names or given in DEVICES:
        return catalog.accelerator(names.get(given) or DEVICES[given]).name
    found = catalog.identify(printed) or catalog.identify(given)
    if found:
        return found
    for name in (printed, given, given.replace("_", "-")):
        try:
            return catalog.accelerator(name).name
        except InputError:
            continue
    return None


def _floats(columns: Columns, *names: str) -> list[NDArray[np.float64]]:
    return [np.nan_to_num(columns[name].astype(float)) for name in names]


def _looked_up(names: NDArray[np.str_], table: Mapping[str, float]) -> NDArray[np.float64]:
    found, at = np.unique(names, return_inverse=True)
    return np.array([table.get(str(name), np.nan) for name in found], np.float64)[at]


def _types(names: NDArray[np.str_]) -> NDArray[np.str_]:
    found, at = np.unique(names, return_inverse=True)
    return np.array([_DTYPES.get(str(name), str(name)) for name in found])[at]


def _joined(*parts: str | NDArray) -> NDArray[np.str_]:
    out = np.asarray(parts[0], np.str_)
    for part in parts[1:]:
        out = np.char.add(np.char.add(out, "/"), np.asarray(part, np.str_))
    return out


def _gemm(columns: Columns, device: NDArray) -> Rows:
    m, n, k, latency = _floats(columns, "m", "n", "k", "latency")
    name = columns["gemm_dtype"].astype(str)
    item = _looked_up(name, _WEIGHT_BYTES)
    moved = item * (m * k + k * n) + 2 * m * n
    before = np.where(item < 2, (2 + item) * m * k, 0.0)
    label = _joined("gemm", name)
    return Rows(
        "gemm", label, device, _types(name), latency * 1e-3, 2 * m * n * k, moved, before, np.stack([m, n, k], 1),
        columns,
    )  # fmt: skip


def _attention(layout: str) -> Callable[[Columns, NDArray], Rows]:
    def make(columns: Columns, device: NDArray) -> Rows:
        batch, isl, heads, kv, size, step, latency, window = _floats(
            columns, "batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "step", "latency",
            "window_size",
        )  # fmt: skip
        kv = np.where(kv > 0, kv, heads)
        dtype, cache = columns["attn_dtype"].astype(str), columns["kv_cache_dtype"].astype(str)
        item = _looked_up(cache, _WEIGHT_BYTES)
        if layout == "attention_prefill":
            seen = np.where(window > 0, np.minimum(window, isl), isl)
            pairs, keys, queries = isl * seen - seen * (seen - 1) / 2, isl, isl
        else:
            context = step + 1
            keys = np.where(window > 0, np.minimum(window, context), context)
            pairs, queries = keys, np.ones(len(keys))
        moved = batch * size * (2 * 2 * heads * queries + item * 2 * kv * keys)
        return Rows(
            layout, _joined(layout, columns["kernel_source"].astype(str), dtype, cache), device, _types(dtype),
            latency * 1e-3, 4 * batch * heads * pairs * size, moved, np.zeros(len(batch)),
            np.stack([batch, isl, heads, kv, size, step, window], 1), columns,
        )  # fmt: skip

    return make


def _moe(columns: Columns, device: NDArray) -> Rows:
    """Gate, up and down projections of the experts of one device; every one that has a token is read once."""
    tokens, hidden, inter, topk, experts, tp, ep, latency = _floats(
        columns, "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size",
        "latency",
    )  # fmt: skip
    name = columns["moe_dtype"].astype(str)
    distribution = columns["distribution"].astype(str)
    routed = tokens * topk / ep
    used = np.minimum(experts / ep, np.maximum(routed, 1.0))
    weights = 3 * hidden * inter / tp
    flop = 2 * routed * weights
    # a skewed distribution leaves experts without tokens: what it surely reads is one token's choice of experts
    used = np.where(distribution == "balanced", used, np.minimum(topk, used))
    moved = used * weights * _looked_up(name, _WEIGHT_BYTES) + 2 * tokens * hidden * 2
    _, kind = np.unique(distribution, return_inverse=True)
    return Rows(
        "moe", _joined("moe", columns["kernel_source"].astype(str), name), device, _types(name), latency * 1e-3, flop,
        moved, np.zeros(len(tokens)), np.stack([tokens, hidden, inter, topk, experts, tp, ep, kind], 1), columns,
    )  # fmt: skip


def _float32(columns: Columns, device: NDArray) -> Rows:
    """NeuSight calls the reduction dimension N and the output dimension K."""
    b, m, n, k, h, cin, cout, side = _floats(
        columns, "B", "M", "N", "K", "H", "Input_Channel", "Output_Channel", "Input_Size"
    )
    op, latency = columns["op"].astype(str), columns["Latency"].astype(float)
    product, conv = np.isin(op, ("bmm", "linear")), op == "conv"
    b = np.where(b > 0, b, 1.0)
    flop = np.where(product, 2 * b * m * n * k, np.where(conv, 2 * b * cout * cin * 9 * side**2, 0.0))
    tensors = np.where(np.isin(op, _TWO_OPERANDS), 3.0, 2.0)
    moved = 4 * np.where(
        product,
        b * (m * n + n * k + m * k),
        np.where(conv, b * (cin + cout) * side**2 + 9 * cin * cout, tensors * b * h),
    )
    label = np.where(np.isin(op, _SPECIAL), op, "elementwise")
    _, kind = np.unique(op, return_inverse=True)
    return Rows(
        "fp32_ops", label, device, np.full(len(op), "float32"), latency * 1e-3, flop, moved, np.zeros(len(op)),
        np.stack([kind, b, m, n, k, h, cin, cout, side], 1), columns,
    )  # fmt: skip


_MAKE: dict[str, Callable[[Columns, NDArray], Rows]] = {
    "gemm": _gemm, "attention_prefill": _attention("attention_prefill"),
    "attention_decode": _attention("attention_decode"), "moe": _moe, "fp32_ops": _float32,
}  # fmt: skip
