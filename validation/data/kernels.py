"""Measured kernel times as columns: work in seconds of the datasheet's peaks, and the measured seconds.

The data are public measurements kept beside the repository (``../shared/data``, see its README): GEMM and attention of
ai-dynamo/aiconfigurator (SGLang 0.5.10, CUDA-graph replay, Apache-2.0), float32 operators of sitar-lab/NeuSight
(PyTorch 2.1, isolated operators, MIT), Kineto traces of facebookresearch/HolisticTraceAnalysis (MIT) and the ResNet-50
trace of sarchlab/triosim (MIT).
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from triosim.hardware import catalog

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"

DEVICES = {
    "a100_sxm": "A100-SXM4-80GB", "h100_sxm": "H100-SXM5-80GB", "l40s": "L40S", "b200_sxm": "B200-SXM-180GB",
    "Tesla P100-PCIE-16GB": "P100-PCIe-16GB", "Tesla T4": "T4", "Tesla V100-PCIE-32GB": "V100-PCIe-32GB",
    "NVIDIA A100-PCIE-40GB": "A100-PCIe-40GB",
}  # fmt: skip
"""Names in the data -> names in the catalog."""

PLAUSIBLE = 0.95
"""Rows faster than this part of the plain roofline are not what their columns say (or ran from the cache)."""


@dataclass(frozen=True)
class Sample:
    """Measured kernels of one class, one row each.

    Attributes:
        device: catalog name.
        compute_s: FLOP over the datasheet's peak for the element type.
        memory_s: bytes, each tensor once, over the datasheet's bandwidth.
        before_s: bytes of another kernel inside the measured time, over the datasheet's bandwidth.
        seconds: measured.
        shape: what identifies the kernel's shape besides its size, one row each (for pairs of sizes or devices).
        size: the dimension that grows with the batch.
    """

    device: NDArray[np.str_]
    compute_s: NDArray[np.float64]
    memory_s: NDArray[np.float64]
    before_s: NDArray[np.float64]
    seconds: NDArray[np.float64]
    shape: NDArray[np.float64]
    size: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, rows: NDArray) -> Sample:
        """These rows only."""
        return Sample(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def plain(self) -> NDArray[np.float64]:
        """The textbook roofline: the larger of the two."""
        return np.maximum(self.compute_s, self.memory_s)


def join_samples(*samples: Sample) -> Sample:
    """All rows of several samples; their shapes are kept apart."""
    width = max(s.shape.shape[1] for s in samples) + 1
    shapes = []
    for at, sample in enumerate(samples):
        shape = np.full((len(sample), width), -1.0)
        shape[:, 0] = at
        shape[:, 1 : 1 + sample.shape.shape[1]] = sample.shape
        shapes.append(shape)
    columns = {n: np.concatenate([getattr(s, n) for s in samples]) for n in Sample.__dataclass_fields__ if n != "shape"}
    return Sample(**columns, shape=np.concatenate(shapes))


def _columns(name: str, *wanted: str) -> dict[str, NDArray]:
    import pyarrow.parquet as parquet

    table = parquet.read_table(DATA / "kernels" / f"{name}.parquet", columns=list(wanted))
    return {column: table.column(column).to_numpy(zero_copy_only=False) for column in wanted}


def _datasheet(names: NDArray, what: Callable[[str], float]) -> tuple[NDArray[np.str_], NDArray[np.float64]]:
    found, at = np.unique(names.astype(str), return_inverse=True)
    devices = [DEVICES[name] for name in found]
    return np.array(devices)[at], np.array([what(d) for d in devices])[at]


def _peak(dtype: str) -> Callable[[str], float]:
    return lambda device: catalog.accelerator(device).peak_flops.get(dtype, np.nan)


def _bandwidth(device: str) -> float:
    return float(catalog.accelerator(device).memory_bandwidth or np.nan)


def _cache(device: str) -> float:
    return float(catalog.accelerator(device).cache_bytes or 0)


def _cold(sample: Sample, moved: NDArray, cache: NDArray) -> Sample:
    """Without the rows that a cache makes faster than they would be in a model.

    Those kernels ran again and again on the same tensors; where memory binds and the tensors fit into the last-level
    cache, the time says nothing about memory.  A microsecond of traffic is below the launch floor and stays.
    """
    bound = sample.memory_s > sample.compute_s
    warm = bound & (moved < cache) & (sample.memory_s > 1e-6)
    return sample.take(np.flatnonzero(~warm & (sample.seconds >= PLAUSIBLE * sample.plain())))


def gemm(*dtypes: str) -> Sample:
    """Matrix products C[m, n] = A[m, k] B[k, n].

    The 8- and 4-bit rows of serving stacks also hold the kernel that quantizes A: it reads m k elements of 2 bytes and
    writes them with 1, which is ``before_s``.
    """
    data = _columns("gemm", "system", "gemm_dtype", "m", "n", "k", "latency")
    parts = []
    for dtype in dtypes:
        rows = np.flatnonzero(data["gemm_dtype"] == dtype)
        m, n, k = (data[c][rows].astype(float) for c in "mnk")
        item = {"bfloat16": 2.0, "fp8": 1.0, "nvfp4": 0.5}[dtype]
        name = {"bfloat16": "bfloat16", "fp8": "float8_e4m3fn", "nvfp4": "float4_e2m1"}[dtype]
        device, peak = _datasheet(data["system"][rows], _peak(name))
        _, bandwidth = _datasheet(data["system"][rows], _bandwidth)
        _, cache = _datasheet(data["system"][rows], _cache)
        moved = item * (m * k + k * n) + 2 * m * n
        quantized = (2 + item) * m * k if item < 2 else np.zeros(len(m))
        sample = Sample(
            device, 2 * m * n * k / peak, moved / bandwidth, quantized / bandwidth, data["latency"][rows] * 1e-3,
            np.stack([n, k], 1), m,
        )  # fmt: skip
        parts.append(_cold(sample, moved, cache))
    return parts[0] if len(parts) == 1 else join_samples(*parts)


SHORTEST_CONTEXT = 128
"""Decoding over shorter contexts costs by thread block, not by byte, which a roofline cannot follow."""


def attention() -> Sample:
    """Causal prefill and decoding, bfloat16, without windows, FlashAttention and TensorRT-LLM kernels.

    Prefill of B200 is left out: its rows are not causal attention over the whole context.
    """
    names = (
        "system", "kernel_source", "batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "attn_dtype",
        "kv_cache_dtype", "step", "latency", "window_size",
    )  # fmt: skip
    parts = []
    for phase in ("prefill", "decode"):
        data = _columns(f"attention_{phase}", *names)
        window = data["window_size"].astype(float)
        keep = (data["attn_dtype"] == "bfloat16") & (data["kv_cache_dtype"] == "bfloat16")
        keep &= (np.isnan(window) | (window == 0)) & np.isin(data["kernel_source"], ["flash_attention", "trtllm_mha"])
        if phase == "prefill":
            keep &= data["system"] != "b200_sxm"
        else:
            keep &= data["step"] + 1 >= SHORTEST_CONTEXT
        rows = np.flatnonzero(keep)
        batch, queries, heads, kv, size, step = (data[c][rows].astype(float) for c in (*names[2:7], "step"))
        device, peak = _datasheet(data["system"][rows], _peak("bfloat16"))
        _, bandwidth = _datasheet(data["system"][rows], _bandwidth)
        _, cache = _datasheet(data["system"][rows], _cache)
        if phase == "prefill":
            pairs, keys = batch * heads * queries * (queries + 1) / 2, queries
        else:
            queries = np.ones(len(rows))
            keys = step + 1
            pairs = batch * heads * keys
        moved = 2 * batch * size * (2 * heads * queries + 2 * kv * keys)
        sample = Sample(
            device, 4 * pairs * size / peak, moved / bandwidth, np.zeros(len(rows)), data["latency"][rows] * 1e-3,
            np.stack([keys, heads, kv, size], 1), batch,
        )  # fmt: skip
        parts.append(_cold(sample, moved, cache))
    return join_samples(*parts)


_TWO_OPERANDS = ("add", "mul", "div", "pow")

ABOVE_HOST = 2.0
"""Isolated operators shorter than the host needs to issue them measure the host: rows count from this multiple of the
shortest times (1 % quantile of the operator on the device)."""


def float32_operators(*operators: str) -> Sample:
    """Operators of NeuSight, which calls the reduction dimension N and the output dimension K.

    ``elementwise`` stands for all element-wise ones.
    """
    dims = ("B", "M", "N", "K", "H", "Input_Channel", "Output_Channel", "Input_Size")
    data = _columns("fp32_ops", "gpu", "op", "Latency", *dims)
    name = data["op"].astype(str)
    special = ("bmm", "linear", "conv", "softmax", "ln")
    keep = np.isin(name, operators) | (("elementwise" in operators) & ~np.isin(name, special))
    rows = np.flatnonzero(keep)
    name, gpu = name[rows], data["gpu"][rows].astype(str)
    b, m, n, k, h, cin, cout, side = (np.nan_to_num(data[c][rows].astype(float)) for c in dims)
    product, conv = np.isin(name, ("bmm", "linear")), name == "conv"
    flop = np.where(
        product, 2 * b * m * n * k, np.where(conv, 2 * b * cout * cin * 9 * side**2, 0.0)
    )  # 3 x 3, same size
    tensors = np.where(np.isin(name, _TWO_OPERANDS), 3.0, 2.0)
    moved = 4 * np.where(
        product,
        b * (m * n + n * k + m * k),
        np.where(conv, b * (cin + cout) * side**2 + 9 * cin * cout, tensors * b * h),
    )
    seconds = data["Latency"][rows] * 1e-3
    above = np.zeros(len(rows), bool)
    for one in np.unique(name):
        for where in np.unique(gpu):
            at = np.flatnonzero((name == one) & (gpu == where))
            if at.size:
                above[at] = seconds[at] > ABOVE_HOST * np.quantile(seconds[at], 0.01)
    device, peak = _datasheet(gpu, _peak("float32"))
    _, bandwidth = _datasheet(gpu, _bandwidth)
    kinds = np.unique(name, return_inverse=True)[1].astype(float)
    shape = np.stack(
        [kinds, np.where(product, n, cin), np.where(product, k, cout), side, np.where(name == "bmm", m, 0)], 1
    )
    size = np.where(product & (name == "linear"), m, np.where(product | conv, b, b * h))
    sample = Sample(device, flop / peak, moved / bandwidth, np.zeros(len(rows)), seconds, shape, size)
    return sample.take(np.flatnonzero(above))


RESNET = DATA / "triosim-h100" / "resnet50"


def resnet_operators() -> dict[str, Sample]:
    """Operators of one ResNet-50 training step on H100 (batch 128, float32, TF32 convolutions), by class."""
    from triosim.kernels.classes import GROUPS, group_of_name

    shapes, items = {}, {}
    with open(RESNET / "tensor.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            shapes[row["TensorID"]] = json.loads(row["TensorShape"])
            items[row["TensorID"]] = int(row["TensorEachByte"])
    device = catalog.accelerator("H100-SXM5-80GB")
    found: dict[str, list[tuple[float, float, float, int]]] = {}
    calls: dict[tuple, int] = {}
    with open(RESNET / "trace.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            group = GROUPS[group_of_name(row["OperatorName"])]
            reads, writes = (re.findall(r"\d+", row[c]) for c in ("Operator_input", "Operator_output"))
            sizes = {t: float(np.prod(shapes[t])) * items[t] for t in {*reads, *writes}}
            moved = sum(sizes[t] for t in set(reads)) + sum(sizes[t] for t in set(writes))
            flop = 0.0
            if group.startswith("convolution"):
                backward = group.endswith("backward")
                weight = shapes[reads[2 if backward else 1]]
                positions = shapes[reads[0] if backward else writes[0]]
                gradients = sum(len(shapes[t]) > 2 for t in writes) if backward else 1
                flop = 2.0 * float(np.prod(positions)) * float(np.prod(weight[1:])) * gradients
            seconds = float(row["Operator_cudatimenooverlap"]) * 1e-6
            compute_s = flop / device.peak("tfloat32")
            call = (row["OperatorName"], *(tuple(shapes[t]) for t in reads))
            memory_s = moved / float(device.memory_bandwidth or 0)
            found.setdefault(group, []).append((compute_s, memory_s, seconds, calls.setdefault(call, len(calls))))
    samples = {}
    for group, rows in found.items():
        c, m, t, call = np.array(rows).T
        count = len(t)
        samples[group] = Sample(np.full(count, device.name), c, m, np.zeros(count), t, call[:, None], np.ones(count))
    return samples


_KERNEL_NAMES = {
    "elementwise": "elementwise_kernel",
    "rowwise": "softmax_warp",
}


def shortest_kernels(kind: str) -> dict[str, float]:
    """Seconds of the shortest kernels of a class in Kineto traces that resolve below a microsecond: 5 % quantile."""
    found = {}
    for path in sorted((DATA / "kineto").glob("n*.json.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            trace = json.load(file)
        name = trace["deviceProperties"][0]["name"]
        times = [
            event["dur"] * 1e-6
            for event in trace["traceEvents"]
            if event.get("cat", "").lower() == "kernel" and re.search(_KERNEL_NAMES[kind], event["name"])
        ]
        found[name] = float(np.quantile(times, 0.05))
    return found
