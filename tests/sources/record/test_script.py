"""Recording unmodified scripts."""

from __future__ import annotations

import sys
import textwrap

import pytest

from tests.sources.record.steps import ROOT, Look, torch
from triosim.core.errors import InputError
from triosim.sources.record import record_script
from triosim.trace.tables import Category, Phase

HEAD = """
import sys, torch
import torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
"""


@pytest.fixture
def script(tmp_path):
    """Writes a script and gives its path."""

    def write(body: str, head: str = HEAD):
        path = tmp_path / "work.py"
        path.write_text(head + textwrap.dedent(body))
        return path

    return write


TRAIN = """
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for i in range(6):
    x, y = torch.randn(4 + i, 6) * 2, torch.randint(3, (4 + i,))
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("iteration", i, loss.item(), flush=True)
print("the end")
"""


def test_the_third_iteration_is_recorded_and_the_script_ended(script, capfd) -> None:
    look = Look(record_script(script(TRAIN)))
    out = capfd.readouterr().out
    assert "iteration 2" in out
    assert "the end" not in out
    assert "iteration 3" not in out
    meta = look.trace.meta
    assert (meta.step, meta.steps, meta.batch_size, meta.workload) == ("3", ("3",), 6, "work")
    assert meta.clock == "cpu"
    assert meta.step_time_s > 0
    assert meta.symbols == ""
    assert {op.phase for op in look} == {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}


def test_the_next_batch_is_left_out_and_printing_the_loss_kept(script) -> None:
    look = Look(record_script(script(TRAIN)))
    assert not look.named("randn")
    assert not look.named("randint")
    assert look.ops[0].name == "t"
    assert look.ops[-1].name == "_local_scalar_dense"
    assert look.ops[-1].sync
    assert look.ops[-1].phase == Phase.OPTIMIZER
    assert look.one("nll_loss_forward").inputs[1].category == Category.LABEL
    assert look.named("addmm")[0].inputs[1].category == Category.INPUT


def test_any_iteration_can_be_chosen(script) -> None:
    trace = record_script(script(TRAIN), step=5)
    assert (trace.meta.step, trace.meta.batch_size) == ("5", 8)
    assert record_script(script(TRAIN), step=6).meta.batch_size == 9  # the last one ends with the script


def test_the_first_iteration_creates_the_state_of_the_optimizer(script) -> None:
    look = Look(
        record_script(script(TRAIN.replace("SGD(model.parameters(), 0.1)", "Adam(model.parameters())")), step=1)
    )
    assert look.trace.meta.batch_size == 4
    assert look.named("zeros_like", Phase.OPTIMIZER)
    assert look.trace.meta.step_time_s is None


def test_the_median_of_several(script) -> None:
    meta = record_script(script(TRAIN), step="median").meta
    assert meta.steps == ("3", "4", "5", "6")  # the seventh does not come
    assert meta.step in meta.steps


def test_too_short_a_script_is_an_error(script) -> None:
    with pytest.raises(InputError, match="after 6 complete iterations"):
        record_script(script(TRAIN), step=7)


def test_arguments_and_main(script) -> None:
    body = """
    import argparse
    def main():
        parser = argparse.ArgumentParser()
        parser.add_argument("--batch", type=int)
        options = parser.parse_args()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(9):
            loss = F.cross_entropy(model(torch.randn(options.batch, 6)), torch.randint(3, (options.batch,)))
            optimizer.zero_grad(); loss.backward(); optimizer.step()
    if __name__ == "__main__":
        assert sys.argv[0].endswith("work.py")
        main()
    """
    before = sys.argv, sys.path[:]
    assert record_script(script(body), ["--batch", "7"]).meta.batch_size == 7
    assert (sys.argv, sys.path) == before
    with pytest.raises(InputError, match="exit code 2"):
        record_script(script(body), ["--nonsense"])


def test_modules_beside_the_script_are_found(script, tmp_path) -> None:
    (tmp_path / "beside_the_script.py").write_text("COUNT = 4\n")
    path = script("""
    from beside_the_script import COUNT
    with torch.no_grad():
        for _ in range(COUNT):
            model(torch.randn(2, 6))
    """)
    assert len(record_script(path)) == 5


def test_an_error_in_the_script_names_its_line(script) -> None:
    path = script("def f():\n    raise KeyError('lost')\nf()\n", head="import torch\n")
    with pytest.raises(InputError, match=r"work\.py line 3: KeyError: 'lost'"):
        record_script(path)


@pytest.mark.parametrize("fake", [False, True])
def test_an_error_while_recording_leaves_nothing_behind(script, fake) -> None:
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    path = script(TRAIN.replace("optimizer.step()", "optimizer.step() if i < 2 else 1 / 0"))
    with pytest.raises(InputError, match="ZeroDivisionError"):
        record_script(path, fake=fake)
    assert _get_current_dispatch_mode() is None
    assert type(torch.ones(1)) is torch.Tensor


def test_bad_requests(tmp_path, script) -> None:
    with pytest.raises(InputError, match="no such script"):
        record_script(tmp_path / "none.py")
    for step in (0, "best"):
        with pytest.raises(InputError, match="step"):
            record_script(script(TRAIN), step=step)


