"""Another optimizer than the step's own: what it keeps, what it runs, how it is divided."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

import triosim
from tests.command import run
from triosim.core.errors import InputError, PlanError
from triosim.prediction.priced_job import price_job
from triosim.prediction.staged_job import stage_job
from triosim.trace.tables import Category, Phase, Trace
from triosim.transform.inference import forward_only
from triosim.transform.optimizing import optimized

OPTIMIZERS = ("adam", "adamw", "adagrad", "lion", "sgd", "sgd,momentum=off", "adam8bit", "adafactor", "muon")
WHOLE = ("adafactor", "muon")
"""Those that need whole matrices."""


@pytest.fixture(scope="module")
def step() -> Trace:
    return triosim.model("gpt2", batch_size=1, sequence_length=64, precision="bfloat16", optimizer="adamw")


def bytes_of_states(trace: Trace) -> float:
    """Of all that an optimizer keeps, copies in float32 included."""
    values = trace.values
    first = np.unique(values.storage, return_index=True)[1]
    kept = first[values.category[first] == Category.OPTIMIZER_STATE]
    return float(values.storage_bytes()[values.storage[kept]].sum())


def parameters(trace: Trace) -> int:
    weights = trace.weights()
    return int(trace.values.elements()[weights].sum())


@pytest.mark.parametrize(
    ("optimizer", "each"),
    [
        ("adamw", 8),
        ("adam", 8),
        ("adamw,moments=bfloat16", 4),
        ("lion", 4),
        ("adagrad", 4),
        ("sgd", 4),
        ("sgd,momentum=off", 0),
        ("adam8bit", 2 + 8 / 256),
    ],
)
def test_bytes_of_a_parameter(step: Trace, optimizer: str, each: float) -> None:
    """Beside copies in float32 of parameters of 16 bits; small ones keep 8 bytes also where states have 8 bits."""
    own = bytes_of_states(optimized(step, optimizer)) / parameters(step) - 4
    assert own == pytest.approx(each, rel=0.005, abs=1e-9)


def test_the_own_optimizer_changes_nothing_but_its_note(step: Trace) -> None:
    again = optimized(step, "adamw")
    assert again.operators.name == step.operators.name
    assert bytes_of_states(again) == bytes_of_states(step)
    assert optimized(step, "") is step


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_model_is_made_with_what_it_is_changed_to(step: Trace, optimizer: str) -> None:
    made = triosim.model("gpt2", batch_size=1, sequence_length=64, precision="bfloat16", optimizer=optimizer)
    changed = optimized(step, optimizer)

    def updates(trace: Trace) -> Counter[str]:
        o = trace.operators
        return Counter(o.name[row] for row in np.flatnonzero(o.phase == Phase.OPTIMIZER).tolist())

    assert updates(changed) == updates(made)
    assert bytes_of_states(changed) == bytes_of_states(made)


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name not in WHOLE])
def test_states_are_divided_by_zero(step: Trace, optimizer: str) -> None:
    system = triosim.system("dgx-h100")

    def held(zero: int) -> float:
        plan = triosim.Plan(dp=8, zero=zero, optimizer=optimizer)
        return triosim.simulate(step, system, plan).memory.allocated_bytes

    whole = bytes_of_states(optimized(step, optimizer))
    assert held(0) - held(1) >= 0.5 * whole


def _recorded(optimizer, model) -> Trace:
    torch = pytest.importorskip("torch")

    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    return triosim.record(step, torch.zeros(6, 24), model=model)


def _updates(trace: Trace) -> list[tuple[str, list[tuple[tuple[int, ...], int]]]]:
    """Operators of the update, with shapes and element types of what each makes."""
    o, values = trace.operators, trace.values
    shapes, outputs = values.shape.lists(), o.outputs.lists()
    return [
        (o.name[row].removesuffix(".default"), [(tuple(shapes[v]), int(values.dtype[v])) for v in outputs[row]])
        for row in np.flatnonzero((o.phase == Phase.OPTIMIZER) & ~o.view).tolist()
    ]


def test_adafactor_runs_what_pytorch_runs() -> None:
    """Operator by operator, shapes of what each makes, but for counters and what the host reads."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.LayerNorm(40), torch.nn.Linear(40, 8))
    theirs = [
        one for one in _updates(_recorded(torch.optim.Adafactor(model.parameters()), model))
        if not (one[0] == "aten::add_" and one[1][0][0] == ())
        and one[0] not in ("aten::_local_scalar_dense", "aten::item")
    ]  # fmt: skip
    assert _updates(optimized(_recorded(torch.optim.SGD(model.parameters(), 0.1), model), "adafactor")) == theirs


