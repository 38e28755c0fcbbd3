"""Optimizers that need more of a parameter than a rank's part: Muon and Adafactor with ZeRO 2 and 3."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

import triosim
from tests.transform.test_blockwise import arranged, hidden, products
from triosim.core.errors import PlanError
from triosim.prediction.result import Result
from triosim.schedule.program import Op
from triosim.trace.tables import Category, Trace
from triosim.transform.optimizers import muon


@pytest.fixture(scope="module")
def step() -> Trace:
    return triosim.model("gpt2", batch_size=1, sequence_length=64)


def simulated(step: Trace, nodes: int = 1, **plan: Any) -> Result:
    return triosim.simulate(
        step, triosim.system("dgx-h100", nodes=nodes), triosim.Plan(optimizer="muon", idle_ok=True, **plan)
    )


def sent(result: Result, kind: str) -> Counter[int]:
    """Calls of a collective by their bytes."""
    return Counter({row.bytes: row.count for row in result.collectives if row.kind == kind})


def exchanged(shapes: list[list[int]], ranks: int) -> Counter[int]:
    """Two for as many matrices of a shape as there are ranks, each rank's buffer one of them in 16 bits."""
    calls: Counter[int] = Counter()
    for (rows, columns), count in Counter(map(tuple, shapes)).items():
        calls[-(-rows // ranks) * ranks * columns * 2] += 2 * -(-count // ranks)
    return calls


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("dp", [2, 8])
def test_matrices_are_brought_together(step: Trace, zero: int, dp: int) -> None:
    result = simulated(step, dp=dp, zero=zero)
    assert sent(result, "all_to_all") == exchanged(hidden(step), dp)
    assert not sent(result, "all_reduce")


def test_each_rank_multiplies_its_share(step: Trace) -> None:
    """One of eight of each shape, rounded up: 5 x 2 (2 n^2 m + n^3) FLOP for n x m (Jordan et al.)."""
    made = arranged(step, optimizer="muon", dp=8, zero=3)
    flop = made.step.trace.operators.flop
    slices = simulated(step, dp=8, zero=3).timeline.slices
    ran = slices.operator[(slices.rank == 0) & (slices.op == Op.COMPUTE)].tolist()
    within = {row for update in made.step.updates for row in update.rows[1]}
    assert len(made.step.updates) == len(hidden(step)) == 48
    of_eight = Counter(map(tuple, hidden(step)))
    most = sum(-(-count // 8) * _flop(*sorted(shape)) for shape, count in of_eight.items())
    assert sum(np.nan_to_num(flop[row]) for row in ran if row in within) == pytest.approx(most, rel=3e-3)


def _flop(n: int, m: int) -> int:
    return 5 * 2 * (2 * n * n * m + n**3)


def test_states_are_divided(step: Trace) -> None:
    """A hidden matrix keeps a master copy and a momentum, 8 bytes a parameter, the others 12; of each a rank's rows."""
    trace = arranged(step, optimizer="muon", dp=8, zero=3).step.trace
    values = trace.values
    kept = sum(
        math.prod(shape) for shape, category in zip(values.shape.lists(), values.category.tolist(), strict=True)
        if category == Category.OPTIMIZER_STATE
    )  # fmt: skip
    states = arranged(step, optimizer="muon", dp=8).step.trace.values
    whole = sum(
        math.prod(shape) for shape, category in zip(states.shape.lists(), states.category.tolist(), strict=True)
        if category == Category.OPTIMIZER_STATE
    )  # fmt: skip
    assert kept / whole == pytest.approx(1 / 8, rel=1e-3)


def test_shapes_between_exchanges(step: Trace) -> None:
    """Element by element on a rank's rows, products of whole matrices."""
    trace = arranged(step, optimizer="muon", dp=8, zero=3).step.trace
    shapes, operators = trace.values.shape.lists(), trace.operators
    for update in arranged(step, optimizer="muon", dp=8, zero=3).step.updates:
        whole = shapes[update.parameter]
        part = [whole[0] // 8, whole[1]]
        before, within, after = update.rows
        assert {tuple(shapes[v]) for row in before for v in operators.outputs[row].tolist()} == {tuple(part)}
        assert {tuple(shapes[v]) for row in after for v in operators.inputs[row].tolist()} == {tuple(part)}
        assert sorted(shapes[operators.outputs[within[-1]][0]]) == sorted(whole)


def test_stages_bring_together_their_own(step: Trace) -> None:
    """Half of the blocks are on each of two stages: six matrices of a shape among four ranks."""
    result = simulated(step, dp=4, pp=2, micro_batches=2, zero=2, stages=("transformer.h.6",))
    half = hidden(step)[: len(hidden(step)) // 2]
    assert sent(result, "all_to_all") == exchanged(half, 4) + exchanged(half, 4)


def test_groups_of_replicas_do_so_within(step: Trace) -> None:
    result = simulated(step, 2, dp=16, zero=3, parallelism=("hsdp",), parallelism_options={"dp-replicate": 2})
    rows = [row for row in result.collectives if row.kind == "all_to_all"]
    assert {row.group_size for row in rows} == {8}
    assert sent(result, "all_to_all") == exchanged(hidden(step), 8)


def test_parts_of_tensor_parallel_ranks_are_brought_together(step: Trace) -> None:
    """What a rank has along the tensor axis is taken for a matrix; its rows are those of several replicas."""
    result = simulated(step, dp=4, tp=2, zero=3)
    made = arranged(step, optimizer="muon", dp=4, tp=2)
    assert sent(result, "all_to_all") == exchanged(hidden(made.step.trace), 4)


def test_experts_that_ranks_share_are_whole_or_brought_together() -> None:
    """Ranks have whole matrices of a stack that is at least as long as they are many: nothing is sent of those."""
    small = {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512, "num_local_experts": 8}
    step = triosim.model("mixtral-8x7b", batch_size=1, sequence_length=64, configuration=small)
    flat = [shape for shape in hidden(step) if len(shape) == 2]
    assert sent(simulated(step, dp=8, zero=3), "all_to_all") == exchanged(flat, 8)
    products_of = products(arranged(step, optimizer="muon", dp=8, zero=3).step.trace)
    assert products_of["bmm"] == products(arranged(step, optimizer="muon", dp=8).step.trace)["bmm"] // 8
    apart = simulated(step, dp=8, zero=3, parallelism=("experts",), parallelism_options={"ep": 2})
    stacks = [shape for shape in hidden(step) if len(shape) == 3]
    assert {row.axis for row in apart.collectives if row.kind == "all_to_all"} > {"dp"}
    assert not set(exchanged([s[1:] for s in stacks], 4)) & set(sent(apart, "all_to_all"))


def test_adafactor_sums_over_rows(step: Trace) -> None:
    """Of a matrix two norms and a mean of one number and the squares of its columns, of a vector two norms."""
    result = triosim.simulate(step, triosim.system("dgx-h100"), triosim.Plan(optimizer="adafactor", dp=8, zero=3))
    shapes = [step.values.shape.lists()[weight] for weight in step.weights().tolist()]
    columns = Counter(4 * shape[1] for shape in shapes if len(shape) == 2)
    numbers = sum(3 if len(shape) == 2 else 2 for shape in shapes)
    assert sent(result, "all_reduce") == columns + Counter({4: numbers})


def test_what_says_nothing_takes_its_part_for_a_matrix(step: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The products of a rule that asks for nothing are those of a rank's rows."""
    for name in ("whole", "part"):
        monkeypatch.setattr(muon, name, lambda step, x: x)
    made = arranged(step, optimizer="muon,steps=7", dp=8, zero=3).step
    assert not any(update.exchanges for update in made.updates)
    shapes = [sorted((rows // 8, columns)) for rows, columns in hidden(step)]
    flop = sum(7 * 2 * (2 * n * n * m + n**3) for n, m in shapes)
    assert sum(products(made.trace).values()) == pytest.approx(flop, rel=2e-2)


def test_the_host_updates_element_by_element(step: Trace) -> None:
    with pytest.raises(PlanError, match="the optimizer multiplies matrices: leave it out"):
        simulated(step, dp=8, zero=3, offload=("optimizer",))


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_alone_nothing_is_sent(step: Trace, zero: int) -> None:
    alone = simulated(step, dp=1)
    assert simulated(step, dp=1, zero=zero).iteration_time_s == alone.iteration_time_s
