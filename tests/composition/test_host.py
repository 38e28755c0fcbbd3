"""The host: what launching costs, and when it binds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.asked import asked
from tests.exploring import examples
from tests.traces import chain
from triosim import Fidelity, InputError, Plan, composition
from triosim.composition.host import (
    crowding,
    default_mode,
    further_kernels,
    host,
    issue_seconds,
    kernel_by_kernel,
    launched_one_by_one,
)
from triosim.hardware import catalog
from triosim.kernels.physical.stream import shortest_kernel_s
from triosim.operators import canonical
from triosim.transform.quantization import quantized

ONE = {"devices": 1}
DELAY, GAP, GRAPH_GAP = 2e-6, 1.2e-6, 1e-6
"""Launch delay and gaps between kernels where a trace shows none, as in ``host.json``."""


def _with_host_times(trace, seconds: float):
    return replace(trace, operators=replace(trace.operators, host_s=np.full(len(trace), seconds)))


def _time(trace, **plan) -> float:
    return triosim.simulate(trace, triosim.system(**ONE), *asked(**plan)).iteration_time_s


def test_long_kernels_hide_the_host() -> None:
    trace = chain(layers=4, forward_s=1e-3, backward_s=1e-3)
    assert _time(trace, host="eager") == pytest.approx(20e-6 + DELAY + trace.device_time() + 7 * GAP)


def test_short_kernels_wait_for_the_host() -> None:
    trace = chain(layers=4, forward_s=1e-6, backward_s=1e-6)
    result = triosim.simulate(trace, triosim.system(**ONE), fidelity=Fidelity(host="eager"))
    assert result.iteration_time_s == pytest.approx(8 * 20e-6 + DELAY + 1e-6)
    assert result.breakdown_s.host == pytest.approx(result.iteration_time_s - 8e-6)
    assert result.breakdown_s.compute == pytest.approx(8e-6)
    assert result.devices[0].host_cpu_s == pytest.approx(8 * 20e-6 + DELAY)


def test_a_graph_is_launched_once_an_iteration() -> None:
    trace = chain(layers=4, forward_s=1e-6, backward_s=1e-6)
    assert _time(trace, host="graph") == pytest.approx(10e-6 + DELAY + 8e-6 + 7 * GRAPH_GAP)
    every = 10e-6 + DELAY + 3 * (8e-6 + 8 * GRAPH_GAP) - GRAPH_GAP
    assert _time(trace, host="graph", iterations=3) == pytest.approx(every / 3)


def test_recorded_host_times_are_used_as_they_are() -> None:
    trace = _with_host_times(chain(layers=4, forward_s=1e-6, backward_s=1e-6), 5e-6)
    assert _time(trace, host="recorded") == pytest.approx(8 * 5e-6 + DELAY + 1e-6)


H100, A100, TPU, EPYC = (catalog.accelerator(name) for name in ("H100", "A100", "TPU-v4", "EPYC-7763"))


def test_the_default_follows_the_target() -> None:
    """The same answer for whatever has no times of such a device: by name, without hardware, on a CPU, imported."""
    measured, named = chain(), triosim.model("vgg11")
    for trace, recorded_on in ((named, None), (measured, EPYC), (measured, A100)):
        assert default_mode(trace, [H100], recorded_on).mode == "eager"
        assert default_mode(trace, [H100, A100], recorded_on).mode == "eager"
        assert default_mode(trace, [TPU], recorded_on).mode == "graph"
        assert default_mode(trace, [EPYC], recorded_on).mode == "none"


def test_a_sum_of_measured_kernels_stays_that_sum() -> None:
    found = default_mode(chain(), [H100], H100)
    assert found.mode == "none"
    assert "device times of H100-SXM5-80GB and no host times" in found.why
    result = triosim.simulate(chain(), triosim.system(device="A100"), Plan())
    assert result.iteration_time_s == pytest.approx(chain().device_time()), "what names no device is of the system's"
    assert any("no host times (--host eager adds it)" in source for source in result.sources)


def test_recorded_host_times_hold_on_devices_of_the_same_kind() -> None:
    trace = _with_host_times(chain(), 1e-6)
    assert default_mode(trace, [H100], H100).mode == "recorded"
    assert default_mode(trace, [H100], A100).mode == "recorded", "the host is the same, whatever GPU it drives"
    assert default_mode(trace, [TPU], A100).mode == "graph"
    assert default_mode(trace, [TPU], TPU).mode == "recorded"
    on_a_cpu = replace(trace, meta=replace(trace.meta, clock="cpu"))
    assert default_mode(on_a_cpu, [EPYC], EPYC).mode == "none"
    assert default_mode(on_a_cpu, [H100], EPYC).mode == "eager"
    assert "no host times of a GPU" in default_mode(on_a_cpu, [H100], EPYC).why


def test_recorded_without_host_times_is_refused() -> None:
    with pytest.raises(InputError, match="has no host times; use eager"):
        host(chain(), "recorded")


def test_an_operator_that_the_host_waits_for_holds_up_the_next_launch() -> None:
    trace = chain(layers=4, forward_s=100e-6, backward_s=0.0)
    sync = trace.operators.sync.copy()
    sync[1] = True
    waiting = replace(trace, operators=replace(trace.operators, sync=sync))
    assert _time(trace, host="eager") == pytest.approx(20e-6 + DELAY + 4 * 100e-6 + 3 * GAP + 4 * 20e-6, rel=0.2)
    extra = _time(waiting, host="eager") - _time(trace, host="eager")
    assert extra == pytest.approx(20e-6 + DELAY)  # and the gap is over before


def test_views_cost_the_host_but_not_the_device() -> None:
    trace = _with_host_times(chain(layers=4, forward_s=1e-6, backward_s=1e-6), 5e-6)
    view = trace.operators.view.copy()
    view[1] = True
    seconds = trace.operators.device_s.copy()
    seconds[1] = 0.0
    trace = replace(trace, operators=replace(trace.operators, view=view, device_s=seconds))
    assert _time(trace, host="recorded") == pytest.approx(8 * 5e-6 + DELAY + 1e-6)


def test_sources_say_what_the_host_rests_on() -> None:
    result = triosim.simulate(chain(), triosim.system(**ONE), fidelity=Fidelity(host="large-model"))
    assert any("55 us per launch" in s and "Megatron-LM" in s for s in result.sources)
    result = triosim.simulate(chain(), triosim.system(**ONE), Plan())
    assert any("launching is left out" in s for s in result.sources)


def test_launch_delay_and_gap_are_those_that_the_trace_shows() -> None:
    trace = _with_host_times(chain(layers=4, forward_s=100e-6, backward_s=100e-6), 5e-6)
    shown = replace(trace, meta=replace(trace.meta, launch_delay_s=7e-6, kernel_gap_s=3e-6))
    assert _time(shown, host="recorded") == pytest.approx(5e-6 + 7e-6 + 8 * 100e-6 + 7 * 3e-6)
    assert "7 us of launch delay, 3 us between kernels" in host(shown, "recorded").source


def test_gaps_are_neither_computation_nor_part_of_what_an_operator_takes() -> None:
    result = triosim.simulate(chain(layers=4), triosim.system(**ONE), fidelity=Fidelity(host="eager"))
    assert result.breakdown_s.compute == pytest.approx(chain(layers=4).device_time())
    assert sum(row.compute_s for row in result.layers) == pytest.approx(chain(layers=4).device_time())


def test_one_host_launches_for_all_devices_of_data_parallel() -> None:
    """torch's ``DataParallel`` is one process: what it issues for one device it issues for each in turn."""
    trace, two = triosim.model("vgg11", image_size=32), triosim.system(device="A100-SXM4-80GB", devices=2)
    own = triosim.simulate(trace, two, Plan(batch_size=1), Fidelity(host="eager"))
    shared = triosim.simulate(trace, two, Plan(batch_size=1, dp_style="dataparallel"), Fidelity(host="eager"))
    alone = triosim.simulate(trace, triosim.system(device="A100-SXM4-80GB"), Plan(batch_size=1), Fidelity(host="eager"))
    assert own.devices[0].host_cpu_s == pytest.approx(alone.devices[0].host_cpu_s, rel=0.1)
    assert shared.devices[0].host_cpu_s == pytest.approx(2 * alone.devices[0].host_cpu_s, rel=0.1)


