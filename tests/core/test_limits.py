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
    check_memory,
    check_tasks,
    limit_bytes,
    machine_bytes,
    memory_limit,
    set_memory_limit,
)
from triosim.hardware.build import flat

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
    "a mesh": (job(10**6, "mesh"), "1,000,000 devices on a mesh of 1000x1000 would take .*a switch"),
    "a torus": (job(10**6, "torus"), "1,000,000 devices on a torus of 1000x1000 would take"),
    "a tree": (job(10**6, "tree"), "1,000,000 devices on a tree would take .*a switch"),
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


def test_a_flat_switch_of_131072_devices_simply_works() -> None:
    few, many = (triosim.simulate(triosim.model("gpt2"), flat("H100", n)) for n in (8192, 131_072))
    assert many.simulation.tasks == few.simulation.tasks
    assert float(many.throughput.samples_per_s or 0) > 15 * float(few.throughput.samples_per_s or 0) > 0
