"""Several jobs on one network."""

from __future__ import annotations

import numpy as np
import pytest

import triosim
from tests.traces import chain
from triosim import Fidelity, InputError, Plan


def test_jobs_that_share_no_link_run_as_they_do_alone() -> None:
    system = triosim.system(devices=8, link="1GB/s", latency="2us")
    trace = chain(layers=4, batch=8)
    together = triosim.simulate_together([(trace, Plan(dp=2)), (trace, Plan(dp=2, tp=2))], system)
    for result, plan in zip(together, (Plan(dp=2), Plan(dp=2, tp=2)), strict=True):
        alone = triosim.simulate(trace, system, plan.replaced(idle_ok=True))
        assert result.iteration_time_s == alone.iteration_time_s
        assert result.breakdown_s == alone.breakdown_s
        assert result.devices == alone.devices
        assert result.simulation.flows > 0


def test_jobs_that_share_links_slow_each_other() -> None:
    """Two rings of two over one pair of servers: every transfer crosses the same two links."""
    system = triosim.system(devices=4, topology="ring", link="1MB/s")
    trace = chain(layers=4, batch=8, forward_s=1e-4)
    plans = [Plan(placement=(0, 2), overlap=False), Plan(placement=(1, 3), overlap=False)]
    alone = [triosim.simulate(trace, system, plan.replaced(dp=2)) for plan in plans]
    together = triosim.simulate_together([(trace, plan) for plan in plans], system)
    for result, one in zip(together, alone, strict=True):
        assert result.iteration_time_s > one.iteration_time_s
        communication = result.breakdown_s.exposed_communication / one.breakdown_s.exposed_communication
        assert 1.2 < communication <= 2.0
    total = together[0].timeline.links.bytes
    assert np.array_equal(total, together[1].timeline.links.bytes)
    assert total.sum() == sum(one.timeline.links.bytes.sum() for one in alone)


def test_each_job_gets_the_next_devices() -> None:
    system = triosim.system(devices=6, link="1GB/s")
    trace = chain(layers=4, batch=8)
    results = triosim.simulate_together([(trace, Plan(dp=2)), (trace, Plan(dp=1, tp=2)), (trace, Plan())], system)
    names = [result.timeline.rank_names for result in results]
    assert [n[0].split()[0].removeprefix("gpu") for n in names] == [n[0].split()[0][-1] for n in names]
    assert len({name for group in names for name in group}) == 6


@pytest.mark.parametrize(
    ("plans", "message"),
    [
        ([(Plan(dp=3),), (Plan(dp=2),)], "job 1 needs 2 devices, but the jobs before it leave 1"),
        ([(Plan(placement=(0, 1)),), (Plan(placement=(1, 2)),)], "job 1 is placed on device 1"),
        ([(Plan(dp=1),), (Plan(dp=1), Fidelity(solver="equal-split"))], "one network model, but 2 are named"),
    ],
)
def test_what_cannot_be(plans: list[tuple], message: str) -> None:
    system = triosim.system(devices=4, link="1GB/s")
    with pytest.raises(InputError, match=message):
        triosim.simulate_together([(chain(layers=4, batch=8), *plan) for plan in plans], system)