def test_processes_share_the_cores_of_their_server(tmp_path) -> None:
    assert crowding(8, None) == crowding(8, 128) == 1
    assert crowding(8, 2) == 4
    trace = chain(layers=4, forward_s=1e-6, backward_s=1e-6)
    took = []
    for cores in (4, 2, 1):
        file = tmp_path / f"{cores}.toml"
        file.write_text(
            f'[devices]\nmodel = "A100-SXM4-80GB"\ncount = 4\n[scale_up]\ntopology = "switch"\nlink = "NVLink3"\n'
            f'[host]\nlink = "PCIe4x16"\ncores = {cores}\n'
        )
        eager = Fidelity(host="eager", operator_times="recorded")
        took.append(triosim.simulate(trace, triosim.system(file), Plan(dp=4), eager).devices[0].host_cpu_s)
    assert took[1] == pytest.approx(2 * took[0] - DELAY)
    assert took[2] == pytest.approx(4 * took[0] - 3 * DELAY)
    file.write_text(file.read_text().replace("cores = 1", "cores = 0"))
    with pytest.raises(InputError, match="cores"):
        triosim.system(file)


@settings(max_examples=examples(30))
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50), st.booleans()), min_size=1, max_size=12))
def test_a_chain_starts_when_host_stream_and_waits_allow(rows) -> None:
    """The playback is the recurrence: start = max(issued + delay, end before + gap)."""
    issue, seconds, sync = (np.array(c) for c in zip(*rows, strict=True))
    issue, seconds = (issue + 1) * 1e-6, seconds * 1e-6
    one = chain(layers=len(rows))
    operators = one.operators
    device = np.concatenate([seconds, np.zeros(len(rows))])
    trace = replace(
        one,
        operators=replace(
            operators,
            device_s=device,
            host_s=np.concatenate([issue, np.zeros(len(rows))]),
            sync=np.concatenate([sync, np.zeros(len(rows), bool)]),
            view=np.arange(2 * len(rows)) >= len(rows),
        ),
    )
    now = issued = DELAY
    end = -np.inf
    for cost, length, waits in zip(issue, seconds, sync, strict=True):
        issued += cost
        end = max(issued, end + GAP) + length
        now = max(now, end)
        if waits:
            issued = max(issued, end + GAP + DELAY)
    assert _time(trace, host="recorded") == pytest.approx(now, abs=1e-9)


