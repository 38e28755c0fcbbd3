"""A prediction is a monotone and continuous function of every bandwidth, latency and size that a file can state.

A figure that changes by a factor changes the time by no more than that factor, and never the wrong way: as if all
figures had changed so.  Where several transfers meet on a link, which of them comes first decides about up to
:data:`CONTENTION` of the time; where none do, only rounding remains.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import triosim
from tests.asked import asked
from tests.exploring import examples
from tests.traces import chain
from triosim import Fidelity, Plan
from triosim.hardware.cluster import cluster
from triosim.hardware.description import SystemFile
from triosim.network.sharing import network_model
from triosim.prediction.playing import lowered_job, settled
from triosim.prediction.prepare import prepare
from triosim.trace.tables import Trace

CONTENTION = 0.1
"""Three percent is the most that some ten thousand machines showed."""
ROUNDING = 1e-5
"""Whole bytes of parts, whole picoseconds of steps."""

FACTORS = st.sampled_from([1 + 1e-4, 1.001, 1.02, 1.3, 3.0])


def seconds(trace: Trace, table: dict[str, Any], nodes: int, plan: Plan, models: Fidelity) -> float:
    """An iteration on the machine that a file with this table describes."""
    system = cluster(SystemFile.model_validate(table), "file", "machine", nodes)
    job = prepare(trace, system, plan, models)
    model = network_model(models.solver, models.solver_options)
    lowered, _ = lowered_job(job, models.fold)
    played, *_ = settled([(job, lowered)], lowered.graph, lowered.wires, model)
    return int(played.finish.max()) / 1e12


def changed(table: dict[str, Any], place: tuple, factor: float) -> dict[str, Any]:
    """The table with one figure multiplied."""
    if not place:
        more = table * factor  # type: ignore[operator]
        return round(more) if table.is_integer() else more  # type: ignore[attr-defined]
    head, *rest = place
    if isinstance(table, list):
        return [changed(v, rest, factor) if i == head else v for i, v in enumerate(table)]  # type: ignore[return-value]
    return {**table, head: changed(table[head], tuple(rest), factor)}


def check(
    trace: Trace, table: dict[str, Any], nodes: int, how: dict[str, Any], place: tuple, factor: float, noise: float
) -> None:
    """One figure times a factor."""
    plan = asked(host="none", interference="off", **how)
    at = seconds(trace, table, nodes, *plan)
    more = seconds(trace, changed(table, place, factor), nodes, *plan)
    long, short = (more, at) if place[-1] in ("latency", "overhead") else (at, more)
    assert short <= long * (1 + noise), (place, at, more)
    assert long <= short * factor * (1 + noise), (place, at, more)


BANDWIDTH = st.floats(1e9, 1e12)
LATENCY = st.floats(1e-7, 1e-4)


@st.composite
def links(draw: st.DrawFn, names: list[str]) -> dict[str, Any]:
    """What a table may say of a link: a name, figures, or a name with other figures."""
    table: dict[str, Any] = {}
    if draw(st.booleans()):
        table["link"] = draw(st.sampled_from(names))
    if "link" not in table or draw(st.booleans()):
        table["bandwidth"] = draw(BANDWIDTH)
    for key in ("latency", "overhead"):
        if draw(st.booleans()):
            table[key] = draw(LATENCY)
    return table


@st.composite
def machines(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """A file and a number of nodes."""
    count = draw(st.sampled_from([2, 4, 8]))
    topology = draw(st.sampled_from(["switch", "full", "ring", "mesh", "torus", "tree", "fat-tree", "pcie"]))
    table: dict[str, Any] = {"devices": {"model": draw(st.sampled_from(["H100", "A100", "MI300X"])), "count": count}}
    table["scale_up"] = {"topology": topology, **draw(links(["NVLink4", "NVLink3", "PCIe5x16", "xGMI-MI300"]))}
    table["host"] = {"cpu": "EPYC-7763", **draw(links(["PCIe5x16", "PCIe4x16"]))}
    out = draw(links(["InfiniBand-NDR", "RoCEv2-400G", "TCP-100G", "Slingshot-11", "WAN-100G"]))
    shape = draw(st.sampled_from(["switch", "fat-tree", "leaf-spine", "rail-optimised", "ring"]))
    table["scale_out"] = {"topology": shape, "nics": draw(st.sampled_from([1, 2, count])), **out}
    return table, draw(st.sampled_from([1, 2, 3, 4, 9]))


def figures(table: Any, place: tuple = ()) -> list[tuple]:
    """Places of all figures in a table."""
    if isinstance(table, dict):
        return [p for key, value in table.items() for p in figures(value, (*place, key))]
    if isinstance(table, list):
        return [p for key, value in enumerate(table) for p in figures(value, (*place, key))]
    return [place] if isinstance(table, float) else []


PLANS = st.sampled_from(
    [{}, {"tp": 2}, {"pp": 2, "micro_batches": 2}, {"zero": 3}, {"overlap": False}, {"offload": ("optimizer",)}]
)


def step(width: int) -> Trace:
    """A step whose transfers last about as long as its operators."""
    return chain(layers=4, width=2**width, optimizer_s=1e-4, forward_s=1e-5, backward_s=2e-5)


@settings(max_examples=examples(40))
@given(machines(), PLANS, FACTORS, st.integers(4, 11), st.data())
def test_time_is_continuous_in_what_a_file_says_of_links(
    machine: tuple[dict[str, Any], int], how: dict[str, Any], factor: float, width: int, data: st.DataObject
) -> None:
    table, nodes = machine
    places = figures(table)
    assume(places)
    check(step(width), table, nodes, how, data.draw(st.sampled_from(places)), factor, CONTENTION)


@settings(max_examples=examples(40))
@given(
    links(["NVLink4", "PCIe5x16", "xGMI-MI300"]), links(["InfiniBand-NDR", "RoCEv2-400G", "TCP-100G", "WAN-100G"]),
    st.sampled_from([2, 4, 8]), st.sampled_from([1, 2, 4, 9]), st.booleans(), FACTORS, st.integers(4, 11), st.data(),
)  # fmt: skip
def test_where_nothing_meets_on_a_link_it_is_exact(
    up: dict[str, Any], out: dict[str, Any], count: int, nodes: int, zero: bool, factor: float, width: int,
    data: st.DataObject,
) -> None:  # fmt: skip
    table = {
        "devices": {"model": "H100", "count": count},
        "scale_up": {"topology": "switch", **up},
        "scale_out": {"nics": count, **out},
    }
    places = figures(table)
    assume(places)
    how: dict[str, Any] = {"overlap": False, "zero": 3 if zero else 0}
    check(step(width), table, nodes, how, data.draw(st.sampled_from(places)), factor, ROUNDING)


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Any]:
    """A server written out: a ring of devices, a switch beside it, and links across."""
    count = draw(st.integers(2, 6))
    ends = [(i, (i + 1) % count) for i in range(count if count > 2 else 1)]
    ends += draw(st.lists(st.sampled_from([(i, j) for i in range(count) for j in range(i)]), max_size=4))
    names = [(f"gpu{a}", f"gpu{b}") for a, b in ends]
    table: dict[str, Any] = {"device": [{"name": "gpu", "count": count, "model": "A100"}]}
    if draw(st.booleans()):
        table["switch"] = [{"name": "x"}]
        names += [(f"gpu{i}", "x") for i in range(count)]
    table["link"] = []
    for a, b in names:
        entry = draw(links(["NVLink3"]))
        table["link"].append({"from": a, "to": b, **({"links": 1} if "link" in entry else {}), **entry})
    return table


@settings(max_examples=examples(20))
@given(graphs(), st.sampled_from([{}, {"pp": 2, "micro_batches": 2}, {"overlap": False}]), FACTORS, st.data())
def test_time_is_continuous_in_the_links_of_a_graph(
    table: dict[str, Any], how: dict[str, Any], factor: float, data: st.DataObject
) -> None:
    places = figures(table)
    assume(places and table["device"][0]["count"] % how.get("pp", 1) == 0)
    check(step(9), table, 1, how, data.draw(st.sampled_from(places)), factor, CONTENTION)


@st.composite
def devices(draw: st.DrawFn) -> dict[str, Any]:
    """A device that does not exist, with or without one to start from."""
    table: dict[str, Any] = {"name": "X", "link_bandwidth": draw(st.floats(1e10, 1e12))}
    if draw(st.booleans()):
        table["like"] = draw(st.sampled_from(["H100", "A100", "V100", "MI300X", "B200"]))
    if "like" not in table or draw(st.booleans()):
        table["peak_flops"] = {"bf16": draw(st.floats(1e13, 3e15)), "fp32": draw(st.floats(1e12, 3e14))}
        table["memory_bandwidth"] = draw(st.floats(1e11, 1e13))
        table["memory"] = draw(st.floats(1e10, 3e11).map(round).map(float))
        table["cache"] = draw(st.floats(1e6, 3e8).map(round).map(float))
    return table


@functools.cache
def model() -> Trace:
    return triosim.model("gpt2", configuration={"n_layer": 2}, sequence_length=256, batch_size=2)


@settings(max_examples=examples(20))
@given(devices(), st.sampled_from(["switch", "full", "ring"]), st.integers(2, 8), FACTORS, st.data())
def test_time_is_continuous_in_what_a_file_says_of_a_device(
    device: dict[str, Any], topology: str, count: int, factor: float, data: st.DataObject
) -> None:
    table = {"devices": {"model": device, "count": count}, "scale_up": {"topology": topology}}
    place = data.draw(st.sampled_from(figures(table)))
    check(model(), table, 1, {}, place, factor, CONTENTION)


@pytest.mark.parametrize("bandwidth", ["400 Gb/s", "428.4 Gb/s", "428.6 Gb/s", "450 Gb/s"])
def test_every_nic_is_used_whatever_the_link_is_called(bandwidth: str) -> None:
    """The name of the narrowest link decided: below that of PCIe an unnamed NIC made one NIC of eight."""
    table: dict[str, Any] = {
        "devices": {"model": "H100", "count": 8},
        "scale_up": {"topology": "switch", "link": "NVLink4"},
        "scale_out": {"nics": 8, "link": "InfiniBand-NDR"},
    }
    plan = asked(host="none", interference="off", zero=3)
    named = seconds(step(11), table, 4, *plan)
    table["scale_out"] = {"nics": 8, "bandwidth": bandwidth}
    assert seconds(step(11), table, 4, *plan) == pytest.approx(named, rel=0.15)
