"""Measuring kernels on this machine."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from triosim.core.errors import InputError  # noqa: E402
from triosim.operators import kind  # noqa: E402
from triosim.sources.record import bench, measure  # noqa: E402
from triosim.sources.record import cases as all_cases  # noqa: E402
from triosim.sources.record.cases import Case, Rates, SizeDraws, cases  # noqa: E402
from triosim.sources.runtimes.draws import rounded  # noqa: E402
from triosim.trace.tables import check  # noqa: E402

RATES = Rates({torch.float32: 50e9}, 10e9)


@pytest.fixture(scope="module")
def measured() -> bench.KernelBenchmark:
    """One round of small kernels, however busy the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "_MOST_CASES", 26)
        patch.setattr(bench, "LONGEST_S", 1e-3)
        patch.setattr(bench, "TOO_MUCH", 100.0)
        patch.setattr(all_cases, "LARGE_BYTES", 2**22)
        return measure("cpu", 300.0)


def test_a_round_measures_some_of_each_kind(measured: bench.KernelBenchmark) -> None:
    check(measured.trace)
    operators = measured.trace.operators
    assert (operators.device_s > 0).all()
    kinds = {kind(name) for name in operators.name}
    assert {"linear", "matmul", "convolution", "attention", "elementwise", "softmax", "normalization"} <= kinds
    assert measured.trace.meta.clock == "cpu"
    assert measured.drift >= 0
    assert measured.versions["torch"] == torch.__version__


def test_measured_operators_look_like_recorded_ones(measured: bench.KernelBenchmark) -> None:
    operators = measured.trace.operators
    products = [row for row, name in enumerate(operators.name) if name == "aten::mm"]
    roles = [operators.role_names[code] for code in operators.roles.lists()[products[0]]]
    assert roles == ["self", "mat2"]
    assert np.isfinite(operators.flop[products]).all()
    in_place = [row for row, name in enumerate(operators.name) if name == "aten::copy_"]
    outputs = operators.outputs.lists()
    values = measured.trace.values
    assert all(values.version[outputs[row][0]] == 1 for row in in_place), "what is written in place is the next version"


def test_kernels_fill_the_budget_and_are_told_about(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bench.BenchmarkProgress] = []
    clock = iter(np.arange(0, 1e4, 10.0))
    monkeypatch.setattr(all_cases, "LARGE_BYTES", 2**22)
    monkeypatch.setattr(bench, "LONGEST_S", 1e-3)
    monkeypatch.setattr(bench, "TOO_MUCH", 100.0)
    monkeypatch.setattr(bench.time, "monotonic", lambda: float(next(clock)))
    few = measure("cpu", 100.0, told.append)
    assert len(few.trace) == 2 + 9, "what describes the device, and the clock goes ten seconds a kernel"
    assert [one.gone_s for one in told] == sorted(one.gone_s for one in told)
    assert told[-1].what


def test_a_product_and_a_copy_describe_the_device_however_short_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "TOO_MUCH", 100.0)
    found = measure("cpu", 0.0).trace
    assert found.operators.name == ("aten::mm", "aten::clone")
    assert found.operators.flop[0] >= 2 * 64**3
    assert found.operators.bytes[1] == 2 * 4 * 2**23


def test_where_time_runs_short_kernels_get_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def few(sizes: SizeDraws, dtypes: object) -> object:
        for _ in range(200):
            limits.append(sizes.longest_s)
            yield Case("x", torch.ops.aten.relu.default, lambda: (torch.ones(8),))

    clock = iter(np.arange(0, 1e4, 1.0))
    monkeypatch.setattr(bench.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(bench, "cases", few)
    monkeypatch.setattr(bench, "TOO_MUCH", 1e9)
    measure("cpu", 100.0)
    assert limits[0] > limits[-1] >= 1e-3
    assert limits == sorted(limits, reverse=True)


def test_the_same_device_measures_the_same_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_cases, "LARGE_BYTES", 2**22)

    def shapes() -> list[tuple]:
        found = []
        for _, case in zip(range(40), cases(SizeDraws("cpu", RATES, 1e-4), [torch.float32]), strict=False):
            found.append(tuple(getattr(x, "shape", x) for x in torch.utils._pytree.tree_leaves(list(case.make()))))
        return found

    assert shapes() == shapes()


