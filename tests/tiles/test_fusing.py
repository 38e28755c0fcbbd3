"""Layers as tiles."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triosim.accelerator.problem import convolution, gemm
from triosim.core.errors import InputError
from triosim.tiles.fusing import ASSIGNMENTS, chain, fused
from triosim.tiles.graph import SharedMemory
from triosim.tiles.play import play


def _cycles(problem):
    return problem.computes / 64


@given(
    st.integers(1, 40), st.lists(st.integers(1, 30), min_size=2, max_size=5), st.integers(1, 12), st.integers(1, 4),
    st.sampled_from(ASSIGNMENTS), st.integers(1, 4),
)  # fmt: skip
def test_products_lose_no_work_and_move_every_word_once(m, widths, tiles, cores, assignment, depth):
    layers = chain([
        gemm(f"l{n}", m=m, n=after, k=before) for n, (before, after) in enumerate(itertools.pairwise(widths))
    ])  # fmt: skip
    graph = fused(layers, _cycles, name="x", cores=cores, tiles=tiles, assignment=assignment, depth=depth)
    run = play(graph)
    work = sum(layer.problem.computes for layer in layers) / 64
    assert sum(core.busy for core in run.cores) == pytest.approx(work)
    borders = [width for n, width in enumerate(widths[1:-1], 1) if n % depth == 0]
    kept = {(tile.core, name) for tile in run.graph.tiles for name in tile.keeps}
    weights = sum(run.graph.kept_bytes[name] for _, name in kept)
    assert run.memory_bytes == weights + m * (widths[0] + widths[-1] + 2 * sum(borders))


@given(
    st.integers(4, 30), st.sampled_from([(1, 1), (3, 1), (3, 2), (5, 1), (1, 2), (7, 2)]), st.integers(1, 9)
)  # fmt: skip
def test_tiles_get_the_rows_under_their_filter(p, filter_, tiles):
    """The rows that a tile reads are found here one by one, with the padding of PyTorch: half of what is missing."""
    r, stride = filter_
    made = (p - 1) // stride + 1
    first = convolution("a", c=2, m=3, p=p, q=p)
    second = convolution("b", c=3, m=4, p=made, q=made, r=r, s=r, stride=stride)
    layers = chain([first, second])
    graph = fused(layers, _cycles, name="x", cores=2, tiles=tiles)
    size = {tile.name: tile for tile in graph.tiles}
    cuts = [part * made // min(tiles, made) for part in range(min(tiles, made) + 1)]
    pad = (max(stride * (made - 1) + r - p, 0) + 1) // 2
    for part, (begin, end) in enumerate(itertools.pairwise(cuts)):
        rows = {stride * row - pad + at for row in range(begin, end) for at in range(r)}
        span = range(max(min(rows), 0), min(max(rows) + 1, p))
        assert sum(words for _, words in size[f"b.{part}"].sources) == 3 * p * len(span)


def test_fusing_spares_the_memory_and_time_where_it_binds():
    layers = chain([convolution(n, c=16, m=16, p=32, q=32, r=3, s=3) for n in "abc"])
    found = {
        depth: play(fused(layers, _cycles, name="x", cores=2, tiles=8, depth=depth, assignment="rows",
                          memory=SharedMemory(1.0)))
        for depth in (1, None)
    }  # fmt: skip
    assert found[None].memory_bytes < found[1].memory_bytes / 2
    assert found[None].cycles < found[1].cycles


@pytest.mark.parametrize(
    ("problems", "words"),
    [
        ([gemm("a", m=8, n=4, k=4), gemm("b", m=8, n=4, k=5)], "layer b does not follow a: it reads 5 channels"),
        ([gemm("a", m=8, n=4, k=4), gemm("b", m=9, n=4, k=4)], "it reads 9 rows"),
        ([convolution("a", m=2, p=8, q=8), convolution("b", c=2, p=12, q=8)], "it reads 12 rows"),
        ([convolution("a", m=2, p=8, q=8), convolution("b", c=2, p=8, q=3)], "it reads 3 columns"),
        ([gemm("a", m=8, n=4, k=4, batch=2)], "only convolutions and single matrix products"),
        ([convolution("a", p=4, q=4, r=3, s=3, gradient="input")], "only convolutions"),
    ],
)  # fmt: skip
def test_layers_that_do_not_follow_each_other_are_told(problems, words):
    with pytest.raises(InputError, match=words):
        chain(problems)
