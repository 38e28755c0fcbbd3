"""Products and convolutions on a core of a processor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from triosim.hardware.accelerator import Accelerator
from triosim.kernels.estimate import Limit
from triosim.kernels.physical import convolution, gemm, processor
from triosim.kernels.physical.kinds import BY_NAME
from triosim.kernels.work.convolution import ConvolutionCalls
from triosim.kernels.work.gemm import gemm as products

CORE = Accelerator("core", kind="cpu", compute_units=1, peak_flops={"float32": 200e9}, memory_bandwidth=20e9)


def test_a_product_takes_its_launch_its_flop_and_its_bytes() -> None:
    constants = gemm.load().constants
    own = constants["simt"]
    found = processor.products(
        products([1.0, 512.0, 8.0], [4096.0, 512.0, 8.0], [4096.0, 512.0, 8.0], "float32"), CORE, constants
    )
    flop = 2 * np.array([4096.0**2, 512.0**3, 8.0**3])
    moved = 4 * np.array([4096 + 4096**2 + 4096, 3 * 512.0**2, 3 * 64.0])
    expected = own.launch_s + flop / (own.reach * 200e9) + moved / (own.memory * 20e9)
    assert found.seconds == pytest.approx(expected, rel=1e-12)
    assert found.limit.tolist() == [Limit.MEMORY, Limit.COMPUTE, Limit.LAUNCH]


def test_a_convolution_of_three_by_three_saves_no_multiplications() -> None:
    def image(taps: float) -> ConvolutionCalls:
        one = np.ones(1)
        sizes = (1, 256, 256, 1, 56, 56, 56, 56, taps, taps, 1)
        return ConvolutionCalls(
            *(one * x for x in sizes), one > 0, *(one > 1 for _ in range(4)),
            np.array([products(1.0, 1.0, 1.0, "float32").dtype[0]]), one * 4, one > 1,
        )  # fmt: skip

    constants = convolution.load()
    one, nine = (processor.convolutions(image(taps), CORE, constants).seconds[0] for taps in (1.0, 3.0))
    assert nine > 7.5 * one, "on a GPU Winograd's algorithm takes fewer"
    gpu = replace(CORE, kind="gpu")
    assert (
        convolution.predict(image(3.0), gpu, constants).seconds[0]
        < 6 * convolution.predict(image(1.0), gpu, constants).seconds[0]
    )


def test_a_calibration_moves_all_three() -> None:
    kind = BY_NAME["gemm"]
    work = products([1.0, 512.0, 8.0], [4096.0, 512.0, 8.0], [4096.0, 512.0, 8.0], "float32")
    plain = kind.predict(work, CORE, kind.constants()).seconds
    twice = replace(CORE, peak_flops={"float32": 100e9}, memory_bandwidth=10e9)
    slower = kind.predict(work, twice, kind.constants()).seconds
    launch = kind.constants()["simt"].launch_s
    assert slower - launch == pytest.approx(2 * (plain - launch), rel=1e-12)
