"""The limit of memory: what it is, what is refused before it is begun, and what is done although it is large."""

from __future__ import annotations

import resource
from collections.abc import Callable

import pytest

import triosim
from tests.asked import asked
from tests.effort import calls
from triosim.collectives.pattern import exchange, rounds
from triosim.core.errors import InputError
from triosim.core.limits import (
    MOST_TASKS,
    TASK_BYTES,
    check_memory,
    check_tasks,
    limit_bytes,
    machine_bytes,
    memory_limit,
    set_memory_limit,
)
from triosim.hardware.build import flat
from triosim.hardware.system import Link
from triosim.hardware.topology import TOPOLOGIES, builder, parse_shape

GIB = 2**30


def test_the_limit_is_half_of_the_machine() -> None:
    assert 0 < limit_bytes() == machine_bytes() // 2


def test_what_is_above_the_limit_is_refused_with_a_suggestion() -> None:
    with memory_limit(1000):
        check_memory(1000, "this")
        with pytest.raises(InputError, match=r"this would take about 1001 B .* 1000 B: use less, or .*--max-memory"):
            check_memory(1001, "this", "use less")
    assert limit_bytes() == machine_bytes() // 2


def test_a_limit_stays_until_it_is_set_again() -> None:
    with memory_limit(1000):
        set_memory_limit(7)
        assert limit_bytes() == 7
        for wrong in (0, -1):
            with pytest.raises(InputError, match="at least 1 byte"):
                set_memory_limit(wrong)
        assert limit_bytes() == 7
    assert limit_bytes() == machine_bytes() // 2


def test_tasks_have_numbers_of_32_bits_however_much_memory_there_is() -> None:
    with memory_limit(2**60):
        check_tasks(MOST_TASKS - 1, "this", "use less")
        with pytest.raises(InputError, match=r"2,147,483,648 can be numbered: use less"):
            check_tasks(MOST_TASKS, "this", "use less")


def test_copies_of_a_row_take_less_than_rows() -> None:
    with memory_limit(1000 * TASK_BYTES):
        check_tasks(1000, "this", "use less")
        check_tasks(1900, "this", "use less", rows=10)
        for tasks, rows in ((1001, None), (1900, 200), (2000, 10)):
            with pytest.raises(InputError, match="this would take"):
                check_tasks(tasks, "this", "use less", rows)


def job(devices: int, topology: str = "switch", **plan: object) -> Callable[[], object]:
    """A prediction for GPT-2 on devices of one kind."""
    system = flat("H100", devices, topology) if topology == "switch" else None

    def run() -> object:
        return triosim.simulate(triosim.model("gpt2"), system or flat("H100", devices, topology), *asked(**plan))  # type: ignore[arg-type]

    return run


TOO_LARGE = {
    "iterations": (job(1, iterations=10**6), "1,000,000 iterations would take .*use fewer iterations"),
    "more iterations than numbers": (job(1, iterations=10**12), "would take .*use fewer iterations"),
    "micro-batches": (job(1, micro_batches=10**6), "1,000,000 micro-batches would take .*use fewer micro-batches"),
    "micro-batches of stages": (job(8, pp=2, micro_batches=10**6), "1,000,000 micro-batches would take"),
    "both": (job(1, iterations=3000, micro_batches=3000), "3,000 iterations of 3,000 micro-batches would take"),
    "a mesh": (job(10**6, "mesh"), "1,000,000 devices on topology mesh would take .*a switch"),
    **{
        f"{name} of {shape or 'a million'}": (
            lambda name=name, shape=shape, options=options: flat("H100", 10**6, name, shape=shape, options=options),
            f"1,000,000 devices on topology {name}( of {shape})? would take .*use fewer devices",
        )
        for name, shape, options in (
            ("mesh", "100x100x100", None),
            ("torus", None, None),
            ("tree", None, None),
            ("double-ring", None, None),
            ("wafer", None, None),
            ("pcie", None, None),
            ("pcie", "1000000x1x1", None),
            ("fat-tree", "2x500000", None),
            ("leaf-spine", "2x500000", None),
            ("leaf-spine", None, {"leaf": 7}),
            ("leaf-spine", None, {"spines": 10**6}),
            ("rail-optimised", None, {"group": 7}),
            ("dragonfly", "1000000x1x1", None),
            ("dragonfly", "1x1000000x1", None),
        )
    },
    "nodes": (lambda: triosim.system("dgx-h100", nodes=500_000), "must be from 1 to 1,000,000, got 4,000,000"),
    "ranks that are not folded": (job(131_072, fold=False), "131,072 ranks that are played one by one would take"),
    "layers": (
        lambda: triosim.model("llama-3-8b", configuration={"num_hidden_layers": 10**8}),
        "a model of so many layers would take .*use fewer layers",
    ),
    "layers of a stage": (
        lambda: triosim.model("resnet50", configuration={"layers": [10**8, 1, 1, 1]}),
        "100000003 layers of layers would take .*use fewer layers",
    ),
    "layers that read each other": (
        lambda: triosim.model("densenet121", configuration={"block_config": [1, 5000]}),
        "dense blocks of .1, 5000. layers would take .*use fewer layers",
    ),
    "everybody to everybody": (lambda: exchange(10**6, 1), "an all-to-all of 1,000,000 members would take"),
    "everybody in turn": (lambda: rounds(10**6, 1), "an all-to-all of 1,000,000 members would take"),
}


