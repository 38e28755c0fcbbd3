"""Collectives beside products: how long both take, what is moved, and in which order."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.exploring import examples
from triosim import Fidelity, Plan, PlanError
from triosim.partition.partition import partition
from triosim.partition.resolve import JobMesh, completed, rules_of
from triosim.partition.step import Step
from triosim.partition.transfers import ALL_GATHER, BESIDE_WEIGHTS, REDUCE_SCATTER
from triosim.schedule.actions import SCHEDULES
from triosim.schedule.backward import of_weights
from triosim.schedule.costs import ScheduleCosts
from triosim.schedule.job import programs
from triosim.schedule.program import COMPUTE, ENGINES, Op, Program
from triosim.schedule.stages import split
from triosim.trace.tables import Phase

STYLES = ("torch", "megatron")


def _plan(tp: int, style: str, **plan: Any) -> Plan:
    how = ("sequence", "async-tp") if style else ("sequence",)
    options = {"overlap_style": style} if style else {}
    return Plan(tp=tp, parallelism=how, parallelism_options=options, **plan)


@lru_cache(None)
def _step(tp: int, style: str, layers: int = 2) -> tuple[Step, JobMesh, Plan]:
    trace = triosim.model("llama-3-8b", batch_size=1, sequence_length=64, configuration={"num_hidden_layers": layers})
    plan = _plan(tp, style)
    rules = rules_of(plan, False)
    mesh = JobMesh((("pp", 1), ("dp", 1), ("tp", tp)), tp, batch_size=1, micro_batches=1)
    return completed(rules, partition(trace, mesh, rules), mesh), mesh, plan


def _program(tp: int, style: str, seconds: dict[int, float], copy: float = 0.0) -> tuple[Step, Program]:
    """One iteration in which only some operators take time."""
    step, mesh, plan = _step(tp, style)
    took = np.zeros(len(step.trace))
    took[list(seconds)] = list(seconds.values())
    stages = split(step.trace, took, 1)
    costs = ScheduleCosts(took, copy_s_per_byte=copy)
    return step, programs(step, costs, stages, SCHEDULES.get("1f1b")(), plan, mesh)[0]


def _played(program: Program, moves: dict[tuple[int, int], float]) -> list[tuple[float, float]]:
    """When each instruction begins and ends: streams in order; ``moves`` are seconds of collectives by operator and
    kind, the others take none."""
    free, spans = Counter[int](), list[tuple[float, float]]()
    for row in range(len(program)):
        op, stream = int(program.op[row]), int(program.stream[row])
        took = float(program.seconds[row]) if op == Op.COMPUTE else 0.0
        if op == Op.COLLECTIVE:
            took = moves.get((int(program.operator[row]), int(program.what[row])), 0.0)
        begin = max([free[stream], *(spans[before][1] for before in program.before[row].tolist())])
        spans.append((begin, begin + took))
        free[stream] = begin + took
    return spans


def _layer(step: Step, name: str, phase: Phase) -> list[int]:
    """Products of the first layer's module."""
    operators, paths = step.trace.operators, step.trace.modules.path
    return [
        row for row in range(len(step.trace))
        if operators.phase[row] == phase and operators.name[row] == "aten::mm" and operators.module[row] >= 0
        and paths[operators.module[row]].endswith(f"layers.0.{name}")
    ]  # fmt: skip


@given(st.sampled_from([2, 4, 8]), st.integers(1, 100), st.integers(1, 100), st.integers(0, 100))
@settings(max_examples=examples(40))
def test_what_is_gathered_arrives_beside_the_products_that_read_it(n: int, gate: int, up: int, move: int) -> None:
    """``c + (n - 1) max(c, t)``, ``c`` a piece of both products and ``t`` a part on the way."""
    step, _, _ = _step(n, "torch")
    first, second = (_layer(step, f"mlp.{name}_proj", Phase.FORWARD)[0] for name in ("gate", "up"))
    gather = next(
        k for k in range(len(step.transfers))
        if step.transfers.before[k] == first and step.transfers.what[k] == ALL_GATHER
    )  # fmt: skip
    _, program = _program(n, "torch", {first: gate, second: up})
    spans = _played(program, {(int(step.transfers.after[gather]), ALL_GATHER): move})
    piece, part = (gate + up) / n, move / (n - 1)
    assert spans[-1][1] == pytest.approx(piece + (n - 1) * max(piece, part))


