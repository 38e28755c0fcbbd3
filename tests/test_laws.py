"""Laws of a prediction: what must hold exactly, whatever the numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.asked import asked
from tests.exploring import examples
from tests.traces import chain
from triosim import Fidelity, Plan
from triosim.hardware.stragglers import parse_stragglers, slowed

FREE = {"operator_times": "proportional", "host": "none"}


def _time(trace, devices: int, link: str = "inf", **plan) -> float:
    system = triosim.system(devices=devices, link=link)
    return triosim.simulate(trace, system, *asked(**{**FREE, **plan})).iteration_time_s


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("stages", [1, 2, 4, 8])
@pytest.mark.parametrize("parts", [1, 2, 4, 8, 16, 64])
def test_a_uniform_pipeline_takes_its_bubble_and_no_more(schedule: str, stages: int, parts: int) -> None:
    """(m + p - 1) / m of the ideal, exactly (Huang et al. 2019, section 2.3)."""
    trace = chain(layers=8)
    found = _time(trace, stages, pp=stages, micro_batches=parts, schedule=schedule)
    assert round(found * 1e12) * parts * stages == round(trace.device_time() * 1e12) * (parts + stages - 1)


@pytest.mark.parametrize("style", ["megatron", "gather"])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_tensor_parallel_divides_what_is_divided(style: str, size: int) -> None:
    trace = chain(layers=8)
    assert round(_time(trace, size, tp=size, tp_style=style) * 1e12) * size == round(trace.device_time() * 1e12)


@settings(max_examples=examples(25))
@given(layers=st.integers(2, 6), parts=st.sampled_from([1, 2, 4]), dp=st.integers(1, 3), data=st.data())
def test_overlapped_data_parallel_lies_between_its_bounds(layers: int, parts: int, dp: int, data) -> None:
    """No faster than the longer of computing and communicating, no slower than both after one another."""
    trace = chain(layers=layers, optimizer_s=1e-3)
    link = data.draw(st.sampled_from(["10MB/s", "100MB/s", "1GB/s", "inf"]))
    system = triosim.system(devices=dp, link=link, topology=data.draw(st.sampled_from(["ring", "switch", "full"])))
    on = triosim.simulate(trace, system, *asked(dp=dp, micro_batches=parts, **FREE))
    off = triosim.simulate(trace, system, *asked(dp=dp, micro_batches=parts, overlap=False, **FREE))
    compute, talk = off.breakdown_s.compute, off.breakdown_s.communication
    assert off.iteration_time_s == pytest.approx(compute + talk, abs=1e-12)
    assert max(compute, talk) - 1e-9 <= on.iteration_time_s <= compute + on.breakdown_s.communication + 1e-9


@settings(max_examples=examples(20))
@given(st.permutations(range(4)), st.sampled_from([(4, 1, 1), (2, 2, 1), (1, 2, 2), (2, 1, 2)]))
def test_relabelling_devices_changes_nothing(order: list[int], mesh: tuple[int, int, int]) -> None:
    """On a switch, where every route is unique, any device may play any part."""
    from tests.network.test_lowering import Plain, written
    from tests.partition.divided import mesh_of
    from triosim.engine.play import play
    from triosim.network.device_assignment import assign_devices
    from triosim.network.lowering import lower
    from triosim.network.routes import Router

    dp, tp, pp = mesh
    jobs = written(Plan(dp=dp, tp=tp, pp=pp, micro_batches=2))
    system = triosim.system(devices=4, link="1GB/s", latency="5us")

    plain, moved = (
        play(*_graph(lower(jobs, assign_devices(mesh_of(dp, tp, pp), 4, devices), Router(system), Plain(), fold=False)))
        for devices in (None, order)
    )
    assert np.array_equal(plain.finish, moved.finish)


def _graph(lowered):
    return lowered.graph, lowered.wires


@settings(max_examples=examples(30))
@given(st.integers(2, 4), st.integers(1, 3), st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 9))
def test_faster_operators_never_make_an_uncontended_run_longer(pp: int, parts: int, schedule: str, slower: int) -> None:
    slow = chain(layers=6, batch=12, forward_s=slower * 1e-3)
    fast = chain(layers=6, batch=12, forward_s=1e-3)
    parts = {1: 1, 2: 2, 3: 3}[parts]
    stages = tuple(f"layer{i}" for i in range(1, pp))
    how = {"pp": pp, "micro_batches": parts, "schedule": schedule, "stages": stages}
    assert _time(fast, pp, "1GB/s", **how) <= _time(slow, pp, "1GB/s", **how)


@pytest.mark.parametrize(
    "plan", [{"dp": 4}, {"tp": 4}, {"pp": 4, "micro_batches": 4}, {"dp": 2, "tp": 2}, {"tp": 2, "pp": 2}], ids=str
)
def test_a_breakdown_adds_up_and_no_stream_runs_two_things(plan: dict) -> None:
    result = triosim.simulate(
        chain(layers=8, optimizer_s=1e-3), triosim.system(devices=4, link="100MB/s", latency="2us"), *asked(**plan)
    )
    parts = result.breakdown_s
    whole = parts.compute + parts.exposed_communication + parts.host + parts.idle
    assert whole == pytest.approx(result.iteration_time_s, rel=1e-12)
    assert 0 < result.active_time_s <= result.iteration_time_s * (1 + 1e-12)
    slices = result.timeline.slices
    for rank in set(slices.rank.tolist()):
        for stream in set(slices.stream[slices.rank == rank].tolist()) - {-1}:
            mine = (slices.rank == rank) & (slices.stream == stream)
            start, end = slices.start[mine], slices.end[mine]
            assert np.all(start[1:] >= end[:-1] - 1e-15)


@pytest.mark.parametrize("iterations", [1, 3])
def test_iterations_repeat(iterations: int) -> None:
    trace = chain(layers=4, optimizer_s=1e-3)
    system = triosim.system(devices=2, link="100MB/s")
    one = triosim.simulate(trace, system, Plan(dp=2, overlap=False))
    several = triosim.simulate(trace, system, Plan(dp=2, overlap=False, iterations=iterations))
    assert several.iteration_time_s == pytest.approx(one.iteration_time_s, rel=1e-12)
    assert [c.count for c in several.collectives] == [c.count for c in one.collectives]
    assert [c.seconds for c in several.collectives] == pytest.approx([c.seconds for c in one.collectives])
    assert several.plan.iterations == iterations


RULES: list[dict[str, Any]] = [
    {"dp": 8},
    {"dp": 8, "zero": 3},
    {"dp": 4, "tp": 2, "parallelism": ("sequence",), "zero": 1},
    {"parallelism": ("context",), "parallelism_options": {"cp": 4, "cp_style": "usp", "cp_ulysses": 2}},
    {"parallelism": ("experts",), "parallelism_options": {"ep": 4}},
    {"parallelism": ("experts",), "parallelism_options": {"ep": 8, "dispatch": "deepep", "near": 4}},
    {"tp": 2, "parallelism": ("sequence", "experts"), "parallelism_options": {"ep": 8, "etp": 1}, "zero": 1},
    {"dp": 4, "pp": 2, "micro_batches": 4, "schedule_options": {"combined": True}, "parallelism": ("experts",),
     "parallelism_options": {"ep": 4}},
    {"parallelism": ("diloco",), "parallelism_options": {"workers": 2, "every": 4}},
    {"zero": 3, "parallelism": ("zeropp",), "parallelism_options": {"near": 4}},
]  # fmt: skip


def _experts(link: str, **plan: Any) -> triosim.Result:
    """A small mixture of experts on eight devices of a switch."""
    sizes = {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
             "num_key_value_heads": 4, "vocab_size": 512}  # fmt: skip
    trace = triosim.model("mixtral-8x7b", sequence_length=128, configuration=sizes)
    system = triosim.system(device="H100", devices=8, link=link)
    fidelity = Fidelity(host="none", interference=1.0)
    return triosim.simulate(trace, system, Plan(**{"batch_size": 8, **plan}), fidelity, fit=False)


@pytest.mark.parametrize("plan", RULES)
def test_more_bandwidth_is_never_slower_where_nothing_contends(plan: dict[str, Any]) -> None:
    times = [_experts(link, **plan).iteration_time_s for link in ("5GB/s", "20GB/s", "100GB/s", "400GB/s")]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


@pytest.mark.parametrize(
    ("of_one", "without"),
    [
        ({"parallelism": ("context",), "parallelism_options": {"cp": 1}}, {}),
        ({"parallelism": ("experts",), "parallelism_options": {"ep": 1}, "zero": 1}, {"zero": 1}),
        ({"tp": 2, "parallelism": ("experts",), "parallelism_options": {"ep": 2, "etp": 2}},
         {"tp": 2, "parallelism": ("experts",), "parallelism_options": {"ep": 2}}),
        ({"pp": 2, "micro_batches": 4, "schedule": "interleaved-1f1b", "schedule_options": {"chunks": 1}},
         {"pp": 2, "micro_batches": 4}),
        ({"parallelism": ("diloco",), "parallelism_options": {"workers": 1}}, {}),
        ({"parallelism": ("hsdp",), "parallelism_options": {"dp_replicate": 1}, "zero": 3}, {"zero": 3}),
        ({"zero": 3, "parallelism": ("prefetch",), "parallelism_options": {"forward": 0, "backward": 1}}, {"zero": 3}),
    ],
)  # fmt: skip
def test_one_of_something_is_as_without(of_one: dict[str, Any], without: dict[str, Any]) -> None:
    one, plain = _experts("50GB/s", **of_one), _experts("50GB/s", **without)
    assert one.memory.allocated_bytes == plain.memory.allocated_bytes
    sums = [sum(row.bytes * row.count for row in result.collectives) for result in (one, plain)]
    assert sums[0] == sums[1]
    if "experts" not in of_one.get("parallelism", ()) or "tp" in of_one:  # experts have buckets of their own
        assert one.iteration_time_s == plain.iteration_time_s


@pytest.mark.parametrize("plan", [{"pp": 2, "micro_batches": 4}, {"tp": 2}, {"zero": 3}])
def test_devices_that_are_no_slower_are_the_same_to_the_picosecond(plan: dict[str, Any]) -> None:
    trace = triosim.model("gpt2", sequence_length=64, configuration={"n_layer": 4})
    system = triosim.system(device="A100", devices=4, link="50GB/s")
    even = slowed(system, parse_stragglers(["1=1.0", "2-3=1.0"]))
    results = [triosim.simulate(trace, one, Plan(batch_size=4, **plan), fit=False) for one in (system, even)]
    assert results[0].iteration_time_s == results[1].iteration_time_s
    assert results[0].breakdown_s == results[1].breakdown_s
