"""A pipeline cut anywhere: what crosses, and what each part exchanges for itself."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.exploring import examples
from triosim import Fidelity, Plan
from triosim.partition.gradients import gradients
from triosim.partition.partition import partition
from triosim.partition.resolve import JobMesh, arranged, rules_of
from triosim.partition.step import Step
from triosim.partition.transfers import ALL_GATHER, COLLECTIVES, REDUCE_SCATTER
from triosim.schedule.actions import SCHEDULES
from triosim.schedule.costs import ScheduleCosts
from triosim.schedule.job import programs
from triosim.schedule.program import Op, Program
from triosim.schedule.redistribution import redistribution
from triosim.schedule.stages import Stages, cut, split
from triosim.trace.tables import Phase, Trace

RULES = {
    "megatron": {},
    "sequence": {"parallelism": ("sequence",)},
    "sequence-kept": {"parallelism": ("sequence",), "parallelism_options": {"regather": "off"}},
    "gather": {"tp_style": "gather"},
    "context": {"parallelism": ("context", "sequence"), "parallelism_options": {"cp": 2}},
}
MODELS = {"llama-3-8b": "num_hidden_layers", "gpt2": "n_layer"}


def _plan(rules: str, **plan: object) -> Plan:
    return Plan(tp=2, dp=2, **RULES[rules], **plan)  # type: ignore[arg-type]


@lru_cache(None)
def _step(model: str, rules: str) -> tuple[Step, list[int]]:
    trace = triosim.model(model, batch_size=2, sequence_length=64, configuration={MODELS[model]: 2})
    plan = _plan(rules)
    own = rules_of(plan, False)
    mesh = arranged(own, JobMesh((("pp", 1), ("dp", 2), ("tp", 2)), 4, batch_size=2, micro_batches=1))
    step = partition(trace, mesh, own)
    for rule in own:
        step = rule.completed(step, mesh)
    return step, np.flatnonzero(step.trace.operators.phase == Phase.FORWARD).tolist()


def _cut(model: str, rules: str, places: set[int]) -> tuple[Step, Stages, list[Program]]:
    """Stages that begin at some of the forward operators, and the programs of one micro-batch."""
    step = _step(model, rules)[0]
    whole = split(step.trace, np.zeros(len(step.trace)), 1)
    stages = cut(step.trace, sorted(places), step.homes) if places else whole
    plan, count = _plan(rules, pp=len(places) + 1), len(places) + 1
    size = 4 * count
    mesh = arranged(
        rules_of(plan, False),
        JobMesh((("pp", count), ("dp", 2), ("tp", 2)), size, batch_size=2, micro_batches=1),
    )
    costs = ScheduleCosts(np.full(len(step.trace), 1e-6))
    return step, stages, programs(step, costs, stages, SCHEDULES.get("1f1b")(), plan, mesh)


def _moved(made: list[Program], trace: Trace) -> list[Counter[tuple[str, int, int]]]:
    """Kind, axis and bytes of what each stage exchanges within the step."""
    return [
        Counter(
            (COLLECTIVES[p.what[row]], int(p.axis[row]), int(p.bytes[row]))
            for row in p.rows(Op.COLLECTIVE).tolist()
            if p.operator[row] >= 0 and trace.operators.phase[p.operator[row]] != Phase.OPTIMIZER
        )
        for p in made
    ]


CUTS = st.tuples(
    st.sampled_from(list(MODELS)), st.sampled_from(list(RULES)), st.sets(st.floats(0, 1), min_size=1, max_size=3)
)


def _places(model: str, rules: str, shares: set[float]) -> set[int]:
    step, forward = _step(model, rules)
    view = step.trace.operators.view
    real = [at for at, row in enumerate(forward) if at and not view[row]]
    return {real[min(int(share * len(real)), len(real) - 1)] for share in shares}


@settings(max_examples=examples(60))
@given(CUTS)
def test_a_part_has_made_whatever_it_reads(which: tuple[str, str, set[float]]) -> None:
    """Each copy that a part reads it has gathered itself, once, before the first operator that reads it."""
    model, rules, shares = which
    step, stages, _ = _cut(model, rules, _places(model, rules, shares))
    sent = redistribution(step, stages.of).transfers
    trace, own = step.trace, len(step.homes.values)
    storage, above = trace.values.storage, int(step.homes.values.storage.max())
    written = {int(storage[v]) for row in range(len(trace)) for v in trace.operators.outputs[row].tolist()}
    first: dict[tuple[int, int], tuple[int, int]] = {}
    for row in range(len(trace)):
        for value in trace.operators.inputs[row].tolist() if stages.of[row] >= 0 else ():
            if value >= own and storage[value] > above and int(storage[value]) not in written:
                first.setdefault((int(stages.of[row]), int(storage[value])), (row, value))
    made = Counter[tuple[int, int]]()
    for before, value in zip(sent.before.tolist(), sent.value.tolist(), strict=True):
        for read in trace.operators.inputs[before].tolist() if before < len(trace) else ():
            origin = read
            while origin >= own and origin != value:
                origin = step.origin[origin - own]
            if origin == value and read >= own:
                made[before, int(storage[read])] += 1
    for (_, of), (row, _) in first.items():
        assert made[row, of] >= 1


@settings(max_examples=examples(60))
@given(CUTS)
def test_bytes_are_those_of_the_whole_and_of_what_several_parts_share(which: tuple[str, str, set[float]]) -> None:
    """What each transfer of the step moves is moved once by every part that reads what it gathers, or has a summand of
    what it scatters; all else is moved once in all."""
    model, rules, shares = which
    step, stages, made = _cut(model, rules, _places(model, rules, shares))
    _, _, whole = _cut(model, rules, set())
    per_part, alone = _moved(made, step.trace), _moved(whole, step.trace)[0]
    together = sum(per_part, Counter[tuple[str, int, int]]())
    more = together - alone
    again = redistribution(step, stages.of).transfers
    added = range(len(step.transfers), len(again))
    expected = Counter((COLLECTIVES[again.what[n]], int(again.axis[n]), int(again.bytes[n])) for n in added)
    reduced_at_end = Counter({key: n for key, n in alone.items() if key[0] == "all_reduce"})  # in other buckets
    assert not alone - together - reduced_at_end
    assert Counter({key: n for key, n in more.items() if key[0] != "all_reduce"}) == expected
    if rules == "megatron":
        assert not expected


@settings(max_examples=examples(60))
@given(CUTS)
def test_gradients_come_back_as_values_went(which: tuple[str, str, set[float]]) -> None:
    """The same bytes both ways, after what scatters them."""
    model, rules, shares = which
    step, stages, made = _cut(model, rules, _places(model, rules, shares))
    size = step.homes.values.bytes()
    whole = step.homes.values
    sent = Counter[tuple[int, int, int]]()
    for program in made:
        for row in program.rows(Op.SEND).tolist():
            sent[program.stage, int(program.peer[row]), int(program.bytes[row])] += 1
    for boundary in stages.boundaries:
        of = [v for v in range(len(whole)) if whole.storage[v] == boundary.storage]
        assert boundary.bytes in {int(size[v]) for v in of}
        sent[boundary.source, boundary.target, boundary.bytes] -= 1
        if boundary.returned >= 0:
            sent[boundary.target, boundary.source, boundary.bytes] -= 1
    for gradient in gradients(step.trace):  # tied tables are exchanged too
        users = stages.parameters[gradient.parameter]
        sent.subtract((here, there, gradient.bytes) for here in users for there in users if here != there)
    assert not any(sent.values())


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("rules", RULES)
def test_between_blocks_nothing_is_exchanged_again(model: str, rules: str) -> None:
    step, forward = _step(model, rules)
    paths, modules = step.trace.modules.path, step.trace.operators.module
    of_second = [at for at, row in enumerate(forward) if modules[row] >= 0 and ".1" in paths[modules[row]]]
    stages = cut(step.trace, [of_second[0]], step.homes)
    assert len(redistribution(step, stages.of).transfers) == len(step.transfers)


def _collectives(**plan: object) -> Counter[tuple[str, str]]:
    trace = triosim.model("llama-3-8b", batch_size=1, sequence_length=64, configuration={"num_hidden_layers": 2})
    tp = Plan(tp=2, parallelism=("sequence",), micro_batches=1, **plan)  # type: ignore[arg-type]
    system = triosim.system(device="H100", devices=tp.tp * tp.pp, link="100GB/s")
    result = triosim.simulate(trace, system, tp, Fidelity(operator_times="roofline"))
    found = Counter[tuple[str, str]]()
    for row in result.collectives:
        found[row.axis, row.kind] += row.count
    return found


def test_a_stage_that_begins_between_gate_and_up_gathers_and_scatters_as_both_did() -> None:
    """The input of the second is gathered there too, forward and backward, and its gradient scattered before it is
    sent."""
    whole, between = _collectives(), _collectives(pp=2, stages=("model.layers.0.mlp.up_proj",))
    assert between["tp", "all_gather"] == whole["tp", "all_gather"] + 2
    assert between["tp", "reduce_scatter"] == whole["tp", "reduce_scatter"] + 1
    assert between["tp", "all_reduce"] == whole["tp", "all_reduce"]


def test_the_gradient_is_scattered_before_it_is_sent() -> None:
    step, forward = _step("llama-3-8b", "sequence")
    rows = [r for r in forward if step.trace.operators.name[r] == "aten::mm"]
    up = next(
        r for r in rows if step.trace.modules.path[step.trace.operators.module[r]].endswith("layers.0.mlp.up_proj")
    )
    step, stages, made = _cut("llama-3-8b", "sequence", {forward.index(up)})
    sent = redistribution(step, stages.of)
    scatter = next(n for n in range(len(step.transfers), len(sent.transfers)) if sent.transfers.what[n] != ALL_GATHER)
    last = made[1]
    moved = [
        row for row in last.rows(Op.COLLECTIVE).tolist()
        if last.what[row] == REDUCE_SCATTER and last.operator[row] == sent.transfers.after[scatter]
    ]  # fmt: skip
    waits = [row for row in last.rows(Op.SEND).tolist() if set(moved) & set(last.before[row].tolist())]
    assert len(moved) == 1 <= len(waits)
    assert {int(last.bytes[row]) * 2 for row in waits} == {int(last.bytes[moved[0]])}