@pytest.mark.parametrize(("run", "message"), TOO_LARGE.values(), ids=TOO_LARGE)
def test_what_is_too_large_is_refused_before_it_is_begun(run: Callable[[], object], message: str) -> None:
    def refused() -> None:
        with memory_limit(8 * GIB), pytest.raises(InputError, match=message):
            run()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert calls(refused) < 20_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GIB // 1024


@pytest.mark.parametrize("run", [job(1, iterations=200), job(1, micro_batches=200)], ids=["iterations", "parts"])
def test_the_limit_can_be_raised_and_lowered(run: Callable[[], object]) -> None:
    with memory_limit(10 * 2**20), pytest.raises(InputError, match="200"):
        run()
    with memory_limit(2**40):
        run()


PLAYED = {
    ("switch", 131_072): 1, ("ring", 131_072): 1, ("rail-optimised", 131_072): 1, ("fat-tree", 1000): 40,
    ("fat-tree", 16_000): 128, ("fat-tree", 131_072): 512, ("leaf-spine", 4000): 80, ("leaf-spine", 131_072): 512,
    ("dragonfly", 4000): 50, ("dragonfly", 16_000): 128, ("dragonfly", 131_072): 512, ("double-ring", 1000): 1000,
    ("wafer", 1000): 1000, ("torus", 1000): 1000,
}  # fmt: skip
"""Ranks that are played one by one when GPT-2 is trained on so many devices: the tasks that train tells, by 854."""


@pytest.mark.parametrize(("name", "devices"), PLAYED)
def test_places_are_those_that_are_played(name: str, devices: int) -> None:
    assert builder(name).size(devices).places == PLAYED[name, devices]


LINKS = {
    "switch": (64, None), "ring": (64, None), "full": (16, None), "double-ring": (16, None), "fat-tree": (64, None),
    "fat-tree in three levels": (64, "4x4x4"), "leaf-spine": (64, None), "leaf-spine of one": (64, "1x64"),
    "rail-optimised": (64, None), "rail-optimised in groups": (64, "2x4"), "dragonfly": (72, None), "mesh": (16, None),
    "torus": (16, None), "torus in three": (27, "3x3x3"), "tree": (16, None), "wafer": (15, None), "pcie": (16, None),
    "hybrid-cube-mesh": (8, None),
}  # fmt: skip
"""Topologies (the first word), devices and shapes."""


@pytest.mark.parametrize("case", LINKS)
def test_links_are_counted_before_they_are_built(case: str) -> None:
    (devices, shape), name = LINKS[case], case.split()[0]
    made, sides = builder(name), parse_shape(shape) if shape else None
    built = len(made.build(devices, Link(1e9), sides).edges) / 2
    assert 0.5 * built <= made.size(devices, sides).links <= 2 * built


def test_no_topology_is_left_out() -> None:
    assert {case.split()[0] for case in LINKS} == set(TOPOLOGIES.names())


def test_nodes_are_refused_before_they_are_copied() -> None:
    with (
        memory_limit(GIB),
        pytest.raises(InputError, match=r"nodes of 8 devices would take about .*fewer nodes"),
    ):
        triosim.system("dgx-h100", nodes=100_000)


def test_a_flat_switch_of_131072_devices_simply_works() -> None:
    few, many = (triosim.simulate(triosim.model("gpt2"), flat("H100", n)) for n in (8192, 131_072))
    assert many.simulation.tasks == few.simulation.tasks
    assert float(many.throughput.samples_per_s or 0) > 15 * float(few.throughput.samples_per_s or 0) > 0
