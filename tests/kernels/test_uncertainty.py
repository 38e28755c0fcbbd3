"""Intervals of totals: together within a class, in quadrature between classes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.kernels.example import job
from triosim.kernels.classes import GROUPS
from triosim.kernels.estimate import Estimates
from triosim.kernels.pricing import price
from triosim.kernels.uncertainty import by_class, half_width


def test_independent_classes_by_hand():
    assert half_width([3.0, 1.0], [0.1, 0.4]) == pytest.approx(math.hypot(0.3, 0.4) / 4)
    assert half_width([2.0], [0.3]) == pytest.approx(0.3)
    assert half_width([0.0], [0.3]) == 0
    assert half_width([], []) == 0


def test_operators_of_one_class_err_together():
    asked = job()
    found = Estimates(
        np.array([1.0, 2.0, 0.0, 1.0]), np.array([0.1, 0.2, 0.0, 0.4]), np.zeros(4, np.int8), np.zeros(4, np.int8)
    )
    seconds, spread = by_class(found, asked.trace)
    at = [GROUPS.index(name) for name in ("matrix", "elementwise", "other")]
    assert seconds[at].tolist() == [1.0, 2.0, 1.0]
    assert spread[at].tolist() == pytest.approx([0.1, 0.2, 0.4])
    assert half_width(*by_class(found, asked.trace)) == pytest.approx(math.sqrt(0.1**2 + 0.4**2 + 0.4**2) / 4)


def test_operators_that_run_more_often_weigh_more():
    asked = job(64)
    found = price(asked)
    weight = np.array([2.0, 0.0, 1.0, 1.0])
    seconds, _ = by_class(found, asked.trace, weight)
    assert seconds.sum() == pytest.approx(2 * found.seconds[0] + found.seconds[3])


classes = st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 2)), min_size=1, max_size=9)


@given(classes)
@example([(5e-324, 1.5)])
@example([(5e-324, 2.0), (1e-323, 2.0)])
def test_a_total_is_no_less_sure_than_its_least_sure_class(rows):
    seconds, spread = zip(*rows, strict=True)
    width = half_width(seconds, spread)
    assert 0 <= width <= max(spread) * (1 + 1e-9)
    assume(all(t / 2 * 2 == t for t in seconds))  # the smallest numbers have no half
    split = half_width([t / 2 for t in seconds] * 2, [*spread, *spread])
    assert split <= width * (1 + 1e-9) + 1e-12, "more independent classes are surer"
