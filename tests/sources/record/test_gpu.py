"""Joining kernels to operators.  No GPU is needed: a real CPU profile is given the events that a GPU would add."""

from __future__ import annotations

import itertools
import time

import pytest

from tests.sources.record.steps import quick, torch, trained
from triosim.sources.record import gpu
from triosim.sources.record.function import StepStopwatch, Times, apply_kernels, settle_times
from triosim.sources.record.modules import ModuleWatch
from triosim.sources.record.observer import Observer
from triosim.sources.record.phases import PhaseWatch


def marker(number, start, duration, tid=1, **args):
    return {"ph": "X", "cat": "cpu_op", "name": f"op#{number}", "pid": 7, "tid": tid, "ts": start, "dur": duration,
            "args": args}  # fmt: skip


def launch(correlation, at, tid=1, cat="cuda_runtime"):
    return {"ph": "X", "cat": cat, "name": "cudaLaunchKernel", "pid": 7, "tid": tid, "ts": at, "dur": 1,
            "args": {"correlation": correlation}}  # fmt: skip


def kernel(correlation, at, duration, name="gemm", cat="kernel", stream=7, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": stream, "ts": at, "dur": duration,
            "args": {"correlation": correlation, "stream": stream} | args}  # fmt: skip


def test_a_kernel_belongs_to_the_operator_that_launched_it() -> None:
    """Kernels run long after their launch, and in any order of events in the file."""
    joined = gpu.join([
        kernel(2, 900.5, 2.5), kernel(1, 500, 4.25, name="copy", cat="gpu_memcpy"), launch(1, 12), launch(2, 25),
        marker(1, 20, 10), marker(0, 10, 5),
    ])  # fmt: skip
    assert [(k.operator, k.name, k.stream) for k in joined.kernels] == [(0, "copy", 7), (1, "gemm", 7)]
    assert [k.seconds for k in joined.kernels] == pytest.approx([4.25e-6, 2.5e-6], rel=1e-12)
    assert joined.lost() == []


def test_driver_launches_count() -> None:
    joined = gpu.join([marker(0, 0, 10), launch(5, 3, cat="cuda_driver"), kernel(5, 20, 1)])
    assert joined.kernels[0].operator == 0


def test_threads_are_kept_apart() -> None:
    """Backward runs on a thread of its own while the forward thread waits inside nothing."""
    joined = gpu.join([marker(0, 0, 10, tid=1), marker(1, 0, 10, tid=2), launch(5, 3, tid=2), kernel(5, 20, 1)])
    assert joined.kernels[0].operator == 1


def test_the_innermost_marker_counts() -> None:
    joined = gpu.join(
        [marker(0, 0, 100), marker(1, 10, 5), launch(1, 12), launch(2, 50), kernel(1, 1, 1), kernel(2, 2, 1)]
    )
    assert [k.operator for k in joined.kernels] == [1, 0]


def test_a_kernel_from_outside_of_operators_is_lost_not_guessed() -> None:
    joined = gpu.join([marker(0, 0, 10), launch(1, 15), kernel(1, 20, 1), kernel(9, 30, 1)])
    assert [k.operator for k in joined.lost()] == [-1, -1]


def test_without_a_launch_the_external_id_decides() -> None:
    joined = gpu.join([marker(3, 0, 10, **{"External id": 44}), kernel(1, 20, 1, **{"External id": 44})])
    assert joined.kernels[0].operator == 3


def test_annotations_on_the_device_are_no_work() -> None:
    span = kernel(1, 0, 100, name="op#0", cat="gpu_user_annotation")
    joined = gpu.join([span, marker(0, 0, 10), launch(1, 3), kernel(1, 20, 1)])
    assert len(joined.kernels) == 1


