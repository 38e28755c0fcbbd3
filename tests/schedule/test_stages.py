"""Pipeline stages: where they are cut, who runs what, what crosses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.exploring import examples
from tests.traces import chain
from triosim import Fidelity, Plan, PlanError
from triosim.cli.workloads import load_workload
from triosim.prediction.priced_job import price_job
from triosim.prediction.staged_job import stage_job
from triosim.schedule.cutting import even_cuts
from triosim.schedule.stages import split
from triosim.trace.tables import Phase

ACTIVATION = 64 * 128 * 4


def _bottleneck(trace, stages) -> float:
    seconds = trace.operators.device_s
    return max(float(seconds[stages.of == s].sum()) for s in range(stages.count))


@settings(max_examples=examples(60))
@given(st.lists(st.integers(1, 40), min_size=4, max_size=9), st.integers(2, 4))
def test_the_slowest_stage_is_as_fast_as_any_cut_allows(times: list[int], count: int) -> None:
    """Against every possible cut."""
    from itertools import combinations

    trace = chain(layers=len(times), backward_s=0.0)
    seconds = np.zeros(len(trace))
    seconds[: len(times)] = times
    stages = split(trace, seconds, count)
    best = min(
        max(sum(times[a:b]) for a, b in zip((0, *cuts), (*cuts, len(times)), strict=True))
        for cuts in combinations(range(1, len(times)), count - 1)
    )
    found = max(float(seconds[stages.of == s].sum()) for s in range(count))
    assert found == pytest.approx(best)
    assert len(set(stages.of[: len(times)].tolist())) == count


@settings(max_examples=examples(80))
@given(st.data(), st.integers(4, 9), st.integers(2, 4))
def test_on_different_devices_too_the_slowest_stage_is_as_fast_as_any_cut_allows(data, layers: int, count: int) -> None:
    """Against every possible cut, with a time of each operator on each stage's own device."""
    from itertools import combinations

    times = np.array([data.draw(st.lists(st.integers(1, 40), min_size=layers, max_size=layers)) for _ in range(count)])
    trace = chain(layers=layers, backward_s=0.0)
    seconds = np.zeros((count, len(trace)))
    seconds[:, :layers] = times
    stages = split(trace, seconds, count)
    best = min(
        max(times[s, a:b].sum() for s, (a, b) in enumerate(zip((0, *cuts), (*cuts, layers), strict=True)))
        for cuts in combinations(range(1, layers), count - 1)
    )
    assert max(float(seconds[s, stages.of == s].sum()) for s in range(count)) == pytest.approx(best)
    assert len(set(stages.of[:layers].tolist())) == count


@settings(max_examples=examples(80))
@given(st.data(), st.integers(4, 9), st.integers(2, 4), st.booleans())
def test_a_stage_takes_as_long_as_its_device_or_its_host(data, layers: int, count: int, different: bool) -> None:
    """Against every possible cut; with many micro-batches the slowest device or host counts alone."""
    from itertools import combinations

    draws = st.lists(st.integers(1, 40), min_size=layers, max_size=layers)
    hosts = np.array(data.draw(draws))
    times = np.array([data.draw(draws) for _ in range(count)] if different else [data.draw(draws)] * count)
    trace = chain(layers=layers, backward_s=0.0)
    seconds, issue_s = np.zeros((count, len(trace))), np.zeros(len(trace))
    seconds[:, :layers], issue_s[:layers] = times, hosts

    def slowest(cuts: tuple[int, ...]) -> int:
        parts = zip(times, (0, *cuts), (*cuts, layers), strict=True)
        return max(max(own[a:b].sum(), hosts[a:b].sum()) for own, a, b in parts)

    stages = split(trace, seconds, count, issue_s=issue_s, turns=10**9)
    found = tuple(np.flatnonzero(np.diff(stages.of[:layers])) + 1)
    assert len(found) == count - 1
    assert slowest(found) == min(slowest(cuts) for cuts in combinations(range(1, layers), count - 1))


@pytest.mark.parametrize(("length", "faster"), [(128, 1.0), (1024, 0.95)])
def test_balanced_is_no_slower_than_even_whether_hosts_or_devices_bind(length: int, faster: float) -> None:
    """One sample of 128 tokens at once leaves devices waiting for hosts, to whom the head is next to nothing; of eight
    with 1,024 it takes as long as several layers."""
    trace = triosim.model("gpt2", sequence_length=length, batch_size=1 if length < 1024 else 8)
    took = {}
    for how in ("balanced", "even"):
        plan = Plan(pp=4, micro_batches=8, batch_size=8 * trace.meta.batch_size, stages=(how,))
        took[how] = triosim.simulate(trace, triosim.system("dgx-h100"), plan, fit=False).iteration_time_s
    assert took["balanced"] <= took["even"] * faster


