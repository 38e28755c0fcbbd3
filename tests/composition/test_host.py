"""The host: what launching costs, and when it binds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import triosim
from tests.traces import chain
from triosim import InputError, Plan
from triosim.composition.host import default_mode, host

ONE = {"devices": 1}


def _with_host_times(trace, seconds: float):
    return replace(trace, operators=replace(trace.operators, host_s=np.full(len(trace), seconds)))


def _time(trace, **plan) -> float:
    return triosim.simulate(trace, triosim.system(**ONE), Plan(**plan)).iteration_time_s


def test_long_kernels_hide_the_host() -> None:
    trace = chain(layers=4, forward_s=1e-3, backward_s=1e-3)
    assert _time(trace, host="eager") == pytest.approx(trace.device_time() + 20e-6)


def test_short_kernels_wait_for_the_host() -> None:
    trace = chain(layers=4, forward_s=1e-6, backward_s=1e-6)
    result = triosim.simulate(trace, triosim.system(**ONE), Plan(host="eager"))
    assert result.iteration_time_s == pytest.approx(8 * 20e-6 + 1e-6)
    assert result.breakdown_s.host == pytest.approx(result.iteration_time_s - 8e-6)
    assert result.devices[0].host_cpu_s == pytest.approx(8 * 20e-6)


def test_a_graph_is_launched_once_an_iteration() -> None:
    trace = chain(layers=4, forward_s=1e-6, backward_s=1e-6)
    assert _time(trace, host="graph") == pytest.approx(10e-6 + 8e-6)
    assert _time(trace, host="graph", iterations=3) == pytest.approx((3 * 10e-6 + 8e-6) / 3)


def test_recorded_host_times_are_used_as_they_are() -> None:
    trace = _with_host_times(chain(layers=4, forward_s=1e-6, backward_s=1e-6), 5e-6)
    assert _time(trace, host="recorded") == pytest.approx(8 * 5e-6 + 1e-6)
    assert default_mode(trace) == "recorded"


def test_the_default_depends_on_where_the_workload_is_from() -> None:
    trace = chain()
    assert default_mode(trace) == "none"
    assert default_mode(triosim.model("vgg11")) == "eager"
    on_a_cpu = _with_host_times(replace(trace, meta=replace(trace.meta, clock="cpu")), 1e-6)
    assert default_mode(on_a_cpu) == "none"


def test_recorded_without_host_times_is_refused() -> None:
    with pytest.raises(InputError, match="has no host times; use eager"):
        host(chain(), "recorded")


def test_an_operator_that_the_host_waits_for_holds_up_the_next_launch() -> None:
    trace = chain(layers=4, forward_s=100e-6, backward_s=0.0)
    sync = trace.operators.sync.copy()
    sync[1] = True
    waiting = replace(trace, operators=replace(trace.operators, sync=sync))
    assert _time(trace, host="eager") == pytest.approx(20e-6 + 4 * 100e-6, rel=0.2)
    assert _time(waiting, host="eager") - _time(trace, host="eager") == pytest.approx(20e-6)


def test_views_cost_the_host_but_not_the_device() -> None:
    trace = _with_host_times(chain(layers=4, forward_s=1e-6, backward_s=1e-6), 5e-6)
    view = trace.operators.view.copy()
    view[1] = True
    seconds = trace.operators.device_s.copy()
    seconds[1] = 0.0
    trace = replace(trace, operators=replace(trace.operators, view=view, device_s=seconds))
    assert _time(trace, host="recorded") == pytest.approx(8 * 5e-6 + 1e-6)


def test_sources_say_what_the_host_rests_on() -> None:
    result = triosim.simulate(chain(), triosim.system(**ONE), Plan(host="large-model"))
    assert any("48 us per launch" in s and "vTrain" in s for s in result.sources)
    result = triosim.simulate(chain(), triosim.system(**ONE), Plan())
    assert any("launching is left out" in s for s in result.sources)
