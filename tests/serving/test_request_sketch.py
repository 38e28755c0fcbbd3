"""Figures of many requests are added up as they end: the same as of rows, to what a sketch loses."""

from __future__ import annotations

import numpy as np
import pytest

from triosim.hardware.machine import system
from triosim.serving import metrics, traffic
from triosim.serving.deployment import Deployment, ServingResult, serve
from triosim.serving.pool import Pool
from triosim.serving.quantiles import Samples
from triosim.serving.requests import RequestTable


def run(table: RequestTable, *, blocks: int | None = None, tpot: str = "standard") -> ServingResult:
    pool = Pool(
        model="llama-3-8b", system=system(None, None, device="H100-SXM5-80GB", devices=2), replicas=2, blocks=blocks
    )
    goals = metrics.parse_slo("ttft=p99:40ms,tpot=mean:9ms,e2e=p50:80ms,queueing=p90:20ms")
    return serve(Deployment(pools=(pool,)), table, goals, tpot, interval=False)


def sketched(monkeypatch: pytest.MonkeyPatch, table: RequestTable, **how: object) -> ServingResult:
    with monkeypatch.context() as patch:
        patch.setattr(metrics, "MOST_ROWS", 100)
        return run(table, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(("blocks", "tpot"), [(None, "standard"), (60, "standard"), (None, "vidur")])
def test_figures_are_those_of_rows(monkeypatch: pytest.MonkeyPatch, blocks: int | None, tpot: str) -> None:
    table = traffic.traffic("poisson:60", "uniform:20-512", 1500)
    exact, found = run(table, blocks=blocks, tpot=tpot), sketched(monkeypatch, table, blocks=blocks, tpot=tpot)
    assert found.served.sketch is not None
    assert not len(found.served.finished)
    assert (found.metrics.figures["preemptions"] or 0) > 0 or not blocks
    assert found.metrics.figures == exact.metrics.figures
    assert found.metrics.duration_s == exact.metrics.duration_s
    assert found.to_dict()["energy"] == exact.to_dict()["energy"]
    assert found.to_dict()["binds"] == exact.to_dict()["binds"]
    for name, one in found.metrics.distributions.items():
        other = exact.metrics.distributions[name]
        assert one.exact == (name == "itl")
        assert other.exact
        assert one.count == other.count
        assert one.mean == pytest.approx(other.mean, rel=1e-9)
        assert (one.least, one.most) == pytest.approx((other.least, other.most), abs=1e-12)
        assert one.quantiles == pytest.approx(other.quantiles, rel=2e-3)
    for (goal, at, _), (same, other_at, _) in zip(found.metrics.goals, exact.metrics.goals, strict=True):
        assert goal == same
        assert at == pytest.approx(other_at, rel=2e-3)


def test_conversations_begin_when_they_did(monkeypatch: pytest.MonkeyPatch) -> None:
    table = traffic.traffic("poisson:5", "uniform:20-200", 400, turns="4,think=1s")
    exact, found = run(table), sketched(monkeypatch, table)
    assert found.served.sketch is not None
    assert found.metrics.figures == exact.metrics.figures
    assert found.metrics.distributions["ttft"].mean == pytest.approx(exact.metrics.distributions["ttft"].mean)


@pytest.mark.parametrize(
    "lengths",
    [
        "uniform:128-512",
        "zipf:1.1,max=4096",
        "lognormal:300,sigma=1",
        "prompt=uniform:5-90;output=lognormal:30,sigma=2",
    ],
)
@pytest.mark.parametrize("arrivals", ["poisson:8", "gamma:8,cv=2", "users:64,think=1s"])
def test_many_requests_are_drawn_in_parts_and_are_the_same(
    monkeypatch: pytest.MonkeyPatch, arrivals: str, lengths: str
) -> None:
    whole = traffic.traffic(arrivals, lengths, 2000, seed=3)
    monkeypatch.setattr(traffic, "ROWS", 333)
    monkeypatch.setattr(traffic, "MOST_ROWS", 1000)
    parts = traffic.traffic(arrivals, lengths, 2000, seed=3)
    assert parts.prompt.dtype == parts.output.dtype == np.int32
    for name in ("arrived", "prompt", "output", "follows"):
        assert getattr(parts, name).tolist() == getattr(whole, name).tolist()


def test_lengths_beyond_32_bits_keep_64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "MOST_ROWS", 10)
    table = traffic.traffic("poisson:8", "prompt=fixed:2000000000;output=fixed:5", 20)
    assert (table.prompt.dtype, table.output.dtype) == (np.int64, np.int32)
    assert table.prompt.tolist() == [2_000_000_000] * 20


def test_samples_of_many_at_once_are_those_of_one_after_another() -> None:
    values = np.random.default_rng(1).integers(0, 2**60, 500)
    values[:3] = 0, 1, 2
    at_once, each = Samples.sketched(), Samples.sketched()
    at_once.add_many(values[:200])
    at_once.add_many(values[200:])
    for value in values.tolist():
        each.add(value)
    assert (at_once.count, at_once.total, at_once.most) == (each.count, each.total, each.most)
    assert at_once.quantiles([0.0, 0.1, 0.5, 1.0]) == each.quantiles([0.0, 0.1, 0.5, 1.0])
