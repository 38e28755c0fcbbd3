"""Samples, exact and sketched."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triosim.serving import quantiles
from triosim.serving.quantiles import Samples

AT = (0.0, 0.25, 0.5, 0.9, 0.99, 1.0)


@given(st.lists(st.tuples(st.integers(0, 10**13), st.integers(1, 5)), min_size=1, max_size=60))
def test_exact_quantiles_are_numpys(pairs: list[tuple[int, int]]) -> None:
    samples = Samples()
    for value, times in pairs:
        samples.add(value, times)
    every = np.repeat([value for value, _ in pairs], [times for _, times in pairs])
    assert samples.quantiles(AT) == pytest.approx(np.quantile(every, AT).tolist(), rel=1e-12)
    assert samples.total == sum(value * times for value, times in pairs)
    assert (samples.least, samples.most, samples.exact) == (every.min(), every.max(), True)


def test_a_sketch_is_within_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantiles, "MOST_EXACT", 1000)
    values = np.random.default_rng(0).lognormal(22, 2, 20_000).astype(np.int64)
    parts = [Samples(), Samples()]
    for row, value in enumerate(values.tolist()):
        parts[row % 2].add(value)
    joined = Samples.joined(parts)
    assert not joined.exact
    assert joined.count == len(values)
    assert joined.total == int(values.sum())
    for found, true in zip(joined.quantiles(AT), np.quantile(values, AT), strict=True):
        assert found == pytest.approx(true, rel=2e-3)


def test_a_sketch_and_exact_samples_join() -> None:
    exact, sketch = Samples(), Samples()
    exact.add(10**9, 5)
    sketch.add(2 * 10**9, 5)
    sketch._merge()
    for order in ((exact, sketch), (sketch, exact)):
        joined = Samples.joined(order)
        assert joined.count == 10
        assert joined.quantiles([0.0, 1.0]) == pytest.approx([1e9, 2e9], rel=1e-3)


def test_nothing_has_no_quantiles() -> None:
    assert all(value != value for value in Samples().quantiles(AT))


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=60))
def test_many_values_have_the_buckets_of_each(values: list[int]) -> None:
    borders = [value for place in range(1, 40) for value in [round(np.exp(place * quantiles.RATIO * 500))]]
    every = np.array([0, 1, 2, *borders, *values], np.int64)
    assert quantiles._buckets(every).tolist() == [quantiles._bucket(value) for value in every.tolist()]
