"""ASTRA-sim's network and system files: understood, told, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from validation.data.astra_cases import dimension

from tests.interop.files import SWITCH_400, VALIDATED
from triosim.core.errors import InputError
from triosim.interop.astra import groups, network, system
from triosim.interop.astra.network import AstraNetwork
from triosim.interop.astra.wires import wires
from triosim.network.routes import Router


def read_network(folder: Path, **changes: object) -> AstraNetwork:
    table = {key: value for key, value in (SWITCH_400 | changes).items() if value is not None}
    (folder / "net.yml").write_text(yaml.safe_dump(table))
    return network.read(folder / "net.yml")


def read_system(folder: Path, **changes: object) -> system.AstraSystem:
    table = VALIDATED | {key.replace("_", "-"): value for key, value in changes.items()}
    (folder / "sys.json").write_text(json.dumps({key: value for key, value in table.items() if value is not None}))
    return system.read(folder / "sys.json")


def test_a_network(tmp_path: Path) -> None:
    found = read_network(tmp_path)
    assert found.shape == (8,)
    assert found.dimensions[0].bandwidth == 400 * 2**30
    assert found.dimensions[0].latency == pytest.approx(936.25e-9)
    made = found.system()
    assert (made.devices, made.nodes, len(made.bandwidth)) == (8, 9, 16)


def test_values_need_not_be_lists(tmp_path: Path) -> None:
    assert read_network(tmp_path, topology="ring", npus_count=4, bandwidth=1, latency=0).shape == (4,)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"topology": ["Torus"]}, "unknown topology"),
        ({"topology": ["Ring", "Ring"]}, "one for each dimension"),
        ({"npus_count": [0]}, "npus_count must be a whole number"),
        ({"npus_count": [2.5]}, "npus_count must be a whole number"),
        ({"npus_count": [10**9]}, "more than the"),
        ({"bandwidth": [0]}, "bandwidth must be above zero"),
        ({"bandwidth": ["fast"]}, "bandwidth must be a number"),
        ({"bandwidth": [10**400]}, "bandwidth: is too large"),
        ({"bandwidth": [1e-14]}, "the least is 1 B/s"),
        ({"latency": [1e30]}, "latency must be from 0"),
        ({"latency": [-1]}, "latency must be from 0"),
        ({"latency": None}, "'latency' is missing"),
        ({"speed": [1]}, "unknown key"),
    ],
)
def test_a_network_that_makes_no_sense(tmp_path: Path, changes: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        wires(read_network(tmp_path, **changes), [])


@pytest.mark.parametrize("content", ["", "- 1", "{", "a: [", "\x00"])
def test_a_file_that_is_no_network(tmp_path: Path, content: str) -> None:
    (tmp_path / "odd.yml").write_text(content)
    with pytest.raises(InputError, match=r"odd\.yml"):
        network.read(tmp_path / "odd.yml")
    (tmp_path / "odd.json").write_text(content)
    with pytest.raises(InputError, match=r"odd\.json"):
        system.read(tmp_path / "odd.json")


def test_no_file(tmp_path: Path) -> None:
    for read in (network.read, system.read):
        with pytest.raises(InputError, match="cannot be read"):
            read(tmp_path / "none")


@pytest.mark.parametrize("topologies", [("Ring",), ("Switch",), ("FullyConnected", "Ring"), ("Ring", "Switch", "Ring")])
def test_routes_are_shortest(topologies: tuple[str, ...]) -> None:
    """ASTRA-sim's ways are as short as the System's own routes between NPUs that differ in one dimension, and never
    leave a dimension in which both are the same."""
    built = AstraNetwork("n", tuple(dimension(name, 4 + at, 50, 100 + at) for at, name in enumerate(topologies)))
    made = built.system()
    pairs = [(a, b) for line in built.line(0).tolist()[:2] for a in line for b in line if a != b]
    found = wires(built, pairs)
    for row, pair in enumerate(pairs):
        own = found.routes[row].tolist()
        assert made.edge_source[own[0]] == pair[0]
        assert made.edge_target[own[-1]] == pair[1]
        assert np.array_equal(made.edge_target[own[:-1]], made.edge_source[own[1:]])
        shortest = Router(made).route(*pair)
        assert len(own) == len(shortest)
        assert found.latency[row] == round(sum(made.latency[edge] for edge in shortest) * 1e12)


def test_a_ring_goes_the_shorter_way_and_upwards_where_both_are_as_long() -> None:
    ring = AstraNetwork("n", (dimension("Ring", 6, 1, 1),))
    assert ring.route(0, 2, {}) == [0, 1, 2]
    assert ring.route(0, 4, {}) == [0, 5, 4]
    assert ring.route(0, 3, {}) == [0, 1, 2, 3]
    assert ring.route(3, 0, {}) == [3, 4, 5, 0]


def test_a_way_through_two_dimensions() -> None:
    grid = AstraNetwork("n", (dimension("FullyConnected", 3, 1, 1), dimension("Ring", 4, 1, 1)))
    assert grid.route(0, 2 + 3 * 2, {}) == [0, 2, 5, 8]


def test_a_system_file(tmp_path: Path) -> None:
    found = read_system(tmp_path, peak_perf=900, all_to_all_implementation=["direct3"])
    assert (found.splits, found.active, found.costs.endpoint_ns) == (4, 2, 10)
    assert found.choices["all_to_all"] == (system.DimensionAlgorithm("direct", 3),)
    assert found.choices["all_reduce"] == (system.DimensionAlgorithm("ring"),)
    assert found.local_bandwidth_aware
    assert found.costs.reduction_ns(32768) == 27
    assert any("boost-mode" in note for note in found.notes)
    assert any("scheduling-policy" in note for note in found.notes)


def test_an_implementation_that_takes_all_dimensions_as_one(tmp_path: Path) -> None:
    found = read_system(tmp_path, all_reduce_implementation=["oneHalvingDoubling"])
    assert found.flat["all_reduce"]
    assert found.choices["all_reduce"] == (system.DimensionAlgorithm("halving-doubling"),)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scheduling_policy": "RANDOM"}, "scheduling-policy"),
        ({"preferred_dataset_splits": 0}, "preferred-dataset-splits must be a whole number from 1 to"),
        ({"active_chunks_per_dimension": 1.5}, "active-chunks-per-dimension must be"),
        ({"preferred_dataset_splits": 10**9}, "preferred-dataset-splits must be"),
        ({"local_mem_bw": 10**400}, "local-mem-bw: is too large"),
        ({"endpoint_delay": -1}, "endpoint-delay must be"),
        ({"local_mem_bw": 0}, "local-mem-bw is 0"),
        ({"local_mem_bw": "fast"}, "local-mem-bw must be a number"),
        ({"model_shared_bus": 1}, "model-shared-bus 1"),
        ({"roofline_enabled": 1}, "needs peak-perf"),
        ({"roofline_enabled": 7}, "must be 0 or 1"),
        ({"collective_optimization": "best"}, "collective-optimization"),
        ({"all_reduce_implementation": ["doubleBinaryTree"]}, "doubleBinaryTree is not supported"),
        ({"all_reduce_implementation": ["spiral"]}, "spiral"),
        ({"all_reduce_implementation": ["direct0"]}, "window of 0"),
        ({"all_reduce_implementation": ["ring", "oneRing"]}, "name it alone"),
        ({"all_reduce_implementation": 3}, "must be a list of names"),
        ({"all_reduce_implementation_custom": ["x"]}, "custom collectives"),
        ({"endpoint_dealy": 3}, "did you mean endpoint-delay"),
    ],
)
def test_a_system_file_that_makes_no_sense(tmp_path: Path, changes: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_system(tmp_path, **changes)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "must look like"),
        ("{", "broken JSON"),
        ('{"1": [0, 9]}', "names rank 9"),
        ('{"1": [0, 0]}', "twice"),
        ('{"1": "all"}', "must be a list"),
        ('{"1": [true]}', "must be a list"),
    ],
)
def test_groups_that_make_no_sense(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "groups.json").write_text(content)
    with pytest.raises(InputError, match=words):
        groups.read(tmp_path / "groups.json", 4)


def test_groups(tmp_path: Path) -> None:
    (tmp_path / "groups.json").write_text('{"1": [2, 0], "2": []}')
    assert groups.read(tmp_path / "groups.json", 3) == {"1": (2, 0), "2": (0, 1, 2)}
