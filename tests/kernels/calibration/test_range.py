"""Networks from files stay within what was measured, unless they are let out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.command import run
from tests.kernels.calibration.example import H100, pack
from triosim.core.errors import InputError
from triosim.kernels.calibration.calibration import calibrated
from triosim.kernels.calibration.model import CalibratedBaseModel
from triosim.kernels.calibration.samples import samples
from triosim.kernels.models.physical import PhysicalBaseModel
from triosim.kernels.physical.kinds import BY_NAME
from triosim.kernels.work.gemm import gemm
from triosim.kernels.work.stream import rowwise
from triosim.sources.reading import load

EXAMPLES = Path(__file__).parents[3] / "examples"
GEMM = BY_NAME["gemm"]


def _gemm(m, n, k):
    return gemm(np.array([float(m)]), np.array([float(n)]), np.array([float(k)]), "bfloat16")


@pytest.fixture(scope="module")
def calibration():
    return pack().calibration


@pytest.fixture(scope="module")
def measured():
    return pack().measured["gemm"].work


@given(st.data())
def test_sizes_between_measured_ones_are_taken(calibration, measured, data):
    tensor = GEMM.class_of(measured) == GEMM.classes.index("matrix/tensor")
    assert tensor.any()
    sizes = [
        data.draw(st.integers(int(column[tensor].min()), int(column[tensor].max())))
        for column in (measured.m, measured.n, measured.k)
    ]
    work = _gemm(*sizes)
    assert GEMM.class_of(work)[0] == GEMM.classes.index("matrix/tensor")
    calibration.check_range(GEMM, work, ["mm"], "pack.json")


@given(st.sampled_from([(0, 1), (0, -1), (1, 1), (2, 1)]), st.floats(1.1, 50))
def test_sizes_beyond_measured_ones_are_refused_with_their_name(calibration, measured, way, factor):
    side, sign = way
    columns = [np.asarray(column) for column in (measured.m, measured.n, measured.k)]
    sizes = [float(column.max()) for column in columns]
    sizes[side] = max(sizes[side] * factor, sizes[side] + 1) if sign > 0 else columns[side].min() / factor
    with pytest.raises(InputError, match=r"pack.json: a size of mm is .* times beyond the .* kernels of class"):
        calibration.check_range(GEMM, _gemm(*sizes), ["mm"], "pack.json")


def test_a_class_without_measured_kernels_is_refused(calibration):
    work = rowwise("layer_norm", np.array([64.0]), np.array([64.0]))
    with pytest.raises(InputError, match=r"layer_norm is of class .*, of which no kernel was measured"):
        calibration.check_range(BY_NAME["stream"], work, ["layer_norm"], "pack.json")


def test_a_network_whose_kernels_were_measured_is_priced_and_nothing_is_free():
    network = load(EXAMPLES / "edge" / "mobile-block.json")
    times = PhysicalBaseModel().predict(network, H100).seconds
    timed = replace(
        network, operators=replace(network.operators, device_s=times), meta=replace(network.meta, clock="gpu")
    )  # fmt: skip
    found = CalibratedBaseModel(calibrated(H100, samples(timed, H100).kinds), "pack.json").predict(network, H100)
    moving = np.nan_to_num(network.operators.bytes) > 0
    assert moving.any()
    assert (found.seconds[moving] > 0).all()


def test_the_command_refuses_and_extrapolates(tmp_path):
    network = EXAMPLES / "edge" / "mobile-block.json"
    trace = EXAMPLES / "resnet50-cpu.triosim"
    run("calibrate", trace, "-o", tmp_path / "pack.json")
    words = ("infer", network, "--operator-times", tmp_path / "pack.json")
    refused = run(*words, code=2)
    assert "or give --extrapolate" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert "Iteration" in run(*words, "--extrapolate").stdout
    assert "Iteration" in run("infer", trace, *words[2:], "--batch-size", "1").stdout
    other = run("infer", network, "--device", "A100", "--extrapolate", code=2)
    assert "--extrapolate is of a pack" in other.stderr
