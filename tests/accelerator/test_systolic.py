"""Systolic arrays: closed forms by hand and against SCALE-Sim's figures."""

from __future__ import annotations

import pytest

from tests.data import shared
from triosim.accelerator.problem import convolution, gemm
from triosim.accelerator.systolic import DATAFLOWS, Array, Product, product_of, run
from triosim.core.errors import InputError


def marched(rows: int, columns: int, m: int, n: int, k: int) -> int:
    """Cycles of an output-stationary array: row i begins i cycles after the first, column j another j.

    A fold takes until its last multiplier is done.
    """
    total = 0
    for top in range(0, m, rows):
        for left in range(0, n, columns):
            last = max(i + j + k - 1 for i in range(rows) for j in range(columns))
            total += last + 1
            assert top < m
            assert left < n
    return total


def test_output_stationary_by_marching():
    """The formula counts to the last multiplication of each fold, fold after fold; cycles are numbered from 0."""
    for size in ((4, 4), (8, 3)):
        for product in ((4, 4, 7), (9, 5, 3), (1, 1, 1)):
            found = run(Array(*size), Product("p", *product))
            assert found.cycles == marched(*size, *product) - 1


def test_figures_of_the_tool():
    """Rows that SCALE-Sim 3.0.0 printed: 64 x 64 x 64 on 8 x 4, and a vector on 32 x 32."""
    for dataflow, cycles in (("os", 9471), ("ws", 10495), ("is", 10495)):
        assert run(Array(8, 4, dataflow), Product("g", 64, 64, 64)).cycles == cycles
    vector = run(Array(32, 32, "ws"), Product("v", 1, 256, 256))
    assert (vector.cycles, vector.ifmap_reads, vector.filter_reads, vector.ofmap_writes) == (6079, 2048, 65536, 2048)
    assert 100 * vector.utilization == pytest.approx(1.0528, abs=5e-5)
    assert vector.mapping_efficiency == 1


def test_the_form_of_the_paper_is_the_same_for_every_dataflow():
    for dataflow in DATAFLOWS:
        found = run(Array(8, 4, dataflow), Product("g", 8, 8, 8), "paper")
        assert found.cycles == 2 * (2 * 8 + 4 + 8 - 2), "two folds"


def test_the_first_load_is_seen_and_later_ones_hide():
    product = Product("g", 64, 64, 64)
    ideal = run(Array(8, 4), product)
    fast = run(Array(8, 4, bandwidth=1e9), product, timing="double-buffer")
    assert fast.stall_cycles == pytest.approx(0, abs=1e-3)
    words = (ideal.ifmap_reads + ideal.filter_reads) / ideal.folds
    roomy = run(Array(8, 4, bandwidth=words / 50), product, timing="double-buffer")
    assert roomy.stall_cycles == pytest.approx(50), "the rest hides behind 74 cycles of work"
    slow = run(Array(8, 4, bandwidth=words / 174), product, timing="double-buffer")
    assert slow.stall_cycles == pytest.approx(174 + (ideal.folds - 1) * 100)
    assert run(Array(8, 4, bandwidth=words / 174), product, timing="bandwidth").stall_cycles == pytest.approx(
        ideal.folds * 100
    )


def test_what_an_einsum_is_to_an_array():
    found = product_of(convolution("conv", c=3, m=8, p=8, q=8, r=3, s=4))
    assert (found.m, found.n, found.k) == (64, 8, 36)
    found = product_of(gemm("g", m=5, n=6, k=7))
    assert (found.m, found.n, found.k) == (5, 6, 7)
    with pytest.raises(InputError, match="indexes all three tensors, which is 4 products"):
        product_of(gemm(m=5, n=6, k=7, batch=4))


def test_what_is_no_array_is_refused():
    for options, words in (({"rows": 0, "columns": 4}, "the least is 1 by 1"),
                           ({"rows": 4, "columns": 4, "dataflow": "xs"}, "unknown dataflow"),
                           ({"rows": 4, "columns": 4, "bandwidth": 0.0}, "give one above 0")):  # fmt: skip
        with pytest.raises(InputError, match=words):
            Array(**options)
    with pytest.raises(InputError, match="the least is 1 x 1 x 1"):
        Product("p", 0, 1, 1)
    with pytest.raises(InputError, match="unknown closed form"):
        run(Array(4, 4), Product("p", 1, 1, 1), "guess")


def test_every_row_of_the_tool_comes_out():
    from validation.judge import accelerator as judge

    rows = judge.arrays(shared("accelerator", "systolic.csv"))
    assert len(rows) >= 33
    assert all(row["exact"] for row in rows)
