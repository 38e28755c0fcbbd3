"""Steps that accumulate gradients: several passes before one optimizer step become one micro-batch and their number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import triosim
from tests.asked import asked
from triosim.core.errors import PlanError
from triosim.fidelity import Fidelity
from triosim.hardware.machine import system
from triosim.partition.resolve import resolve
from triosim.plan import Plan
from triosim.sources.reading import load
from triosim.trace import accumulation
from triosim.trace.accumulation import median_pass, one_micro_batch, passes
from triosim.trace.tables import Category, Phase, Trace, check
from triosim.transform.rescale import of_batch, rescale

torch = pytest.importorskip("torch")

CODES = {"F": Phase.FORWARD, "B": Phase.BACKWARD, "R": Phase.RECOMPUTE, "O": Phase.OPTIMIZER}


def found(text: str) -> list[str]:
    """The passes in a step written as ``"Fa Fb B O"``: phase and key of each operator."""
    words = text.split()
    rows = passes([CODES[word[0]] for word in words], [word[1:] or None for word in words])
    return [" ".join(words[r.start : r.stop]) for r in rows]


@pytest.mark.parametrize(
    ("step", "wanted"),
    [
        ("Fa Fb B B O", []),
        ("Fa B Fa B O O", ["Fa B", "Fa B"]),
        ("O Fa Fb B Fa Fb B Fa Fb B O", ["Fa Fb B", "Fa Fb B", "Fa Fb B"]),
        ("O F Fa B F Fa B F O", ["F Fa B", "F Fa B"]),  # what is done to the loss in between belongs to the next
        ("Fa R B Fa R B O", ["Fa R B", "Fa R B"]),
        ("Fa B Fa B", ["Fa B", "Fa B"]),  # the optimizer may be left out of a profile
        ("Fa B O Fa B O", []),  # two steps
        ("Fa B Fb B O", []),  # two losses of different parts
        ("Fa B F B O", []),  # a second backward of the same pass
        ("Fa Fa O", []),
        ("O O", []),
        ("", []),
    ],
)
def test_passes(step: str, wanted: list[str]) -> None:
    assert found(step) == wanted


def test_the_median_of_all_but_the_first() -> None:
    rows = [range(i, i + 1) for i in range(5)]
    assert median_pass(rows, [9.0, 3.0, 1.0, 2.0, 4.0]) == rows[3]
    assert median_pass(rows[:2], [1.0, 2.0]) == rows[1]
    assert median_pass(rows[:3], [np.nan] * 3) == rows[1]


# --- recorded ---------------------------------------------------------------------------------------------------------


def net() -> Any:
    return torch.nn.Sequential(
        torch.nn.Linear(6, 10), torch.nn.ReLU(), torch.nn.Linear(10, 10), torch.nn.ReLU(), torch.nn.Linear(10, 3)
    )


def recorded(
    parts: int, batch: int = 8, *, cut: str = "chunk", none: bool = True, device: str | None = "fake"
) -> Trace:
    """A step over ``parts`` micro-batches that share ``batch`` samples, or (``cut="each"``) have as many each."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step(x: Any, y: Any) -> None:
        optimizer.zero_grad(set_to_none=none)
        size = -(-batch // parts)
        pieces = {
            "chunk": lambda t: t.chunk(parts), "each": lambda t: [t] * parts,
            "number": lambda t: [t[i * size : (i + 1) * size] for i in range(parts)],
        }[cut]  # fmt: skip
        total = 0.0
        for a, b in zip(pieces(x), pieces(y), strict=True):
            loss = torch.nn.functional.mse_loss(model(a), b) / parts
            loss.backward()
            total += loss.item()
        optimizer.step()

    return triosim.record(step, torch.zeros(batch, 6), torch.zeros(batch, 3), model=model, device=device, repeats=1,
                          warmup=1)  # fmt: skip


def names(trace: Trace, phase: Phase) -> list[str]:
    rows = np.flatnonzero((trace.operators.phase == phase) & ~trace.operators.view)
    return [trace.operators.name[row] for row in rows.tolist()]


@pytest.mark.parametrize("none", [True, False])
@pytest.mark.parametrize(("parts", "cut", "batch"), [(4, "chunk", 2), (2, "each", 8), (4, "number", 2)])
def test_a_recorded_step(parts: int, cut: str, batch: int, none: bool) -> None:
    trace = recorded(parts, cut=cut, none=none)
    check(trace)
    assert (trace.meta.batch_size, trace.meta.micro_batches) == (batch, parts)
    assert any(f"gradients of {parts} micro-batches" in note for note in trace.meta.notes)
    alone = recorded(1, batch=batch, none=False)
    products = [name for name in names(trace, Phase.FORWARD) if "mm" in name]
    assert products == [name for name in names(alone, Phase.FORWARD) if "mm" in name]
    assert sorted(names(trace, Phase.OPTIMIZER)) == sorted(names(recorded(1, none=none), Phase.OPTIMIZER))
    assert names(trace, Phase.BACKWARD).count("aten::add_") == len(trace.weights()) == 6
    assert np.nansum(trace.operators.flop) == np.nansum(alone.operators.flop)


def test_another_batch_of_it_is_another_batch_of_one_micro_batch() -> None:
    trace, alone = rescale(recorded(4), 16), recorded(1, batch=16)
    assert np.nansum(trace.operators.flop) == np.nansum(alone.operators.flop)
    by_number = rescale(recorded(4, cut="number"), 16)
    assert np.nansum(by_number.operators.flop) == np.nansum(alone.operators.flop)


def test_micro_batches_of_different_size() -> None:
    trace = recorded(3, batch=8)
    assert (trace.meta.batch_size, trace.meta.micro_batches) == (3, 3)
    assert any("do not share equally" in note for note in trace.meta.notes)


def test_gradients_keep_their_parameters() -> None:
    trace = recorded(4)
    values = trace.values
    mine = values.of[(values.category == Category.GRADIENT) & (values.of >= 0)]
    assert set(mine.tolist()) == set(trace.weights().tolist())
    given = values.category == Category.INPUT
    assert set(values.offset[given].tolist()) == {0}
    assert max(trace.values.storage) < len(set(trace.values.storage.tolist()))


def test_a_measured_step_is_of_all_its_micro_batches() -> None:
    trace = recorded(4, device="cpu")
    once = trace.operators.phase == Phase.OPTIMIZER
    seconds = trace.operators.device_s
    assert trace.device_time() == pytest.approx(4 * np.nansum(seconds[~once]) + np.nansum(seconds[once]))
    machine = system(device=None, devices=1)
    result = triosim.simulate(trace, machine, fidelity=Fidelity(host="none"))
    assert result.plan.micro_batches == 4
    assert result.plan.batch_size == 8
    assert result.iteration_time_s == pytest.approx(trace.device_time(), rel=1e-6)
    assert result.throughput.samples_per_s == pytest.approx(8 / result.iteration_time_s)
    assert result.workload.recorded_time_s == pytest.approx(trace.device_time())


@pytest.mark.parametrize("plan", [{"pp": 2}, {"dp": 2}, {"tp": 2}, {"dp": 2, "zero": 3}, {"batch_size": 32}])
def test_plans_work_on_it(plan: dict[str, Any]) -> None:
    devices = plan.get("pp", 1) * plan.get("dp", 1) * plan.get("tp", 1)
    machine = system(device="A100", devices=devices, link="100GB/s")
    result = triosim.simulate(recorded(4), machine, *asked(**plan))
    assert result.plan.micro_batches == 4
    assert result.plan.micro_batch_size == plan.get("batch_size", 8) // 4


def test_the_plan_takes_the_recorded_micro_batches_unless_it_names_its_own() -> None:
    assert resolve(Plan(), 1, 8, 4).micro_batches == 4
    assert resolve(Plan(micro_batches=2), 1, 8, 4).micro_batch_size == 4
    assert resolve(Plan(batch_size=32), 1, 8, 4).micro_batch_size == 8
    assert resolve(Plan(dp_style="dataparallel"), 2, 8, 4).micro_batches == 1
    with pytest.raises(PlanError, match=r"micro-batches 4 \(as recorded\) does not divide .* batch size 6"):
        resolve(Plan(batch_size=6), 1, 8, 4)


def test_a_stated_batch_size_is_that_of_the_step() -> None:
    trace = recorded(4)
    assert of_batch(trace, 12).meta.batch_size == 3
    with pytest.raises(triosim.InputError, match="give a multiple of 4"):
        of_batch(trace, 10)


def test_what_was_stored_whole_is_reduced_when_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triosim.sources.record import assemble

    with monkeypatch.context() as patch:
        patch.setattr(assemble, "one_micro_batch", lambda trace: trace)
        whole = recorded(4)
    assert whole.meta.micro_batches == 1
    triosim.save(whole, tmp_path / "a")
    trace = load(tmp_path / "a")
    assert (trace.meta.micro_batches, trace.meta.batch_size) == (4, 2)
    assert one_micro_batch(trace) is trace
    triosim.save(trace, tmp_path / "b")
    assert load(tmp_path / "b").meta == trace.meta


def test_casts_and_preparation_before_the_first_pass_are_kept() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x: Any) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):  # casts are made once and kept as long as the context lasts
            for part in (x * 2).chunk(2):
                model(part).float().sum().backward()
        optimizer.step()

    trace = triosim.record(step, torch.zeros(8, 6), model=model, device="fake")
    assert (trace.meta.batch_size, trace.meta.micro_batches) == (4, 2)
    forward = [trace.operators.name[r] for r in np.flatnonzero(trace.operators.phase == Phase.FORWARD).tolist()]
    assert forward.count("aten::mul") == 1
    writers, products = trace.writers(), [r for r, n in enumerate(trace.operators.name) if n == "aten::addmm"]
    assert len(products) == 3
    for row in products:
        made = [trace.operators.name[w] for w in writers[row] if w >= 0]
        assert made.count("aten::_to_copy") >= 2