def test_what_is_too_much_for_the_next_device_may_be_left_to_the_one_after_it() -> None:
    """Fast, slow, fast: the first stage could take both small layers, but then the slow one would get the large."""
    trace = chain(layers=3, backward_s=0.0)
    seconds = np.zeros((3, len(trace)))
    seconds[:, :3] = [[1, 1, 10], [10, 10, 100], [1, 1, 10]]
    assert split(trace, seconds, 3).of[:3].tolist() == [0, 1, 2]


def test_equal_rows_are_one_row() -> None:
    trace = chain(layers=7)
    seconds = trace.operators.device_s * np.linspace(1, 2, len(trace))
    one, three = split(trace, seconds, 3), split(trace, np.stack([seconds] * 3), 3)
    assert np.array_equal(one.of, three.of)


def test_pipelines_on_different_devices_are_balanced_by_the_time_on_each(tmp_path) -> None:
    """The H100 takes more layers than the A100, in either order, and the two take about as long."""
    file = tmp_path / "mixed.toml"
    file.write_text(
        '[[device]]\nname = "fast"\nmodel = "H100"\n[[device]]\nname = "slow"\nmodel = "A100"\n'
        '[[link]]\nfrom = "fast"\nto = "slow"\nbandwidth = "25 GB/s"\n'
    )
    trace, system = triosim.model("llama-3-8b", sequence_length=1024), triosim.system(file)
    for placement in ((0, 1), (1, 0)):
        plan, no_host = Plan(pp=2, micro_batches=2, placement=placement), Fidelity(host="none")
        result = triosim.simulate(trace, system, plan, no_host, fit=False)
        first, second = (row.compute_s for row in result.stages)
        assert first == pytest.approx(second, rel=0.25), "the optimizer is not balanced"
        even = plan.replaced(stages=("model.layers.16",))
        other = triosim.simulate(trace, system, even, no_host, fit=False)
        slow = max(row.compute_s for row in other.stages)
        assert max(first, second) < 0.8 * slow, "the A100 has fewer layers"
        assert result.iteration_time_s < 0.87 * other.iteration_time_s


@pytest.mark.parametrize(
    ("count", "how", "begins"),
    [
        (3, "even", [0, 4, 8]),
        (5, "even", [0, 3, 6, 8, 10]),  # twelve do not divide, nor do fourteen: the first stages have one more
        (7, "even", [0, 1, 3, 5, 7, 9, 11]),  # embedding and head count, as fourteen divide
        (12, "even", list(range(12))),
        (3, "even-with-ends", [0, 4, 9]),
        (14, "even-with-ends", [-1, *range(12), 12]),  # the embedding alone, and the head alone
    ],
)
def test_blocks_are_divided_evenly(count: int, how: str, begins: list[int]) -> None:
    block = np.repeat([-1, *range(12), -1], [2, *[3] * 12, 4])
    first = [0, *range(2, 38, 3), 38]  # of what comes before, of each block, and of what comes after them
    cuts = even_cuts(block, count, with_ends=how == "even-with-ends")
    assert cuts == [first[begin + 1] for begin in begins[1:]]
    assert even_cuts(block, 15, with_ends=True) is None


def test_a_model_is_cut_between_its_layers_and_nobody_sends_logits() -> None:
    """Of a small Llama the head takes longer than a layer: it was once cut between its product and the loss."""
    trace = load_workload("llama-3.2-1b", seq_len=512, training=True)
    system, plan = triosim.system("dgx-h100"), Plan(pp=8, schedule="interleaved-1f1b", micro_batches=8)
    sent = 512 * 2048 * 2
    for stages, layers in ((None, None), (("even",), 2)):
        cut = stage_job(price_job(trace, system, plan.replaced(stages=stages))).stages
        assert {b.bytes for b in cut.boundaries} == {sent}
        if layers:
            assert [int(first.split(".")[2]) for first in cut.firsts[1:]] == list(range(1, 16))
    megatron = plan.replaced(schedule="1f1b", stack=triosim.stacks.load("megatron-core"))
    other = stage_job(price_job(trace, system, megatron)).stages
    assert [int(first.split(".")[2]) for first in other.firsts[1:]] == [2, 4, 6, 8, 10, 12, 14]


def test_more_even_stages_than_blocks_are_refused_and_a_stacks_are_balanced() -> None:
    trace, system = load_workload("llama-3.2-1b", seq_len=512, training=True), triosim.system("dgx-h100", 3)
    plan = Plan(pp=24, micro_batches=24)
    with pytest.raises(PlanError, match=r"even needs a repeated block for each of 24 parts.* has 16"):
        stage_job(price_job(trace, system, plan.replaced(stages=("even",))))
    megatron = plan.replaced(stack=triosim.stacks.load("megatron-core"))
    assert stage_job(price_job(trace, system, megatron)).stages.count == 24