def test_inference_is_counted_in_calls_of_the_model(script) -> None:
    body = """
    model.eval()
    with torch.no_grad():
        for i in range(9):
            print("call", i)
            scores = model(torch.randn(5, 6))
            best = scores.argmax(1)
    """
    look = Look(record_script(script(body)))
    assert [op.name for op in look if not op.view] == ["addmm", "relu", "addmm", "argmax"]
    assert {op.phase for op in look} == {Phase.FORWARD}
    assert look.trace.meta.batch_size == 5


def test_gradient_accumulation_is_one_iteration(script) -> None:
    body = """
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for i in range(12):
        loss = F.cross_entropy(model(torch.randn(4, 6)), torch.randint(3, (4,)))
        loss.backward()
        if i % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    """
    look = Look(record_script(script(body)))
    assert len(look.named("nll_loss_forward")) == 1
    assert (look.trace.meta.batch_size, look.trace.meta.micro_batches) == (4, 3)
    assert not look.named("randn", Phase.OPTIMIZER)


def test_zeroing_in_place_after_the_step_belongs_to_the_iteration(script) -> None:
    body = """
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=True)
    for i in range(5):
        F.cross_entropy(model(torch.randn(4, 6)), torch.randint(3, (4,))).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    """
    zero = Look(record_script(script(body))).one("_foreach_zero_")
    assert zero.phase == Phase.OPTIMIZER


def test_validation_between_iterations_is_not_recorded(script) -> None:
    body = """
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for i in range(6):
        model.eval()
        with torch.no_grad():
            model(torch.randn(50, 6))
        model.train()
        loss = F.cross_entropy(model(torch.randn(4, 6)), torch.randint(3, (4,)))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    """
    look = Look(record_script(script(body)))
    assert look.trace.meta.batch_size == 4
    assert len(look.named("addmm")) == 2


def test_an_update_by_hand_without_an_optimizer(script) -> None:
    body = """
    for i in range(6):
        F.cross_entropy(model(torch.randn(4, 6)), torch.randint(3, (4,))).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
    """
    look = Look(record_script(script(body)))
    assert len(look.named("sub_", Phase.OPTIMIZER)) == 4
    assert len(look.named("addmm")) == 2


def test_two_optimizers_that_take_turns_are_one_iteration(script) -> None:
    body = """
    critic = nn.Linear(3, 1)
    first, second = torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(critic.parameters(), 0.1)
    for i in range(8):
        for optimizer in (first, second):
            critic(model(torch.randn(4, 6))).mean().backward()
            optimizer.step()
            model.zero_grad(); critic.zero_grad()
    """
    look = Look(record_script(script(body)))
    updates = {v.of if v.of >= 0 else v.id for op in look if op.phase == Phase.OPTIMIZER for v in op.outputs}
    assert len(look.named("mean")) == 2
    assert len(updates) == 6


def test_a_model_that_is_no_module(script) -> None:
    body = """
    w = torch.randn(6, 3, requires_grad=True)
    optimizer = torch.optim.SGD([w], 0.1)
    for i in range(6):
        loss = F.cross_entropy(torch.randn(4, 6) @ w, torch.randint(3, (4,)))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    """
    look = Look(record_script(script(body)))
    assert len(look.named("mm")) == 2
    assert len(look.trace.weights()) == 1


def test_a_script_that_catches_everything_is_still_ended(script) -> None:
    body = """
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for i in range(6):
        try:
            loss = F.cross_entropy(model(torch.randn(4, 6)), torch.randint(3, (4,)))
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        except BaseException:
            pass
    """
    assert record_script(script(body)).meta.step == "3"


LOADER = """
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(40, 6), torch.randint(3, (40,)))
device = torch.device("cuda" if FORCE or torch.cuda.is_available() else "cpu")
model.to(device)
optimizer = torch.optim.AdamW(model.parameters())
for x, y in DataLoader(data, batch_size=4, shuffle=True, num_workers=WORKERS):
    x, y = x.to(device), y.to(device)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"{loss.item():.3f}")
"""


@pytest.mark.parametrize(("workers", "fake"), [(0, False), (2, False), (0, True), (2, True)])
def test_data_loaders(script, workers, fake) -> None:
    path = script(f"FORCE, WORKERS = {False}, {workers}\n" + LOADER)
    look = Look(record_script(path, fake=fake))
    assert look.trace.meta.batch_size == 4
    assert look.trace.meta.clock == ("none" if fake else "cpu")
    assert look.one("nll_loss_forward").inputs[1].category == Category.LABEL
    assert not [op for op in look if op.name in ("index", "select")]
    assert len(look.named("stack")) == 1  # of the norms; none of the samples of the next batch
    clipping = [op for op in look if "norm" in op.name]
    assert clipping
    assert {op.phase for op in clipping} == {Phase.OPTIMIZER}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_script_written_for_cuda_runs_without(script) -> None:
    look = Look(record_script(script("FORCE, WORKERS = True, 0\n" + LOADER), fake=True))
    assert "_foreach_addcdiv_" in {op.name for op in look}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("train_gpt", ["--layers", "1", "--width", "16", "--heads", "2", "--vocabulary", "50", "--sequence", "8"]),
        ("train_resnet50", ["--batch-size", "4", "--image", "64"]),
    ],
)
def test_the_examples(name, arguments) -> None:
    look = Look(record_script(ROOT / "examples" / f"{name}.py", arguments, fake=True))
    assert look.trace.meta.workload == name
    assert look.trace.meta.batch_size == 4
    derivatives = [op for op in look if op.phase == Phase.BACKWARD and op.name not in ("detach", "ones_like", "add")]
    assert all(op.forward >= 0 for op in derivatives)