def test_what_only_looks_like_it() -> None:
    a, b = net(), net()
    one, two = (torch.optim.SGD(m.parameters(), 0.1) for m in (a, b))

    def alternating(x: Any) -> None:  # two models, each with an optimizer step of its own
        for model, optimizer in ((a, one), (b, two)):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()

    def inference(x: Any) -> None:
        with torch.no_grad():
            a(x), a(x)

    def differentiated_alone(x: Any) -> None:  # two passes, whose gradients nobody adds up
        weights = list(a.parameters())
        for _ in range(2):
            torch.autograd.grad(a(x).sum(), weights)

    for step in (alternating, inference, differentiated_alone):
        trace = triosim.record(step, torch.zeros(8, 6), device="fake")
        assert trace.meta.micro_batches == 1, step.__name__
        assert trace.meta.batch_size == 8


SCRIPT = """
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    for part in range(3):
        model(torch.randn(5, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_script(tmp_path: Path) -> None:
    from triosim.sources.record import record_script

    (tmp_path / "train.py").write_text(SCRIPT)
    trace = record_script(tmp_path / "train.py", fake=True)
    assert (trace.meta.batch_size, trace.meta.micro_batches) == (5, 3)


# --- foreign ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def profile(tmp_path_factory) -> Path:
    """A folder with profile and execution trace of a step of four micro-batches."""
    folder = tmp_path_factory.mktemp("profile")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    data, target = torch.randn(6, 3, 8, 8), torch.arange(6) % 5
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(folder / "execution"))
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=2, active=1),
        on_trace_ready=lambda p: p.export_chrome_trace(str(folder / "profile.json")),
        record_shapes=True,
        execution_trace_observer=observer,
    ) as profiler:
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(4):
                (torch.nn.functional.cross_entropy(model(data), target) / 4).backward()
            optimizer.step()
            profiler.step()
    return folder


@pytest.mark.parametrize("exact", [True, False])
def test_a_profiled_step(profile: Path, exact: bool) -> None:
    trace = load(profile if exact else profile / "profile.json")
    check(trace)
    assert trace.meta.identity == ("exact" if exact else "inferred")
    assert (trace.meta.batch_size, trace.meta.micro_batches) == (6, 4)
    assert len(trace.weights()) == 6
    assert names(trace, Phase.FORWARD).count("aten::conv2d") == 1
    assert np.nansum(rescale(trace, 12).operators.flop) == 2 * np.nansum(trace.operators.flop)
    machine = system(device="A100", devices=2, link="100GB/s")
    result = triosim.simulate(trace, machine, Plan(pp=2, batch_size=48))
    assert (result.plan.micro_batches, result.plan.micro_batch_size) == (4, 12)


def test_a_csv_folder(tmp_path: Path) -> None:
    from tests.sources.readers.test_triosim_csv import folder

    one, many = folder(), folder()
    stage, count = -2, [len(op[2].split(";")) * (op[2] != "[]") + len(op[3].split(";")) * (op[3] != "[]")
                        for op in many.operators]  # fmt: skip
    last = sum(n for n, op in zip(count, many.operators, strict=True) if op[stage] == "optimizer")
    cut = len(many.uses) - last
    passed = [op for op in many.operators if op[stage] != "optimizer"]
    many.operators = [*passed * 3, *many.operators[len(passed) :]]
    many.uses = [*many.uses[:cut] * 3, *many.uses[cut:]]
    alone, trace = load(one.write(tmp_path / "one")), load(many.write(tmp_path / "many"))
    assert (trace.meta.batch_size, trace.meta.micro_batches) == (2, 3)
    assert trace.operators.name == alone.operators.name
    assert len(trace.weights()) == len(alone.weights())
    assert trace.device_time() > alone.device_time()


def test_the_kinds_that_tell_are_kinds() -> None:
    from triosim.operators import KINDS

    assert set(KINDS) >= accumulation.TELLING