@pytest.mark.parametrize(("nesterov", "steps"), [(True, 5), (False, 3)])
def test_muon_runs_what_pytorch_runs(nesterov: bool, steps: int) -> None:
    """Operator by operator, shapes and types of what each makes, flops of each product: tall and wide matrices."""
    torch = pytest.importorskip("torch")
    layers = [torch.nn.Linear(24, 40, bias=False), torch.nn.Linear(40, 8, bias=False)]
    model = torch.nn.Sequential(*layers)
    muon = torch.optim.Muon(model.parameters(), nesterov=nesterov, ns_steps=steps)
    theirs = _recorded(muon, model)
    asked = f"muon,steps={steps},nesterov={'on' if nesterov else 'off'}"
    ours = optimized(_recorded(torch.optim.SGD(model.parameters(), 0.1), model), asked)
    assert _updates(ours) == _updates(theirs)
    assert _flop(ours) == _flop(theirs)


def _flop(trace: Trace) -> list[float]:
    o = trace.operators
    return np.nan_to_num(o.flop[(o.phase == Phase.OPTIMIZER) & ~o.view]).tolist()


def test_muon_multiplies_what_the_paper_counts(step: Trace) -> None:
    """An iteration of a matrix of n x m, n the shorter, is 2 (2 n^2 m + n^3) FLOP (Jordan et al.)."""
    trace = optimized(step, "muon")
    products = [f for name, f in zip(_names(trace), _flop(trace), strict=True) if name in ("mm", "addmm")]
    shapes = [sorted(step.values.shape.lists()[w]) for w in _hidden(step)]
    assert len(products) == 15 * len(shapes)
    expected = sum(5 * 2 * (2 * n * n * m + n**3) for n, m in shapes)
    assert sum(products) == pytest.approx(expected, rel=1e-3)  # and sums of small parts


def _names(trace: Trace) -> list[str]:
    o = trace.operators
    return [o.name[row].rpartition("::")[2] for row in np.flatnonzero((o.phase == Phase.OPTIMIZER) & ~o.view).tolist()]


def _hidden(trace: Trace) -> list[int]:
    shapes = trace.values.shape.lists()
    return [w for w in trace.weights().tolist() if ".h." in trace.values.name[w] and len(shapes[w]) == 2]


def test_muon_keeps_one_momentum_of_hidden_matrices(step: Trace) -> None:
    elements = step.values.elements()
    hidden = sum(int(elements[w]) for w in _hidden(step))
    kept = 4 * hidden + 8 * (parameters(step) - hidden)
    assert bytes_of_states(optimized(step, "muon")) - 4 * parameters(step) == kept


def test_muon_takes_a_stack_of_experts_at_once() -> None:
    trace = triosim.model("mixtral-8x7b", sequence_length=64, optimizer="muon", configuration={"num_hidden_layers": 1})
    names = Counter(_names(trace))
    shapes = [trace.values.shape.lists()[w] for w in trace.weights().tolist()]
    assert names["bmm"] == 5 * sum(len(shape) == 3 for shape in shapes)
    assert names["baddbmm"] == 2 * names["bmm"]


def test_adafactor_keeps_a_row_and_a_column_of_a_matrix(step: Trace) -> None:
    """Sublinear memory is what it is for (Shazeer and Stern, section 3): of n x m numbers n + m."""
    values = step.values
    shapes = values.shape.lists()
    weights = [shapes[value] for value in step.weights().tolist()]
    expected = 4 * sum(sum(shape) if len(shape) == 2 else int(np.prod(shape)) for shape in weights)
    assert bytes_of_states(optimized(step, "adafactor")) - 4 * parameters(step) == expected


@pytest.mark.parametrize("optimizer", WHOLE)
def test_a_models_own_optimizer_is_shared_as_one_that_is_named(optimizer: str) -> None:
    system, plan = triosim.system("dgx-h100"), {"dp": 8, "zero": 3}
    sizes = {"batch_size": 1, "sequence_length": 64, "precision": "bfloat16"}
    own = triosim.simulate(triosim.model("gpt2", optimizer=optimizer, **sizes), system, triosim.Plan(**plan))
    named = triosim.simulate(triosim.model("gpt2", **sizes), system, triosim.Plan(optimizer=optimizer, **plan))
    assert own.collectives == named.collectives
    assert own.iteration_time_s == named.iteration_time_s


