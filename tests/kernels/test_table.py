"""Tables of measured kernels: interpolation, its interval, and what a file must say."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.example import DEVICE, OTHER, one, step
from triosim.core.errors import InputError
from triosim.kernels import anchoring
from triosim.kernels.estimate import Source
from triosim.kernels.model import PricingJob
from triosim.kernels.models.table import SCHEMA, grid
from triosim.kernels.pricing import describe, price

AXIS = 2.0 ** np.arange(6)
FULL = np.array([(x, y) for x in AXIS for y in AXIS])


def law(points: np.ndarray) -> np.ndarray:
    """Straight in the logarithms: interpolation is exact."""
    return 1e-6 * points[:, 0] ** 0.7 * points[:, 1] ** 1.1


@given(st.floats(1, 32), st.floats(1, 32))
def test_between_points_of_a_grid_the_logarithm_is_multilinear(x, y):
    found, off = grid(FULL, law(FULL)).at(np.log([[x, y]]))
    assert found == pytest.approx(law(np.array([[x, y]])), rel=1e-9)
    assert off == pytest.approx([0.0], abs=1e-9)


def test_outside_the_nearest_face_counts_and_the_interval_grows_with_the_distance():
    table = grid(FULL, law(FULL))
    found, off = table.at(np.log([[64.0, 4.0], [640.0, 0.5]]))
    assert found == pytest.approx(law(np.array([[32.0, 4.0], [32.0, 1.0]])))
    assert off == pytest.approx([np.log(2), np.log(20) + np.log(2)])


def test_a_hole_is_filled_from_its_neighbours():
    keep = ~((FULL[:, 0] == 4) & (FULL[:, 1] == 8))
    found, _ = grid(FULL[keep], law(FULL[keep])).at(np.log([[4.0, 8.0], [5.0, 9.0]]))
    assert found == pytest.approx(law(np.array([[4.0, 8.0], [5.0, 9.0]])))


def test_scattered_points_count_as_the_nearest():
    random = np.random.default_rng(1)
    points = np.exp(random.uniform(0, 3, (500, 3)))
    table = grid(points, points[:, 0])
    assert table.cells is None
    found, off = table.at(np.log(points[:10]) + np.array([0, 0, 1e-3]))
    assert found == pytest.approx(points[:10, 0])
    assert off == pytest.approx(np.full(10, 1e-3))


def test_repeats_count_with_their_median():
    found, off = grid(np.array([[2.0], [2.0], [2.0], [8.0]]), np.array([1.0, 9.0, 2.0, 4.0])).at(np.log([[2.0]]))
    assert found == pytest.approx([2.0])
    assert off == pytest.approx([0.0])


def test_the_interval_covers_what_a_bumpy_grid_hides():
    """Points that scatter by 20 %: those between the points of a coarse grid are covered about nine times in ten."""
    random = np.random.default_rng(3)
    points = np.array([(x, y) for x in range(1, 33) for y in range(1, 33)], float)
    times = law(points) * np.exp(random.normal(0, 0.2, len(points)))
    odd = (points % 2 == 1).all(1)
    table = grid(points[odd], times[odd])
    inner = ~odd & (points < 32).all(1)
    found, off = table.at(np.log(points[inner]))
    assert 0.85 < np.mean(np.abs(np.log(times[inner] / found)) <= off) <= 1.0
    exact, zero = table.at(np.log(points[odd]))
    assert exact == pytest.approx(times[odd])
    assert zero == pytest.approx(np.zeros(odd.sum()))


def written(tmp_path, **changes) -> str:
    axes = {"m": [8, 8, 32, 32], "n": [4096] * 4, "k": [512, 2048, 512, 2048]}
    document = {
        "schema": SCHEMA, "name": "mine", "device": "Example",
        "tables": [{"kind": "matrix", "dtype": "float32", "axes": axes, "seconds": [1e-5, 4e-5, 4e-5, 16e-5]}],
    }  # fmt: skip
    path = tmp_path / "kernels.json"
    path.write_text(json.dumps({**document, **changes}), encoding="utf-8")
    return str(path)


def test_a_matrix_product_is_interpolated_and_the_rest_is_priced_as_ever(tmp_path):
    trace = step(16, measured=False)
    asked = PricingJob(trace, DEVICE, trace, None)
    path = written(tmp_path)
    found, auto = price(asked, path), price(asked, "auto")
    assert found.seconds[0] == pytest.approx(4e-5)  # 16 x 4096 x 1024 lies in the middle of both axes
    assert found.source.tolist() == [Source.TABLE, Source.PHYSICAL, Source.NOTHING, Source.PHYSICAL]
    assert np.array_equal(found.seconds[1:], auto.seconds[1:])
    assert found.spread[0] == pytest.approx(anchoring.load().recorded_spread)
    assert "a table of kernels measured on Example" in describe(found, trace, asked, path)[0]


def test_elementwise_operators_by_their_bytes(tmp_path):
    listed = [{"kind": "elementwise", "axes": {"bytes": [1e6, 4e6]}, "seconds": [2e-6, 8e-6]}]
    trace = one("aten::add", [(250, 1000), (250, 1000)], (250, 1000), "float32", ["self", "other"])
    found = price(PricingJob(trace, DEVICE, trace, None), written(tmp_path, tables=listed))
    assert found.seconds[0] == pytest.approx(6e-6)


def test_another_element_type_is_not_in_the_table(tmp_path):
    trace = one("aten::linear", [(8, 512), (4096, 512)], (8, 4096), "bfloat16", ["input", "weight"])
    with pytest.raises(InputError, match="none of its kernels is in the trace, which has matrix"):
        price(PricingJob(trace, DEVICE, trace, None), written(tmp_path))


def test_a_table_of_another_device_is_refused(tmp_path):
    trace = step(16, measured=False)
    with pytest.raises(InputError, match="is of Example, not of Faster"):
        price(PricingJob(trace, OTHER, trace, None), written(tmp_path))


def test_without_a_file():
    with pytest.raises(InputError, match="'table' need a file"):
        price(PricingJob(step(), DEVICE, step(), DEVICE), "table")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tables": []}, "'tables' is missing or empty"),
        ({"device": None}, "'device' is missing"),
        ({"tables": [{"kind": "conv"}]}, "'kind' must be one of matrix"),
        ({"tables": [{"kind": "matrix", "axes": {"x": [1]}}]}, "'axes' must be some of m, n, k"),
        ({"tables": [{"kind": "elementwise", "axes": {"m": [1]}}]}, "only kind 'matrix' has the axes"),
        ({"tables": [{"kind": "matrix", "axes": {"m": [1]}, "dtype": "half", "seconds": [1]}]}, "'dtype' 'half'"),
        ({"tables": [{"kind": "matrix", "axes": {"m": [1, 2]}, "seconds": [1]}]}, "has 2 entries and 'seconds' 1"),
        ({"tables": [{"kind": "matrix", "axes": {"m": [0]}, "seconds": [1]}]}, "axis 'm' must be a list of positive"),
        ({"tables": [{"kind": "matrix", "axes": {"m": [1]}, "seconds": ["fast"]}]}, "'seconds' must be a list of"),
        ({"tables": [{"kind": "matrix", "axes": {"m": [1]}, "seconds": [float("nan")]}]}, "NaN is no JSON number"),
    ],
)
def test_a_broken_table_is_refused_in_a_sentence(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        price(PricingJob(step(), DEVICE, step(), DEVICE), written(tmp_path, **changes))
