"""Operator times with a calibration, and the measured kernels of a trace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import triosim
from tests.data import shared
from triosim.core.errors import InputError
from triosim.hardware import catalog
from triosim.hardware.accelerator import UNNAMED, Accelerator
from triosim.kernels.calibration import figures
from triosim.kernels.calibration.making import calibrate
from triosim.kernels.calibration.model import AutoCalibrated, CalibratedBaseModel
from triosim.kernels.calibration.pack import load, text
from triosim.kernels.calibration.samples import MOST, samples
from triosim.kernels.estimate import Source
from triosim.kernels.model import PricingJob
from triosim.kernels.models.physical import PhysicalBaseModel
from triosim.kernels.physical.kinds import BY_NAME
from triosim.kernels.pricing import describe, price
from triosim.trace.builder import TraceBuilder
from triosim.trace.tables import Category, Meta, Phase, Trace
from triosim.transform.rescale import rescale

H100 = catalog.accelerator("H100-SXM5-80GB")
EXAMPLE = "examples/gpt-small-cpu.triosim"


def step(
    seconds_of=lambda flop_s: 1.5 * flop_s, device: str | None = "NVIDIA H100 80GB HBM3", clock: str = "gpu", kernels=()
) -> Trace:
    """Thirty products and thirty additions; a product takes what ``seconds_of`` makes of its time at the peak."""
    b = TraceBuilder()
    for i in range(30):
        m, n, k = 128 * (1 + i), 256 * (1 + i % 7), 512 * (1 + i % 5)
        a, w = b.value((m, k), "bfloat16", Category.INPUT), b.value((k, n), "bfloat16", Category.WEIGHT)
        out, total = (b.value((m, n), "bfloat16", Category.ACTIVATION) for _ in range(2))
        row = b.operator(
            "aten::mm", (a, w), (out,), roles=("self", "mat2"), phase=Phase.FORWARD, host_s=10e-6,
            device_s=seconds_of(2.0 * m * n * k / 989e12) + 5e-6,
        )  # fmt: skip
        for name in kernels:
            b.kernel(row, name, 1e-6)
        b.operator(
            "aten::add", (out, out), (total,), roles=("self", "other"), phase=Phase.FORWARD, host_s=8e-6,
            device_s=3e-6 + 6.0 * m * n / 2.5e12,
        )  # fmt: skip
    return b.build(Meta("test", workload="sixty operators", device=device, clock=clock, framework="torch 9.9"))


@pytest.fixture
def pack_of(tmp_path):
    def write(trace: Trace, **options) -> str:
        file = tmp_path / "pack.json"
        file.write_text(text(calibrate(trace, **options)[0]), encoding="utf-8")
        load.cache_clear()
        return str(file)

    return write


def test_a_trace_gives_its_kernels_their_device_and_the_host():
    pack, used = calibrate(step(), name="step.triosim")
    assert pack.calibration.device == H100
    assert used.operators == 60
    assert used.left_out == 0
    assert set(pack.calibration.learned) == {("gemm", "matrix/tensor"), ("stream", "elementwise")}
    assert len(used.kinds["gemm"].work) == 30
    assert pack.versions["torch"] == "9.9"
    assert pack.provenance["trace"] == "step.triosim"
    assert pack.host.launches == 60
    assert pack.host.delay_s is None
    seen = replace(step(), meta=replace(step().meta, launch_delay_s=7e-6, kernel_gap_s=1e-6))
    found = calibrate(seen)[0].host
    assert (found.delay_s, found.gap_s) == (7e-6, 1e-6)
    assert pack.host.issue_s == pytest.approx(9e-6)


def test_a_calibrated_model_is_nearer_to_the_device(pack_of):
    trace = step(lambda flop_s: 2.5 * flop_s)
    unknown = replace(trace, meta=replace(trace.meta, clock="none", device=None))
    job = PricingJob(unknown, H100, unknown, None)
    found, plain = price(job, pack_of(trace)), price(job)
    measured = trace.operators.device_s.sum()
    assert abs(found.seconds.sum() / measured - 1) < 0.01 < abs(plain.seconds.sum() / measured - 1)
    assert (found.source == Source.CALIBRATED).all()
    assert found.spread.mean() < plain.spread.mean()
    story = " ".join(describe(found, unknown, job, "pack.json"))
    assert "calibrated with measured kernels on H100-SXM5-80GB" in story
    assert "58 kernels measured on H100-SXM5-80GB" in story


def test_a_recording_is_used_where_it_says_so(pack_of):
    trace = step()
    name = pack_of(trace)
    same = AutoCalibrated(name).price(PricingJob(trace, H100, trace, H100))
    assert np.array_equal(same.seconds, trace.operators.device_s)
    assert (same.source == Source.RECORDED).all()
    example = triosim.load(EXAMPLE)
    grown = rescale(example, 16)
    cpu = Accelerator(example.meta.device, kind="cpu")
    found = AutoCalibrated(pack_of(example)).price(PricingJob(grown, cpu, example, cpu))
    assert 1.6 < found.seconds.sum() / example.device_time() < 2.2
    assert np.any(found.source == Source.ANCHORED)


def test_another_device_is_an_error_that_names_both(pack_of):
    trace = step()
    name = pack_of(trace)
    a100 = catalog.accelerator("A100")
    with pytest.raises(InputError, match=r"is of 'H100-SXM5-80GB', not of 'A100-SXM4-80GB'.*--device H100-SXM5-80GB"):
        price(PricingJob(trace, a100, trace, H100), name)
    mine = replace(H100, name="mine", price_per_hour=2.0)
    assert len(price(PricingJob(trace, mine, trace, None), name)) == 60, "the same figures under another name"


def test_times_recorded_elsewhere_are_carried_over_by_the_shipped_models(pack_of):
    trace = step()
    a100 = catalog.accelerator("A100")
    basis = CalibratedBaseModel(load(pack_of(trace)).calibration)
    there, plain = basis.predict(trace, a100), PhysicalBaseModel().predict(trace, a100)
    assert np.array_equal(there.seconds, plain.seconds)
    assert there.source == Source.PHYSICAL
    found = price(PricingJob(trace, H100, trace, a100), pack_of(trace))
    assert (found.source == Source.ANCHORED).all()


def test_a_processor_is_described_by_what_it_did():
    example = triosim.load(EXAMPLE)
    found = figures.described(example, {"clock_hz": 3e9, "cache_bytes": 2**25})
    assert found.name == "AMD EPYC"
    assert found.kind == "cpu"
    assert found.compute_units == 1
    flop, seconds = example.operators.flop, example.operators.device_s
    best = np.nanmax(np.where(seconds > 0, flop / np.where(seconds > 0, seconds, 1), np.nan))
    assert found.peak_flops == {"float32": pytest.approx(best)}
    assert 1e9 < found.memory_bandwidth < 500e9
    assert (found.clock_hz, found.cache_bytes) == (3e9, 2**25)
    here = figures.machine()
    assert all(value > 0 for value in here.values())
    nothing = TraceBuilder().build(Meta("test", workload="empty", device="x", clock="cpu"))
    with pytest.raises(InputError, match="too little to describe 'x' by: name its device with --device"):
        figures.described(nothing)


def test_a_processors_calibration_brings_its_figures_along(pack_of):
    example = triosim.load(EXAMPLE)
    name = pack_of(example)
    device = load(name).calibration.device
    here = Accelerator(example.meta.device, kind="cpu")
    for given, recorded_on in ((here, None), (UNNAMED, None), (device, None)):
        found = AutoCalibrated(name).price(PricingJob(example, given, example, recorded_on))
        assert found.seconds.sum() == pytest.approx(example.device_time(), rel=0.03)
    with pytest.raises(InputError, match=r"not of 'EPYC-7763': .* or leave --device out"):
        price(PricingJob(example, catalog.accelerator("EPYC-7763"), example, None), name)


def test_what_was_not_measured_of_a_processor_is_the_rooflines(pack_of):
    example, other = triosim.load(EXAMPLE), triosim.load("examples/resnet50-cpu.triosim")
    calibration = load(pack_of(example)).calibration
    found = CalibratedBaseModel(calibration).predict(other, calibration.device)
    assert np.isfinite(found.seconds).all()
    assert np.isfinite(found.spread).all()
    assert found.seconds.sum() > 0, "convolutions were not measured in a GPT"


def test_kernels_beside_the_product_are_taken_off_its_time():
    alone, both = step(kernels=("gemm_128x64_a",)), step(kernels=("gemm_128x64_a", "splitKreduce"))
    one, two = (np.sort(samples(t, H100).kinds["gemm"].seconds) for t in (alone, both))
    assert np.all(two < one)
    assert np.all(two > 0)
    menus = samples(step(kernels=("ampere_bf16_s16816gemm_bf16_128x64_tn",)), H100).kinds["gemm"].menus
    assert menus == {"matrix/tensor": ((64, 128), (128, 64))}
    many = step(kernels=("gemm",) + ("copy",) * 40)
    assert samples(many, H100).left_out == 30, "mostly other kernels: the time says little about the product"


def test_equal_calls_are_one_kernel_at_their_median():
    b = TraceBuilder()
    a, w = b.value((256, 256), "bfloat16", Category.INPUT), b.value((256, 256), "bfloat16", Category.WEIGHT)
    for seconds in (9e-6, 1e-5, 5e-5, float("nan")):
        out = b.value((256, 256), "bfloat16", Category.ACTIVATION)
        b.operator("aten::mm", (a, w), (out,), roles=("self", "mat2"), phase=Phase.FORWARD, device_s=seconds)
    trace = b.build(Meta("test", clock="gpu"))
    found = samples(trace, H100)
    assert found.kinds["gemm"].seconds.tolist() == [1e-5]
    assert found.operators == 3
    one = calibrate(trace, H100)[0].calibration.learned["gemm", "matrix/tensor"]
    assert one.after is None, "there is none to leave out"
    assert one.spread is None
    assert not one.logs.any(), "one kernel does not move its class"
    assert one.seconds(BY_NAME["gemm"], found.kinds["gemm"].work, H100)[0] == pytest.approx([1e-5])


def test_what_has_no_shapes_is_left_out():
    b = TraceBuilder()
    for name in ("aten::conv2d", "aten::relu", "aten::mm"):
        b.operator(name, (), (), roles=(), phase=Phase.FORWARD, device_s=1e-3)
    trace = b.build(Meta("kineto", workload="shapeless", clock="gpu"))
    assert samples(trace, H100).left_out == 3
    with pytest.raises(
        InputError, match=r"'shapeless' has no measured kernel whose shapes are known.*record_shapes=True"
    ):
        calibrate(trace, H100)


def test_the_longest_kernels_of_many_are_kept():
    b = TraceBuilder()
    for i in range(MOST + 20):
        x = b.value((1000 + i,), "float32", Category.INPUT)
        y = b.value((1000 + i,), "float32", Category.ACTIVATION)
        b.operator("aten::relu", (x,), (y,), roles=("self",), phase=Phase.FORWARD, device_s=1e-6 * (1 + i))
    found = samples(b.build(Meta("test", clock="gpu")), H100)
    assert len(found.kinds["stream"].seconds) == MOST
    assert found.kinds["stream"].seconds.min() == pytest.approx(21e-6)
    assert found.left_out == 20


def test_traces_that_say_nothing():
    with pytest.raises(InputError, match="holds no measured times"):
        calibrate(triosim.model("gpt2"), H100)
    with pytest.raises(InputError, match="was recorded on 'Dream-1', which the catalog does not know: give --device"):
        calibrate(step(device="Dream-1"))
    with pytest.raises(InputError, match="does not name its device: give --device"):
        calibrate(step(device=None))


def test_a_step_of_resnet_on_h100():
    """Its own kernels, each predicted without itself, come nearer than the shipped constants in every large class."""
    trace = triosim.load(shared("triosim-h100", "resnet50"))
    pack, _ = calibrate(trace, H100)
    for one in pack.calibration.learned.values():
        if len(one.anchors) >= 15:
            assert one.after < one.before, one.name
            assert one.after < 0.16, one.name