def test_backward_runs_where_forward_ran() -> None:
    trace = chain(layers=6)
    stages = split(trace, trace.operators.device_s, 3)
    forward = trace.operators.forward
    backward = np.flatnonzero(trace.operators.phase == Phase.BACKWARD)
    assert np.array_equal(stages.of[backward], stages.of[forward[backward]])


def test_boundary_tensors_go_to_the_next_stage_and_their_gradients_come_back() -> None:
    trace = chain(layers=4)
    stages = split(trace, trace.operators.device_s, 4)
    assert [(b.source, b.target, b.bytes) for b in stages.boundaries] == [(i, i + 1, ACTIVATION) for i in range(3)]
    assert all(b.returned >= 0 for b in stages.boundaries)


def test_skip_connections_are_sent_straight_to_where_they_are_read() -> None:
    trace = chain(layers=4, skips=((0, 3),))
    stages = split(trace, trace.operators.device_s, 4, begins=("layer1", "layer2", "layer3"))
    found = {(b.source, b.target) for b in stages.boundaries}
    assert found == {(0, 1), (1, 2), (2, 3), (0, 3)}
    plan = Plan(pp=4, micro_batches=2, stages=("layer1", "layer2", "layer3"))
    result = triosim.simulate(trace, triosim.system(devices=4, link="1GB/s"), plan)
    (row,) = [c for c in result.collectives if c.kind == "send"]
    assert (row.bytes, row.count) == (ACTIVATION // 2, 2 * 2 * 4)  # micro-batches x there and back x boundaries


def test_the_users_cuts_are_kept() -> None:
    trace = chain(layers=6)
    stages = split(trace, trace.operators.device_s, 3, begins=("layer1", "layer5"))
    assert stages.firsts == ("layer0", "layer1", "layer5")
    assert np.bincount(stages.of[:6]).tolist() == [1, 4, 1]


@pytest.mark.parametrize(
    ("begins", "words"),
    [(("layer9",), "no module 'layer9'"), (("layer3", "layer2"), "name the modules in running order")],
)
def test_cuts_that_make_no_sense_are_refused(begins: tuple[str, ...], words: str) -> None:
    trace = chain(layers=6)
    with pytest.raises(PlanError, match=words):
        split(trace, trace.operators.device_s, len(begins) + 1, begins=begins)


def test_more_stages_than_operators_are_refused() -> None:
    trace = chain(layers=3)
    with pytest.raises(PlanError, match="use pp 3 or less"):
        split(trace, trace.operators.device_s, 4)


def test_optimizer_work_is_shared_by_the_parameters_of_each_stage() -> None:
    trace = chain(layers=6, optimizer_s=6e-3)
    stages = split(trace, trace.operators.device_s, 2, begins=("layer2",))
    row = int(np.flatnonzero(trace.operators.phase == Phase.OPTIMIZER)[0])
    assert stages.share[row].tolist() == pytest.approx([2 / 6, 4 / 6])


def test_1f1b_holds_fewer_micro_batches_than_gpipe() -> None:
    trace = chain(layers=8, batch=8192)
    system = triosim.system(devices=4, link="inf")
    held = {
        name: triosim.simulate(trace, system, Plan(pp=4, micro_batches=16, schedule=name)).memory.categories[
            "activation"
        ]
        for name in ("gpipe", "1f1b")
    }
    assert held["1f1b"] < held["gpipe"] / 2


def test_what_crosses_is_read_where_it_arrives() -> None:
    """Quantized products share a copy: of views that stand where each had its own, nothing crosses."""
    shallow = {"num_layers": 4, "num_single_layers": 8}
    trace, machine = triosim.model("flux.1-dev", configuration=shallow), triosim.system("dgx-b200", 1)
    plan = Plan(pp=8, batch_size=8, recompute="mlp", quantize="mxfp8")
    made = stage_job(price_job(trace, machine, plan))
    operators, storage, of = made.step.trace.operators, made.step.trace.values.storage, made.stages.of
    row = operators.inputs.rows()
    read = set(zip(storage[operators.inputs.values].tolist(), of[row].tolist(), strict=True))
    runs = ~operators.view[row]
    needed = set(zip(storage[operators.inputs.values[runs]].tolist(), of[row[runs]].tolist(), strict=True))
    crossing = {(b.storage, b.target) for b in made.stages.boundaries}
    assert crossing <= needed < read
    assert triosim.simulate(trace, machine, plan).memory
