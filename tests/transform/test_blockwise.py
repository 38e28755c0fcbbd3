"""Optimizers that multiply whole matrices, where ranks have parts of them: each part is a matrix by itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import triosim
from triosim import stacks
from triosim.core.errors import PlanError
from triosim.prediction.priced_job import price_job
from triosim.prediction.staged_job import StagedJob, stage_job
from triosim.trace.tables import Category, Phase, Trace


@pytest.fixture(scope="module")
def step() -> Trace:
    return triosim.model("gpt2", batch_size=1, sequence_length=64, precision="bfloat16")


def arranged(step: Trace, **plan: object) -> StagedJob:
    return stage_job(price_job(step, triosim.system("dgx-h100"), triosim.Plan(**plan)))  # type: ignore[arg-type]


def hidden(trace: Trace) -> list[list[int]]:
    """Shapes of the matrices of repeated blocks."""
    shapes, name = trace.values.shape.lists(), trace.values.name
    named = [w for w in trace.weights().tolist() if any(part.isdecimal() for part in name[w].split("."))]
    return [shapes[w] for w in named if len(shapes[w]) >= 2]


def products(trace: Trace) -> Counter[str]:
    """FLOP of the optimizer's products, by operator."""
    operators, found = trace.operators, Counter[str]()
    for row in np.flatnonzero((operators.phase == Phase.OPTIMIZER) & ~operators.view).tolist():
        name = operators.name[row].rpartition("::")[2]
        if name in ("mm", "addmm", "bmm", "baddbmm"):
            found[name] += int(operators.flop[row])
    return found


@pytest.mark.parametrize(
    "plan",
    [
        {"tp": 4},
        {"tp": 2, "parallelism": ("sequence",)},
        {"tp": 2, "pp": 2, "micro_batches": 4},
        {"tp": 4, "stack": stacks.load("megatron-core")},  # main gradients, clipped
    ],
    ids=str,
)
def test_muon_multiplies_parts(step: Trace, plan: dict[str, object]) -> None:
    """Per iteration 2 (2 n^2 m + n^3) FLOP for a part of n x m, n the shorter (Jordan et al.), and sums beside."""
    made = arranged(step, optimizer="muon", **plan)
    trace = made.step.trace
    shapes = [sorted(shape) for shape in hidden(trace)]
    assert [sorted(shape) for shape in hidden(step)] != shapes
    assert sum(products(trace).values()) == pytest.approx(
        sum(5 * 2 * (2 * n * n * m + n**3) for n, m in shapes), rel=2e-3
    )  # fmt: skip
    assert any("takes it for a matrix by itself" in note for note in made.step.notes)


def test_what_is_not_cut_is_as_before(step: Trace) -> None:
    whole = products(arranged(step, optimizer="muon", dp=8).step.trace)
    assert products(arranged(step, optimizer="muon", dp=4, pp=2, micro_batches=2).step.trace) == whole
    notes = arranged(step, optimizer="muon", dp=8).step.notes
    assert not any("matrix by itself" in note for note in notes)


def test_adafactor_keeps_rows_and_columns_of_a_part(step: Trace) -> None:
    trace = arranged(step, optimizer="adafactor", tp=4).step.trace
    values, shapes = trace.values, trace.values.shape.lists()
    states = np.flatnonzero(values.category == Category.OPTIMIZER_STATE)
    _, first = np.unique(values.storage[states], return_index=True)
    of: dict[int, list[list[int]]] = {}
    for state in states[first].tolist():
        of.setdefault(int(values.of[state]), []).append(shapes[state])
    cut = 0
    for weight in trace.weights().tolist():
        shape = shapes[weight]
        if len(shape) == 2:
            cut += shape not in hidden(step)
            assert [shape[0], 1] in of[weight]
            assert [1, shape[1]] in of[weight]
    assert cut == 2 * 12 + 2  # two of a block now have a shape of their own; and two tables, of no block


def test_parts_are_dealt_to_replicas(step: Trace) -> None:
    """With ZeRO 1 each part is kept and updated by one replica: no more than its share and the largest part."""
    alone = products(arranged(step, optimizer="muon", tp=2, dp=4).step.trace)
    dealt = products(arranged(step, optimizer="muon", tp=2, dp=4, zero=1).step.trace)
    assert 0.25 <= sum(dealt.values()) / sum(alone.values()) < 0.3
    result = triosim.simulate(
        step, triosim.system("dgx-h100"), triosim.Plan(optimizer="muon", tp=2, dp=4, zero=1)
    )  # fmt: skip
    sent = {(row.axis, row.kind) for row in result.collectives}
    assert {("dp", "all_reduce"), ("dp", "all_gather")} <= sent
    assert ("dp", "reduce_scatter") not in sent


def test_experts_are_dealt_to_those_that_share_them() -> None:
    """Ranks that have the same experts share their update; the other parameters are dealt to all replicas."""
    small = {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512, "num_local_experts": 8}
    step = triosim.model("mixtral-8x7b", batch_size=1, sequence_length=64, configuration=small)
    of_four: dict[str, Any] = {"parallelism": ("experts",), "parallelism_options": {"ep": 4}}
    alone = arranged(step, optimizer="muon", dp=8, **of_four)
    dealt = arranged(step, optimizer="muon", dp=8, zero=1, **of_four)
    stacks, one = products(alone.step.trace), products(dealt.step.trace)
    assert one["bmm"] < stacks["bmm"]
    assert one["mm"] < stacks["mm"]
    assert one["bmm"] >= stacks["bmm"] / 2  # two ranks have the same experts
    assert one["mm"] <= 0.26 * stacks["mm"]  # eight have the same of everything else: two of sixteen matrices each
    result = triosim.simulate(
        step, triosim.system("dgx-h100"), triosim.Plan(optimizer="muon", dp=8, zero=1, **of_four)
    )  # fmt: skip
    kinds = {row.kind for row in result.collectives}
    assert {"all_reduce", "all_gather", "all_to_all"} <= kinds
    assert "reduce_scatter" not in kinds


def test_a_recorded_optimizer_has_to_be_named() -> None:
    """What a rank would do of its operators is known of the rules only."""
    torch = pytest.importorskip("torch")
    layers = [torch.nn.Linear(64, 128, bias=False), torch.nn.GELU(), torch.nn.Linear(128, 64, bias=False)]
    model = torch.nn.Sequential(*layers)
    muon = torch.optim.Muon(model.parameters())

    def train(data: torch.Tensor) -> None:  # type: ignore[name-defined]
        muon.zero_grad()
        model(data).sum().backward()
        muon.step()

    trace = triosim.record(train, torch.ones(16, 64), model=model, workload="parts")
    with pytest.raises(PlanError, match=r"'0\.weight' is not known: name one with --optimizer"):
        arranged(trace, tp=2)
    made = arranged(trace, tp=2, optimizer="muon")
    assert sum(products(made.step.trace).values()) == 2 * 5 * 2 * (2 * 64 * 64 * 64 + 64**3)