@given(st.sampled_from([2, 4, 8]), st.integers(1, 100), st.integers(0, 100), st.sampled_from(STYLES))
@settings(max_examples=examples(40))
def test_what_is_scattered_leaves_beside_the_product_that_makes_it(n: int, down: int, move: int, style: str) -> None:
    """The same; of Megatron-LM's with four pieces, and four parts of a kernel that also adds them up."""
    step, _, _ = _step(n, style)
    row = _layer(step, "mlp.down_proj", Phase.FORWARD)[0]
    _, program = _program(n, style, {row: down})
    spans = _played(program, {(row, REDUCE_SCATTER): move})
    pieces = n if style == "torch" else 4
    assert spans[-1][1] == pytest.approx(down / pieces + max(down * (pieces - 1) / pieces, move))


def test_copies_take_the_memory_of_the_device() -> None:
    """Beside torch's: a rank puts its part where others find it, and adds up what was brought: of a buffer of B bytes
    on n ranks B / n is read and written before, B + B / n after."""
    step, _, _ = _step(4, "torch")
    row = _layer(step, "mlp.down_proj", Phase.FORWARD)[0]
    size = int(step.transfers.bytes[(step.transfers.after == row).argmax()])
    _, program = _program(4, "torch", {}, copy=1e-9)
    copies = (program.op == Op.COMPUTE) & (program.what == REDUCE_SCATTER) & (program.operator == row)
    assert program.seconds[copies].tolist() == [pytest.approx((size + size / 4) / 2 * 1e-9)]
    first = _layer(step, "mlp.gate_proj", Phase.FORWARD)[0]
    gather = int(((step.transfers.before == first) & (step.transfers.what == ALL_GATHER)).argmax())
    copies = (program.op == Op.COMPUTE) & (program.what == ALL_GATHER)
    copies &= program.operator == step.transfers.after[gather]
    assert program.seconds[copies].tolist() == [pytest.approx(size / 4 * 1e-9)]


@pytest.mark.parametrize("style", STYLES)
def test_the_same_is_computed_and_moved(style: str) -> None:
    """Pieces of an operator take as long as it does; kinds, bytes and axes are those without."""
    step, plain = _step(4, style)[0], _step(4, "")[0]
    took = dict.fromkeys(range(len(step.trace)), 1e-6)
    made = {which: _program(4, which, took)[1] for which in (style, "")}
    spent = {
        which: np.bincount(p.operator[(p.op == Op.COMPUTE)], p.seconds[p.op == Op.COMPUTE], len(step.trace))
        for which, p in made.items()
    }
    np.testing.assert_allclose(spent[style], spent[""])
    moved = [Counter(zip(s.transfers.what.tolist(), s.transfers.bytes.tolist(), strict=True)) for s in (step, plain)]
    assert moved[0] == moved[1]


@pytest.mark.parametrize(
    ("style", "gathers", "scatters", "beside"), [("torch", 2 * 4 + 1, 2 * 2, 0), ("megatron", 2 * 4, 2 * 2, 2 * 2)]
)
def test_which_are_beside_products(style: str, gathers: int, scatters: int, beside: int) -> None:
    """Of two blocks: inputs of queries and of gate, gradients of the outputs of the last products of both parts; what
    these make in the forward.  Torch has the input of the last product too; a sum of several products it
    leaves as it is, which Megatron-LM scatters beside gradients of weights."""
    sent = _step(4, style)[0].transfers
    pieces = Counter(zip(sent.what.tolist(), (sent.pieces > 1).tolist(), strict=True))
    assert pieces[ALL_GATHER, True] == gathers
    assert pieces[REDUCE_SCATTER, True] == scatters
    assert int((sent.pieces == BESIDE_WEIGHTS).sum()) == beside
    engines = sent.copied.sum()
    assert engines == (gathers + scatters if style == "torch" else gathers)


