"""Recorded steps played again from their own kernels and host costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from validation.judge.kineto_replay import measured, replayed

import triosim
from tests.data import shared
from tests.traces import chain
from triosim import InputError
from triosim.composition.replay import recorded
from triosim.trace.tables import Communications, Trace

GAP = 1.2e-6


def _with(trace: Trace, host_s: float, **told: list) -> Trace:
    trace = replace(trace, operators=replace(trace.operators, host_s=np.full(len(trace), host_s)))
    if not told:
        return trace
    n = len(told["device_s"])
    return replace(
        trace,
        communications=Communications(
            ("nccl",) * n, ("all_reduce",) * n, np.full(n, np.nan), np.zeros(n, np.int32), np.array(told["device_s"]),
            np.array(told["operator"], np.int32), np.array(told["needed"], np.int32), np.full(n, 20, np.int32),
            np.zeros(n),
        ),
    )  # fmt: skip


def test_a_steady_step_takes_as_long_as_the_longer_of_host_and_device() -> None:
    trace = chain(layers=4, forward_s=10e-6, backward_s=10e-6)
    assert replayed(_with(trace, 5e-6)) == pytest.approx(8 * (10e-6 + GAP))
    assert replayed(_with(trace, 50e-6)) == pytest.approx(8 * 50e-6)


def test_communication_runs_beside_and_holds_up_what_was_seen_to_wait() -> None:
    trace = chain(layers=4, forward_s=10e-6, backward_s=10e-6)
    free = _with(trace, 1e-6, device_s=[30e-6], operator=[5], needed=[-1])
    waiting = _with(trace, 1e-6, device_s=[30e-6], operator=[5], needed=[6])
    beside = replayed(free, times=2)
    assert beside == pytest.approx(8 * (10e-6 + GAP), rel=1e-3)
    assert replayed(waiting, times=2) == pytest.approx(beside + 30e-6 - 10e-6, rel=0.03)


def test_a_step_without_host_times_is_refused() -> None:
    with pytest.raises(InputError, match="no host times"):
        recorded(chain())


@pytest.mark.parametrize(
    ("name", "bound"),
    [("ns_resolution_trace-rank-0.Apr_03_18_51_38.1102.pt.trace", 0.03), ("nccl_parser_config-nccl_data", 0.1),
     ("trace_filter-sampled_rank-0", 0.1)],
)  # fmt: skip
def test_real_steps_are_reached_from_kernels_and_host_costs(name: str, bound: float) -> None:
    path = shared("kineto", f"{name}.json.gz")
    real = measured(path)
    step = list(real)[-2]
    assert replayed(triosim.load(path, step=step)) == pytest.approx(real[step], rel=bound)


def test_a_stored_trace_is_replayed_alike(tmp_path) -> None:
    trace = triosim.load(shared("kineto", "nccl_parser_config-nccl_data.json.gz"), step="5")
    assert (trace.communications.operator >= 0).all()
    triosim.save(trace, tmp_path / "step.triosim")
    again = triosim.load(tmp_path / "step.triosim")
    assert again.meta.kernel_gap_s == trace.meta.kernel_gap_s
    assert again.communications.operator.tolist() == trace.communications.operator.tolist()
    assert replayed(again) == replayed(trace)