def test_communication_kernels_are_apart() -> None:
    joined = gpu.join(
        [marker(0, 0, 10), launch(1, 3), kernel(1, 20, 1, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL")]
    )
    assert joined.kernels == []
    assert len(joined.communication) == 1


def test_times_far_from_zero_keep_their_nanoseconds() -> None:
    """Microseconds since 1970 with three decimals do not fit a float; the launch is 1 ns inside its marker."""
    from decimal import Decimal

    base = Decimal("1795229543000000.000")
    joined = gpu.join([
        marker(0, base, Decimal("5.000")), marker(1, base + Decimal("5.001"), Decimal("5.000")),
        launch(1, base + Decimal("5.002")), launch(2, base + Decimal("4.999")),
        kernel(1, base + 10, 1), kernel(2, base + 20, 1),
    ])  # fmt: skip
    assert [k.operator for k in joined.kernels] == [1, 0]


def test_issue_times_are_scaled_to_a_step_that_was_not_observed() -> None:
    joined = gpu.join([marker(0, 0, 10), marker(1, 30, 10), marker(2, 60, 40, tid=2)])
    assert [joined.host_s[n] for n in range(3)] == pytest.approx([30e-6, 30e-6, 40e-6])
    assert gpu.issue_times(joined, 3, 50e-6) == pytest.approx([15e-6, 15e-6, 20e-6])
    assert gpu.issue_times(joined, 3, 1.0) == pytest.approx([30e-6, 30e-6, 40e-6])  # observing never speeds up
    assert gpu.issue_times(joined, 3, None) == []


@pytest.fixture(scope="module")
def profiled():
    """A real training step under the real profiler, with the markers in place, on the CPU."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    step = trained(model, torch.optim.AdamW(model.parameters(), foreach=True))
    x, y = torch.randn(4, 8), torch.randint(4, (4,))
    modules = ModuleWatch()
    phases = PhaseWatch(modules)
    with modules, phases:
        step(x, y)
        observer = Observer(modules, phases, marker=gpu.marker, inputs=(x, y))

        def run():
            observer.start()
            step(x, y)
            observer.stop()

        events = gpu.profiled(run)
    return observer.tape, events


def test_every_operator_has_exactly_one_marker_in_a_real_profile(profiled) -> None:
    tape, events = profiled
    numbers = [int(e["name"][3:]) for e in events if str(e.get("name", "")).startswith("op#")]
    assert sorted(numbers) == list(range(len(tape.rows)))


def test_a_doctored_real_profile_gives_every_kernel_back_to_its_operator(profiled) -> None:
    """Into each marker of a real profile a launch is put, and its kernel a second later on the device."""
    tape, events = profiled
    added, correlation = [], itertools.count(100)
    for event in events:
        if str(event.get("name", "")).startswith("op#"):
            number, middle = int(event["name"][3:]), event["ts"] + event["dur"] / 2
            for _ in range(1 + number % 2):
                c = next(correlation)
                added.append(launch(c, middle) | {"pid": event["pid"], "tid": event["tid"]})
                added.append(kernel(c, middle + 1_000_000, number + 1, name=f"kernel of {number}"))
    apply_kernels(tape, gpu.join([*reversed(added), *events]), host_s=1e-3)
    for number, row in enumerate(tape.rows):
        assert row.seconds == pytest.approx((number + 1) * (1 + number % 2) * 1e-6)
    assert all(name == f"kernel of {row}" for row, name, _, _ in tape.kernels)
    assert tape.host == [] or sum(tape.host) <= 1e-3 * (1 + 1e-9)


def test_a_step_that_waits_for_the_device_has_no_issue_times(profiled) -> None:
    """Its host time cannot be told from waiting."""
    tape, events = profiled
    tape.rows[3].sync = True
    apply_kernels(tape, gpu.join(events), host_s=1e-3)
    assert tape.host == []
    tape.rows[3].sync = False


def test_medians_over_runs_are_taken_per_operator_and_kernel(profiled) -> None:
    tape, _ = profiled
    runs = []
    for factor in (3.0, 1.0, 2.0):
        tape.kernels = [(0, "a", factor, 7), (0, "b", 10 * factor, 7)]
        for row in tape.rows:
            row.seconds = factor
        runs.append(Times.of(tape))
    assert settle_times(tape, runs) == []
    assert {row.seconds for row in tape.rows} == {2.0}
    assert [k[2] for k in tape.kernels] == [2.0, 20.0]


def test_a_run_with_other_operators_is_not_used(profiled) -> None:
    tape, _ = profiled
    first = Times.of(tape)._replace(plan=0)
    (note,) = settle_times(tape, [first, Times.of(tape)])
    assert note.startswith("1 of 2 observed steps")


def test_the_stopwatch_counts_processor_time() -> None:
    watch = StepStopwatch("cpu")
    assert watch.step_s() is None
    before = time.process_time()
    watch.start()
    sum(range(10_000))
    watch.stop()
    assert 0 < watch.step_s() <= time.process_time() - before
    assert watch.host_s() is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_on_a_gpu() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).cuda()
    step = trained(model, torch.optim.AdamW(model.parameters()))
    look = quick(step, torch.randn(64, 256).cuda(), torch.randint(10, (64,)).cuda(), warmup=3, repeats=3)
    assert look.trace.meta.clock == "gpu"
    assert len(look.trace.kernels) > 10
    assert all(op.seconds > 0 for op in look.named("mm"))
    assert not [n for n in look.trace.meta.notes if "outside of operators" in n]