@pytest.mark.parametrize("style", STYLES)
def test_gradients_of_weights_come_after_what_works_on_pieces(style: str) -> None:
    step, program = _program(4, style, dict.fromkeys(range(len(_step(4, style)[0].trace)), 1e-6))
    weights = of_weights(step.homes)
    at = {int(operator): row for row, operator in enumerate(program.operator.tolist()) if program.op[row] == Op.COMPUTE}
    for name in ("mlp.down_proj", "self_attn.o_proj"):
        own = _layer(step, name, Phase.BACKWARD)
        of_weight, of_input = next(r for r in own if r in weights), next(r for r in own if r not in weights)
        assert of_weight < of_input
        assert at[of_input] < at[of_weight]
    for row in (_layer(step, f"mlp.{name}_proj", Phase.BACKWARD) for name in ("gate", "up")):
        of_weight, of_input = next(r for r in row if r in weights), next(r for r in row if r not in weights)
        assert (at[of_input] < at[of_weight]) == (style == "megatron")


def test_copy_engines_hold_no_multiprocessors() -> None:
    step, program = _program(4, "torch", dict.fromkeys(range(len(_step(4, "torch")[0].trace)), 1e-6))
    moves = program.op == Op.COLLECTIVE
    assert int((moves & ~program.holding).sum()) == int(step.transfers.copied.sum()) > 0
    assert (program.stream[moves & ~program.holding] == ENGINES).all()
    assert not (program.stream[moves] == COMPUTE).any()


def _seconds(style: str, link: str, **plan: Any) -> float:
    trace = triosim.model("llama-3-8b", batch_size=1, sequence_length=512, configuration={"num_hidden_layers": 2})
    asked = _plan(4, style, **plan)
    system = triosim.system(device="H100", devices=4 * asked.pp * (asked.dp or 1), link=link)
    fidelity = Fidelity(operator_times="roofline", host="none", interference="off")
    return triosim.simulate(trace, system, asked, fidelity).iteration_time_s


@pytest.mark.parametrize("link", ["20GB/s", "100GB/s", "450GB/s"])
@pytest.mark.parametrize("style", STYLES)
def test_it_saves_time_where_there_is_some_to_save(style: str, link: str) -> None:
    assert _seconds(style, link) < _seconds("", link)


@pytest.mark.parametrize("style", STYLES)
def test_it_goes_with_the_others(style: str) -> None:
    """ZeRO-3, a pipeline, recomputation and a split backward; where nothing overlaps it changes nothing."""
    assert _seconds(style, "100GB/s", dp=2, zero=3) < _seconds("", "100GB/s", dp=2, zero=3)
    assert _seconds(style, "100GB/s", recompute="full") < _seconds("", "100GB/s", recompute="full")
    more = {"pp": 2, "micro_batches": 4, "batch_size": 4}
    for schedule in ("1f1b", "zb-h1"):
        assert _seconds(style, "100GB/s", schedule=schedule, **more) < _seconds(
            "", "100GB/s", schedule=schedule, **more
        )
    assert _seconds(style, "100GB/s", overlap=False) == pytest.approx(_seconds("", "100GB/s", overlap=False), rel=0.02)


def test_without_sequence_parallelism_it_is_refused() -> None:
    trace = triosim.model("llama-3-8b", batch_size=1, sequence_length=64, configuration={"num_hidden_layers": 2})
    system = triosim.system(device="H100", devices=4, link="100GB/s")
    with pytest.raises(PlanError, match="give --sequence-parallel before it"):
        triosim.simulate(trace, system, Plan(tp=4, parallelism=("async-tp",)))
    alone = triosim.simulate(
        trace, triosim.system(device="H100", devices=1, link="100GB/s"), Plan(parallelism=("sequence", "async-tp"))
    )
    assert any("tp is 1, so there is nothing to divide" in warning for warning in alone.warnings)
