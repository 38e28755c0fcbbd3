"""A calibration for tests, of numbers drawn around the shipped models."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from triosim.hardware import catalog
from triosim.kernels.calibration.calibration import calibrated
from triosim.kernels.calibration.fitting import MeasuredKernels
from triosim.kernels.calibration.pack import CalibrationPack, RecordedHost
from triosim.kernels.physical.kinds import BY_NAME, shipped
from triosim.kernels.work.attention import attention
from triosim.kernels.work.gemm import gemm
from triosim.kernels.work.moe import experts
from triosim.kernels.work.stream import rowwise

H100 = catalog.accelerator("H100-SXM5-80GB")


def noisy(kind: str, work, seed: int):
    seconds = shipped(BY_NAME[kind], work, H100).seconds
    return MeasuredKernels(work, seconds * np.exp(np.random.default_rng(seed).normal(0, 0.2, len(work))))


def drawn(seed: int, low: float, high: float, count: int):
    """Sizes between powers of two, all different."""
    return np.random.default_rng(seed).permutation(np.exp2(np.linspace(low, high, count)).round())


@functools.cache
def pack(n: int = 25) -> CalibrationPack:
    """A calibration from ``n`` measurements of each kind."""
    products = noisy("gemm", gemm(drawn(0, 3, 13, n), drawn(1, 6, 13, n), drawn(2, 6, 13, n), "bfloat16"), 0)
    measured = {
        "gemm": replace(products, names=(("mm", "addmm") * n)[:n], menus={"matrix/tensor": ((64, 64), (128, 64))}),
        "attention": noisy("attention", attention(4, drawn(4, 7, 12, n), 2048, 16, 4, 128), 1),
        "moe": noisy("moe", experts(drawn(5, 3, 13, n), 2, 4096, 14336, 8), 2),
        "stream": replace(noisy("stream", rowwise("softmax", drawn(6, 8, 16, n), drawn(7, 7, 12, n)), 3),
                          before=np.linspace(1e-6, 1e-5, n)),
    }  # fmt: skip
    return CalibrationPack(
        calibrated(H100, measured, 0.02), measured, RecordedHost(20e-6, 143, 6e-6, None), "2026-11-21",
        {"triosim": "1", "torch": "2"}, {"trace": "step.triosim", "made_by": "triosim.record"},
    )  # fmt: skip
