"""Recording without hardware."""

from __future__ import annotations

import math

import pytest

from tests.sources.record.steps import Look, quick, torch, trained
from triosim.core.errors import InputError
from triosim.sources.record import fake, record
from triosim.trace.tables import Category, Phase

nn, functional = torch.nn, torch.nn.functional


def test_nothing_is_measured_and_nothing_named() -> None:
    look = quick(nn.Linear(4, 4), torch.randn(2, 4), device="fake")
    meta = look.trace.meta
    assert (meta.device, meta.clock, meta.step_time_s) == (None, "none", None)
    assert all(math.isnan(op.seconds) for op in look)
    assert meta.framework == f"torch {torch.__version__.partition('+')[0]}"


def test_a_model_that_fits_nowhere() -> None:
    with fake():
        model = nn.Sequential(nn.Linear(100_000, 100_000), nn.Linear(100_000, 10))
        optimizer = torch.optim.AdamW(model.parameters())
        x, y = torch.randn(64, 100_000), torch.randint(10, (64,))
    look = quick(trained(model, optimizer), x, y)
    assert look.weight("0.weight").shape == (100_000, 100_000)
    assert {op.phase for op in look} == {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
    assert look.trace.meta.symbols == "traced twice"


def test_a_real_model_is_not_touched() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.5)
    before = [t.detach().clone() for t in (*model.parameters(), *model.buffers())]
    quick(trained(model, optimizer), torch.randn(3, 4), torch.randint(4, (3,)), device="fake")
    for now, then in zip((*model.parameters(), *model.buffers()), before, strict=True):
        assert torch.equal(now, then)
    assert all(p.grad is None for p in model.parameters())
    assert not optimizer.state
    trained(model, optimizer)(torch.randn(3, 4), torch.randint(4, (3,)))


def test_writing_into_a_real_weight_makes_its_next_version() -> None:
    """A fake tensor stands in for the weight, on a storage of its own; it must still be the weight."""
    model = nn.Linear(4, 4)
    look = quick(trained(model, torch.optim.SGD(model.parameters(), 0.1)), torch.randn(2, 4), torch.randint(4, (2,)),
                 device="fake")  # fmt: skip
    update = look.one("_foreach_add_")
    weights = [v for v in update.outputs if v.category == Category.WEIGHT]
    assert [v.storage for v in weights] == [look.weight("weight").storage, look.weight("bias").storage]
    assert look.named("t")[0].outputs[0].storage == look.weight("weight").storage


def test_numbers_that_are_read_come_from_somewhere() -> None:
    read = []

    def step(x):
        read.append((x.sum().item(), int(x.argmax()), bool(x.any()), float(x.mean())))
        return x.exp()

    look = quick(step, torch.randn(3), device="fake")
    assert read[-1] == (1.0, 1, True, 1.0)
    assert all(op.sync for op in look.named("_local_scalar_dense"))


def test_optimizers_choose_as_on_an_accelerator() -> None:
    model = nn.Linear(4, 4)
    step = trained(model, torch.optim.AdamW(model.parameters()))
    names = {op.name for op in quick(step, torch.randn(2, 4), torch.randint(4, (2,)), device="fake")}
    assert "_foreach_addcdiv_" in names
    assert "addcdiv_" not in names


def test_reading_a_step_count_on_the_host_is_no_wait_for_the_device() -> None:
    model = nn.Linear(4, 4)
    step = trained(model, torch.optim.AdamW(model.parameters()))
    look = quick(step, torch.randn(2, 4), torch.randint(4, (2,)), device="fake")
    reads = look.named("_local_scalar_dense")
    assert reads
    assert not any(op.sync for op in reads)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
class TestWithoutGpu:
    def test_cuda_in_the_step_is_taken_for_the_cpu(self) -> None:
        """A fake tensor on a device that PyTorch was not built for would end the process."""
        model = nn.Linear(4, 4)

        def step(x):
            y = model(x.to("cuda")) + torch.ones(4, device="cuda") + x.cuda()
            y.sum().backward()
            model.zero_grad()

        assert len(quick(step, torch.randn(2, 4), device="fake").named("add")) == 2

    def test_what_would_end_the_process_is_an_error(self) -> None:
        def step(x):
            with torch._C.DisableTorchFunction():
                return x * torch.ones(4, device="cuda")

        with pytest.raises(InputError, match="cuda"):
            record(step, torch.randn(4), device="fake")

    def test_cuda_is_refused(self) -> None:
        with pytest.raises(InputError, match="'fake'"):
            record(torch.exp, torch.randn(3), device="cuda")


def test_moving_a_fake_model_keeps_its_ties() -> None:
    with fake():
        model = nn.ModuleDict({"a": nn.Linear(4, 4, bias=False), "b": nn.Linear(4, 4, bias=False)})
        model["b"].weight = model["a"].weight
        before = model["a"].weight
        model.to("cpu")
        assert model["a"].weight is before
        model.to(torch.bfloat16)
        assert model["a"].weight.dtype == torch.bfloat16
        assert model["a"].weight is model["b"].weight
        assert isinstance(model["a"].weight, nn.Parameter)
        assert model["a"].weight.requires_grad


def test_bad_requests() -> None:
    for options, words in (({"device": "tpu"}, "'tpu'"), ({"warmup": 0}, "warmup"), ({"repeats": 0}, "repeats")):
        with pytest.raises(InputError, match=words):
            record(torch.exp, torch.randn(3), **options)


def test_a_step_on_another_kind_of_device_is_refused() -> None:
    from triosim.sources.record.function import measurable

    assert measurable({"cpu"}) == "cpu"
    assert measurable({"cpu", "cuda"}) == "cuda"
    with pytest.raises(InputError, match="mps"):
        measurable({"cpu", "mps"})


def test_a_chosen_name_stays() -> None:
    assert (
        Look(record(torch.exp, torch.randn(3), device="fake", workload="exponential")).trace.meta.workload
        == "exponential"
    )
