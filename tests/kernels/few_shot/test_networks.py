"""What networks are made of."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from triosim.core.errors import InputError
from triosim.kernels.few_shot.networks import BLOCKS, CELLS, NAMES, parse

OPERATORS = ("none", "skip", "conv")
CELL = "|{}~0|+|{}~0|{}~1|+|{}~0|{}~1|{}~2|"


def _walks(operators: tuple[str, ...]) -> tuple[set[int], bool]:
    """Edges on a walk to the last node, and whether one begins at the first, by trying every walk."""
    edges = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
    there = [edge for edge, operator in zip(edges, operators, strict=True) if operator != "none"]

    def ends(node: int) -> bool:
        return node == 3 or any(ends(target) for source, target in there if source == node)

    live = {at for at, edge in enumerate(edges) if edge in there and ends(edge[1])}
    return live, ends(0)


def test_live_operators_and_paths_are_those_of_a_walk_along_every_edge() -> None:
    cells = list(product(OPERATORS, repeat=6))
    found = parse([CELL.format(*cell) for cell in cells], "test")
    assert found.space == CELLS
    for row, cell in enumerate(cells):
        # edges are in the order of the text, but for those of one source
        by_edge = dict(zip(((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)), range(6), strict=True))
        live, connected = _walks(cell)
        assert {by_edge[found.edges[at]] for at in np.flatnonzero(found.live[row])} == live
        assert found.connected[row] == connected
    counts = found.counts(("conv", "skip"), False)
    assert (counts == [[cell.count("conv"), cell.count("skip")] for cell in cells]).all()
    assert (found.one_hot(("conv", "skip"), True).sum(axis=1) == found.live.sum(axis=1)).all()


def test_edges_may_be_written_in_any_order() -> None:
    one, other = (parse([name], "test") for name in ("|a~0|+|b~0|c~1|", "|a~0|+|c~1|b~0|"))
    assert one.edges == other.edges
    assert (one.codes == other.codes).all()


def test_blocks_and_names() -> None:
    blocks = parse(["a|b|a", "b|b|b"], "test")
    assert (blocks.space, blocks.operators, blocks.codes.tolist()) == (BLOCKS, ("a", "b"), [[0, 1, 0], [1, 1, 1]])
    assert blocks.unknown(("a",)) == ["b", "b"]
    assert parse(["resnet18"], "test").space == NAMES


@pytest.mark.parametrize(("names", "said"), [
    (("a|b", "a|b|c"), "not of the search space"),
    (("a|b", "|a~0|"), "not of the search space"),
    (("resnet18", "a|b"), "not of the search space"),
    (("a|", "a|b"), "not of the search space"),
    (("|a~1|",), "is no cell"),
    (("|a~x|",), "is no cell"),
    (("|a~0|", "a|b"), "is no cell"),
    (("|a~0|b~0|",), "has an edge twice"),
])  # fmt: skip
def test_what_is_no_network_is_one_sentence(names: tuple[str, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse(names, "test")