@pytest.mark.parametrize("optimizer", WHOLE)
@pytest.mark.parametrize("plan", [{"dp": 8}, {"dp": 4, "pp": 2, "micro_batches": 2}], ids=str)
def test_whole_parameters_are_dealt_to_ranks(step: Trace, optimizer: str, plan: dict[str, int]) -> None:
    """No rank has more than its part and the largest parameter; gradients are all-reduced, parameters gathered."""
    system = triosim.system("dgx-h100")
    arranged = stage_job(price_job(step, system, triosim.Plan(optimizer=optimizer, zero=1, **plan)))
    alone = stage_job(price_job(step, system, triosim.Plan(optimizer=optimizer, **plan)))
    assert len(_updates(arranged.step.trace)) < len(_updates(alone.step.trace))
    assert sum(_flop(arranged.step.trace)) <= sum(_flop(alone.step.trace)) / plan["dp"] + _largest(alone.step.trace)
    result = triosim.simulate(step, system, triosim.Plan(optimizer=optimizer, zero=1, **plan))
    reduced = dict.fromkeys(("all_reduce", "all_gather", "send"), 0)
    for row in result.collectives:
        reduced[row.kind] += row.bytes * row.count
    assert reduced["all_reduce"] == reduced["all_gather"] > 2 * parameters(step) * 0.99
    whole = triosim.simulate(step, system, triosim.Plan(optimizer=optimizer, **plan))
    assert result.memory.categories["optimizer_state"] < 0.5 * whole.memory.categories["optimizer_state"]
    assert any("are updated as a whole" in warning for warning in result.warnings)


def _largest(trace: Trace) -> float:
    """FLOP of the update of the matrix that takes most."""
    o, of = trace.operators, trace.values.of
    each: Counter[int] = Counter()
    for row in np.flatnonzero((o.phase == Phase.OPTIMIZER) & ~o.view).tolist():
        each[int(of[o.outputs.lists()[row][0]])] += np.nan_to_num(o.flop[row])
    return max(each.values())


def test_adafactor_is_divided_from_the_command_line() -> None:
    words = ("train", "gpt2", "--system", "dgx-h100", "--optimizer", "adafactor", "--batch-size", "1", "--json", "-")
    one, whole = (json.loads(run(*words, "--zero", zero).stdout) for zero in ("1", "0"))
    states = [result["memory"]["categories"]["optimizer_state"] for result in (one, whole)]
    assert states[0] < 0.4 * states[1]
    assert whole["plan"]["optimizer"] == "adafactor"
    assert "are all-reduced, one by one" in " ".join(run(*words[:-2], "--zero", "3").stdout.split())
    assert "for a matrix by itself" in " ".join(run(*words[:-2], "--tp", "2").stdout.split())


def test_stages_update_their_own_matrices(step: Trace) -> None:
    """An operator of one tensor runs on the stage that has it, and on no other."""
    system = triosim.system("dgx-h100")
    arranged = stage_job(price_job(step, system, triosim.Plan(pp=4, micro_batches=4, optimizer="adafactor")))
    rows = np.flatnonzero(arranged.step.trace.operators.phase == Phase.OPTIMIZER)
    share = arranged.stages.share[rows[:-1]]  # the last one copies all masters
    assert len(share) > 100
    assert np.count_nonzero((share > 0).sum(axis=1) > 1) <= 19  # those of the tied embedding, on two stages


def test_what_cannot_be_is_said(step: Trace) -> None:
    with pytest.raises(InputError, match="lion"):
        optimized(step, "lyon")
    with pytest.raises(PlanError, match="without a backward"):
        optimized(forward_only(step), "lion")


def test_the_command() -> None:
    words = ("train", "gpt2", "--seq-len", "64", "--device", "H100", "--json", "-")
    usual, lion = (json.loads(run(*words, *more).stdout) for more in ((), ("--optimizer", "lion")))
    assert lion["memory"]["allocated_bytes"] < usual["memory"]["allocated_bytes"]
    assert "lion" in run(*words[:-2], "--optimizer", "lion").stdout
    refused = run("infer", "gpt2", "--seq-len", "64", "--device", "H100", "--optimizer", "lion", code=2)
    assert "without a backward" in refused.stderr


def test_rows_of_tables_follow_by_plain_gradient_descent_whatever_the_others_do() -> None:
    """Gradients of tables were taken to be as large as these, and states and updates with them."""
    own = triosim.model("dlrm-kaggle", batch_size=4)
    again = optimized(own, "sgd")
    assert len(again.operators) == len(own.operators)
    tables = {value for value in own.weights().tolist() if own.values.name[value].startswith("emb_l.")}
    trace = optimized(own, "adamw")
    values = trace.values
    states = np.flatnonzero(values.category == Category.OPTIMIZER_STATE)
    of = {values.name[int(values.of[value])] for value in states}
    assert tables
    assert of
    assert not any(name.startswith("emb_l.") for name in of)
    machine = triosim.system(device="A100-SXM4-80GB", devices=4, link="100GB/s")
    plan = {"dp": 4, "parallelism": ("tables",), "parallelism_options": {"sharding": "column"}, "batch_size": 2048}
    least = triosim.simulate(own, machine, triosim.Plan(**plan))
    for name in ("sgd", "adamw"):
        found = triosim.simulate(own, machine, triosim.Plan(optimizer=name, **plan))
        assert found.memory.allocated_bytes < 1.1 * least.memory.allocated_bytes
        assert found.breakdown_s.compute < 2 * least.breakdown_s.compute