def test_sizes_stay_near_what_the_rates_allow() -> None:
    sizes = SizeDraws("cpu", RATES, 2e-3)
    for _ in range(200):
        assert 10e-6 * 0.99 <= sizes.work(1e9) / 1e9 <= 2e-3 * 1.01
    assert rounded(1.0) == 8
    assert rounded(100, 64) == 128
    assert rounded(3, 1) == 3
    sides = [sizes.side(1000.0) for _ in range(200)]
    assert 0.6 < np.mean(np.array(sides) % 128 == 0) < 0.95, "most sides of models are multiples of 128"
    assert all(side % 8 == 0 for side in sides)
    assert {sizes.side(2.0, 1) for _ in range(20)} == {2}
    large = sizes.tensor(3, 2**20, dtype=torch.bfloat16)
    assert large.shape == (3, 2**20)
    assert 0.9 < float(large.float().std()) < 1.1, "repeated numbers are numbers"


def test_a_machine_that_is_too_busy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 3.0])

    def timed(case: Case, how: object) -> bench.KernelTiming:
        return bench.KernelTiming(next(times) if case.what == "reference" and how is slow else 1.0, [])

    def slow(func: object, sets: object) -> bench.KernelTiming:
        return bench.KernelTiming(1e-3, [])

    monkeypatch.setattr(bench, "_run", timed)
    monkeypatch.setattr(bench, "_on_cpu", slow)
    monkeypatch.setattr(bench, "_rates", lambda *_: RATES)
    monkeypatch.setattr(bench, "_MOST_CASES", 1)
    with pytest.raises(InputError, match="between 1e\\+03 and 3e\\+03 ms"):
        measure("cpu", 5.0)


def test_what_cannot_be_measured_is_said() -> None:
    with pytest.raises(InputError, match="give cpu or cuda"):
        measure("tpu", 5.0)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no device 'cuda'"):
            measure("cuda", 5.0)
        assert bench.devices_here() == ["cpu"]


def test_on_a_gpu_a_run_is_the_sum_of_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The median run counts; copies and what no marker holds do not."""
    kernels = [
        SimpleNamespace(operator=run, name=name, seconds=seconds * (1 + run))
        for run in range(3)
        for name, seconds in (("gemm_128x64", 2e-6), ("splitK", 1e-6), ("Memcpy DtoD", 5e-6))
    ]
    kernels.append(SimpleNamespace(operator=-1, name="other", seconds=1.0))
    profiler = SimpleNamespace(start=lambda: None, stop=list)
    monkeypatch.setattr(bench.gpu, "Profiler", lambda: profiler)
    monkeypatch.setattr(bench.gpu, "join", lambda events: SimpleNamespace(kernels=kernels))
    calls: list[int] = []
    found = bench._on_gpu(lambda x: calls.append(x), [(0,), (1,)])
    assert found.seconds == pytest.approx(6e-6)
    assert found.kernels == [("gemm_128x64", pytest.approx(4e-6)), ("splitK", pytest.approx(2e-6))]
    assert set(calls) == {0, 1}, "arguments take turns"


def test_a_kernel_that_does_not_run_here_is_left_out() -> None:
    from triosim.trace.builder import TraceBuilder

    builder = TraceBuilder()

    def fails(x: object) -> None:
        raise RuntimeError("CUDA out of memory")

    bench._measured(Case("x", fails, lambda: (torch.ones(1),)), bench._on_cpu, builder)
    assert len(builder) == 0
    bench._measured(
        Case("x", torch.ops.aten.add.Tensor, lambda: (torch.ones(4), torch.ones(4))), bench._on_cpu, builder
    )
    assert len(builder) == 1
