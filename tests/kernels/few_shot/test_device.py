"""Devices from few networks: laws, and the figures that the judge prints."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.data import shared
from triosim.core.errors import InputError
from triosim.kernels.few_shot.device import (
    LIVE,
    OPERATORS,
    POOL,
    NetworkSample,
    learn,
    rank_correlation,
    student_95,
)  # fmt: skip
from triosim.kernels.few_shot.least_squares import non_negative
from triosim.kernels.few_shot.networks import NetworkSet, parse
from triosim.kernels.few_shot.pool import learn as learn_pool

CELL = "|{}~0|+|{}~0|{}~1|+|{}~0|{}~1|{}~2|"
EVERY = [CELL.format(*cell) for cell in product(("none", "skip", "conv"), repeat=6)]
COSTS = np.array([3e-3, 1e-3])
"""Seconds of a convolution and a skip."""


def _networks() -> NetworkSet:
    every = parse(EVERY, "test")
    return parse([name for name, path in zip(EVERY, every.connected, strict=True) if path], "test")


def _times(networks: NetworkSet, only_live: bool) -> np.ndarray:
    return 2e-3 + networks.counts(("conv", "skip"), only_live) @ COSTS


def _samples(networks: NetworkSet, times: np.ndarray, count: int, seed: int) -> list[NetworkSample]:
    rows = np.random.default_rng(seed).choice(len(networks), count, replace=False)
    return [NetworkSample(networks.names[row], float(times[row])) for row in rows]


@pytest.mark.parametrize(("only_live", "kind"), [(False, OPERATORS), (True, LIVE)])
def test_a_device_that_adds_is_found_with_what_runs_on_it(only_live: bool, kind: str) -> None:
    networks = _networks()
    times = _times(networks, only_live)
    device = learn("one", _samples(networks, times, 12, 0), None, "test")
    assert device.chosen.kind == kind
    assert device.chosen.error < 1e-6
    assert device.times(networks).seconds == pytest.approx(times, rel=1e-6)
    assert device.chosen.coefficients == pytest.approx([2e-3, *COSTS], rel=1e-6)


def test_a_mixture_of_the_pool_is_found() -> None:
    networks = _networks()
    places = networks.one_hot(networks.operators, False)
    generator = np.random.default_rng(1)
    pool_times = 1e-3 + places @ generator.uniform(1e-4, 9e-3, (places.shape[1], 3))
    pool = learn_pool(("a", "b", "c"), networks, pool_times, "test")
    times = 0.3 * pool_times[:, 0] + 2.0 * pool_times[:, 2]
    device = learn("mixed", _samples(networks, times, 10, 2), pool, "test")
    assert device.chosen.kind == POOL
    assert device.chosen.coefficients == pytest.approx([0.3, 0.0, 2.0], abs=0.02)
    assert device.times(networks).seconds == pytest.approx(times, rel=2e-3)


def test_names_are_known_where_the_pool_has_them() -> None:
    pool = learn_pool(
        ("a", "b"), parse(list("vwxyz"), "test"), np.array([[1, 5], [2, 4], [3, 3], [4, 2], [5, 1.0]]), "t"
    )
    samples = [NetworkSample(name, time) for name, time in zip("wxyz", (10.0, 9.0, 8.0, 7.0), strict=True)]
    device = learn("named", samples, pool, "test")
    found = device.predict(["v", "w", "u"], "test")
    assert found.seconds[:2] == pytest.approx([11.0, 10.0])
    assert math.isnan(found.seconds[2])
    assert found.reasons == (None, None, "the pool has not timed it")


def test_an_operator_that_was_not_measured_is_never_free() -> None:
    networks = parse(["a|a", "a|b", "b|a", "b|b"], "test")
    samples = [NetworkSample(name, 1.0 + name.count("b")) for name in networks.names]
    found = learn("blocks", samples, None, "test").predict(["b|b", "a|c"], "test")
    assert found.seconds[0] == pytest.approx(3.0)
    assert found.reasons[1] == "no measured network has 'c'"
    assert learn("blocks", samples, None, "test").predict(["a|a|a"], "test").reasons[0]


def test_repeated_runs_count_once_with_their_median() -> None:
    samples = [NetworkSample(name, 1.0 + name.count("b")) for name in ("a|a", "a|b", "b|a", "b|b")]
    more = [*samples, NetworkSample("b|b", 90.0), NetworkSample("b|b", 3.0)]
    one, other = learn("d", samples, None, "test"), learn("d", more, None, "test")
    assert (other.chosen.coefficients == one.chosen.coefficients).all()
    assert (other.networks, len(other.samples)) == (4, 6)


def test_networks_without_a_path_are_left_out_by_their_graph() -> None:
    networks = _networks()
    times = _times(networks, True)
    samples = _samples(networks, times, 8, 3)
    nowhere = CELL.format(*["conv"] * 3, *["none"] * 3)
    device = learn("pi", [*samples, NetworkSample(nowhere, 1e-5)], None, "test")
    assert device.left_out == (nowhere,)
    assert device.networks == 8
    assert device.predict([nowhere], "test").reasons == ("no path leads through it",)


def test_too_little_is_one_sentence() -> None:
    samples = [NetworkSample(name, 1.0) for name in ("a|a", "a|b", "b|a")]
    with pytest.raises(InputError, match="3 networks; 4 are the least"):
        learn("d", samples, None, "test")
    with pytest.raises(InputError, match="nothing tells what 'v' is made of"):
        learn("d", [NetworkSample(name, 1.0) for name in "vwxy"], None, "test")
    pool = learn_pool(("a",), parse(list("vwx"), "test"), np.ones((3, 1)), "t")
    with pytest.raises(InputError, match="the pool has not timed it"):
        learn("d", [NetworkSample(name, 1.0) for name in "vwxy"], pool, "test")


def test_least_squares_meets_the_conditions_of_its_optimum() -> None:
    generator = np.random.default_rng(4)
    for _ in range(200):
        rows, count = generator.integers(2, 12, 2)
        columns, target = generator.normal(size=(rows, count)), generator.normal(size=rows)
        columns[:, generator.random(count) < 0.1] = 0.0
        x = non_negative(columns, target)
        gradient = columns.T @ (target - columns @ x)
        assert (x >= 0).all()
        assert (gradient <= 1e-7).all()
        assert gradient[x > 0] == pytest.approx(0.0, abs=1e-7)


def test_statistics_have_the_values_of_tables() -> None:
    for freedom, value in ((3, 2.3534), (5, 2.0150), (9, 1.8331), (30, 1.6973)):
        assert student_95(freedom) == pytest.approx(value, rel=3e-3)
    one = np.array([1.0, 2.0, 2.0, 4.0])
    assert rank_correlation(one, np.exp(one)) == pytest.approx(1.0)
    assert rank_correlation(one, -one) == pytest.approx(-1.0)
    assert rank_correlation(one, np.array([2.0, 1.0, 3.0, 4.0])) == pytest.approx(0.6324555)
    assert math.isnan(rank_correlation(one, np.ones(4)))


def test_the_judge_reaches_its_figures(tmp_path: Path) -> None:
    from validation.judge import edge

    found = edge.table("nb201", shared("edge", "edge_latency_nb201.csv.gz"), draws=6, seed=0)
    for count, least in (("10", 0.955), ("20", 0.965), ("50", 0.972)):
        rows = found[count].values()
        assert np.mean([row["order"] for row in rows]) > least
        assert 0.8 < np.mean([row["held"] for row in rows]) < 0.97
