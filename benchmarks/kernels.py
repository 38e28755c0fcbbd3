"""Operators priced per second by each operator model, and different kernels by each physical one, and
reading a calibration; prints JSON.

python benchmarks/kernels.py [--operators N] [--repeat N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from triosim.core.columns import Ragged
from triosim.core.dtypes import DTYPE_CODE
from triosim.hardware import catalog
from triosim.kernels.calibration import pack
from triosim.kernels.calibration.calibration import calibrated
from triosim.kernels.calibration.fitting import MeasuredKernels
from triosim.kernels.model import MODELS, PricingJob
from triosim.kernels.physical import kinds
from triosim.kernels.work.attention import attention
from triosim.kernels.work.convolution import convolution
from triosim.kernels.work.gemm import gemm
from triosim.kernels.work.moe import experts
from triosim.kernels.work.stream import rowwise
from triosim.trace.builder import TraceBuilder
from triosim.trace.tables import BATCH, Category, Meta, Phase, Trace
from triosim.transform.rescale import rescale


def layer(batch: int, width: int) -> Trace:
    """A transformer's feed-forward block with its recorded times: linear, gelu, linear, add, layer norm."""
    b = TraceBuilder()
    follows = (BATCH, 0, 0)
    x = b.value((batch, 512, width), "bfloat16", Category.INPUT, symbols=follows)
    w1 = b.value((4 * width, width), "bfloat16", Category.WEIGHT)
    w2 = b.value((width, 4 * width), "bfloat16", Category.WEIGHT)
    h = b.value((batch, 512, 4 * width), "bfloat16", Category.ACTIVATION, symbols=follows)
    g = b.value((batch, 512, 4 * width), "bfloat16", Category.ACTIVATION, symbols=follows)
    y = b.value((batch, 512, width), "bfloat16", Category.ACTIVATION, symbols=follows)
    z = b.value((batch, 512, width), "bfloat16", Category.ACTIVATION, symbols=follows)
    n = b.value((batch, 512, width), "bfloat16", Category.ACTIVATION, symbols=follows)
    for name, reads, roles, writes, seconds in (
        ("aten::linear", (x, w1), ("input", "weight"), h, 120e-6),
        ("aten::gelu", (h,), ("self",), g, 40e-6),
        ("aten::linear", (g, w2), ("input", "weight"), y, 118e-6),
        ("aten::add", (x, y), ("self", "other"), z, 15e-6),
        ("aten::layer_norm", (z,), ("input",), n, 14e-6),
    ):
        b.operator(name, reads, (writes,), roles=roles, phase=Phase.FORWARD, device_s=seconds)
    return b.build(Meta("benchmark", workload="layer", device="H100", batch_size=batch, symbols="model"))


def repeated(trace: Trace, times: int) -> Trace:
    """The trace many times over, each time with values of its own."""
    values, operators = trace.values, trace.operators
    count = len(values)

    def ragged(table: Ragged, shift: int) -> Ragged:
        moved = (table.values[None] + shift * np.arange(times)[:, None].astype(table.values.dtype)).ravel()
        offsets = np.concatenate([[0], np.tile(table.lengths(), times).cumsum()])
        return Ragged(moved, offsets)

    def tiled(column: np.ndarray) -> np.ndarray:
        return np.tile(column, times)

    return replace(
        trace,
        values=replace(
            values, storage=tiled(values.storage), version=tiled(values.version), offset=tiled(values.offset),
            shape=ragged(values.shape, 0), dtype=tiled(values.dtype), category=tiled(values.category),
            of=tiled(values.of), name=values.name * times, symbols=ragged(values.symbols, 0),
        ),
        operators=replace(
            operators, name=operators.name * times, phase=tiled(operators.phase), module=tiled(operators.module),
            inputs=ragged(operators.inputs, count), roles=ragged(operators.roles, 0),
            outputs=ragged(operators.outputs, count), args=operators.args * times, forward=tiled(operators.forward),
            view=tiled(operators.view), sync=tiled(operators.sync), device_s=tiled(operators.device_s),
            host_s=tiled(operators.host_s), flop=tiled(operators.flop), bytes=tiled(operators.bytes),
        ),
    )  # fmt: skip


LEFT_OUT = ("external", "table", "calibrated", "loop-nest")
"""Models that read a file of the user's, or price designs only (``benchmarks/mapper.py``)."""


def different(count: int) -> dict[str, kinds.Work]:
    """As many kernels of each kind, no two of the same size."""
    random = np.random.default_rng(0)

    def size(low: int, high: int) -> np.ndarray:
        return np.round(np.exp(random.uniform(np.log(low), np.log(high), count)))

    few = max(count // 100, 1)
    return {
        "gemm": gemm(size(1, 32768), size(32, 65536), size(32, 65536), "bfloat16"),
        "convolution": convolution(size(1, 512), size(3, 1024), size(16, 1024), size(7, 224), 3, DTYPE_CODE["float32"]),
        "attention": attention(size(1, 512), size(64, 8192), size(8192, 16384), 32, 8, 128),
        "decode": attention(size(1, 512), 1, size(64, 65536), 32, 8, 128),
        "moe": experts(size(1, 32768)[:few], 2, 4096, 14336, 8),
        "stream": rowwise("softmax", size(1, 65536), size(32, 65536)),
    }


LOADS = 20
"""Times that a calibration is read."""


def loading() -> dict[str, float]:
    """Median processor time of reading a calibration of forty kernels of a kind."""
    device = catalog.accelerator("H100")
    few = {name: work for name, work in different(40).items() if name in kinds.BY_NAME}
    measured = {name: MeasuredKernels(work, kinds.price(work, device).seconds) for name, work in few.items()}
    content = pack.text(pack.CalibrationPack(calibrated(device, measured), measured))
    cpu = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pack.json"
        path.write_text(content, encoding="utf-8")
        for _ in range(LOADS + 1):  # the first reads the constants of the models too
            pack.load.cache_clear()
            start = time.process_time()
            pack.load(str(path))
            cpu.append(time.process_time() - start)
    kernels = sum(len(one.seconds) for one in measured.values())
    return {"kernels": kernels, "file_kb": round(len(content) / 1000), "cpu_s": round(statistics.median(cpu[1:]), 4)}


def main() -> None:
    """Price a long trace with every model and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    small = layer(8, 1024)
    times = max(arguments.operators // len(small), 1)
    recorded = repeated(small, times)
    grown = repeated(rescale(small, batch=16), times)
    device = catalog.accelerator("H100")
    results = {}
    for name in MODELS:
        if name in LEFT_OUT:
            continue
        trace = recorded if name in ("recorded", "habitat") else grown
        job = PricingJob(trace, device, recorded, device)
        cpu = []
        for _ in range(arguments.repeat):
            start = time.process_time()
            MODELS.get(name)().price(job)
            cpu.append(time.process_time() - start)
        seconds = statistics.median(cpu)
        results[name] = {"cpu_s": round(seconds, 4), "operators_per_s": round(len(trace) / seconds)}
    kernels = {}
    for name, work in different(arguments.operators).items():
        cpu = []
        for _ in range(arguments.repeat):
            start = time.process_time()
            kinds.price(work, device)
            cpu.append(time.process_time() - start)
        seconds = statistics.median(cpu)
        kernels[name] = {"cpu_s": round(seconds, 4), "kernels_per_s": round(len(work) / seconds)}
    found = {
        "operators": len(recorded), "repeat": arguments.repeat, "models": results, "different_kernels": kernels,
        "load_a_calibration": loading(),
    }  # fmt: skip
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