MIXTURE = {
    "hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1024, "num_experts": 16,
    "num_experts_per_tok": 2, "head_dim": 32,
}  # fmt: skip


def test_kernels_of_a_scan_are_launched_one_by_one() -> None:
    trace = triosim.model("mamba2-130m", sequence_length=256, configuration={"num_hidden_layers": 1})
    issue = host(trace, "eager").issue_s
    name = "mamba_ssm::split_conv1d_scan_combined"
    for row, kernels in ((trace.operators.name.index(name), 9), (trace.operators.name.index(f"{name}_backward"), 27)):
        assert issue[row] == pytest.approx(issue_seconds("eager") + (kernels - 1) * issue_seconds("compiled"))
    assert host(trace, "graph").issue_s.max() <= issue_seconds("eager")


@pytest.mark.parametrize("recipe", ["none", "mxfp8", "fp8-current"])
def test_experts_that_multiply_one_by_one_are_kernels_of_their_own(recipe: str) -> None:
    """15 kernels more for each of 6 products of a layer, 4 casts of rows, and for their maxima; none for weights."""
    trace = quantized(triosim.model("qwen3_moe", sequence_length=128, configuration=MIXTURE, fused=True), recipe)
    more = further_kernels(trace)
    names = [canonical(name)[0] for name in trace.operators.name]
    assert {names[row] for row in np.flatnonzero(more)} <= {"_grouped_mm", "quantize", "compute_amax"}
    assert set(more[more > 0].tolist()) == {15}
    products, casts = 2 * 6, 0 if recipe == "none" else 2 * 4
    assert np.count_nonzero(more) == products + casts * (2 if recipe == "fp8-current" else 1)
    assert np.count_nonzero(further_kernels(trace, casts=False)) == products
    assert not further_kernels(triosim.model("gpt2", sequence_length=64)).any()


def test_each_expert_costs_the_host_its_part_and_casts_the_device_a_kernel() -> None:
    """Products of experts lie on several streams, their casts one after the other on one."""
    trace = quantized(triosim.model("qwen3_moe", sequence_length=128, configuration=MIXTURE, fused=True), "mxfp8")
    more, usual = further_kernels(trace), host(trace, "large-model")
    each = json.loads((Path(composition.__file__).parent / "host.json").read_text())
    added = launched_one_by_one(usual, more).issue_s - usual.issue_s
    assert added == pytest.approx(more * each["expert_s"]["seconds"])
    for mode in ("none", "graph"):
        own = host(trace, mode)
        assert launched_one_by_one(own, more) is own
    device = kernel_by_kernel(np.zeros(len(trace)), trace, more)
    casts = np.array([canonical(name)[0] == "quantize" for name in trace.operators.name])
    shortest = shortest_kernel_s() + each["gap_s"]["seconds"]
    assert device == pytest.approx(np.where(casts, more, 0) * shortest)
