"""Forward, backward, optimizer and recomputation, without a word from the user."""

from __future__ import annotations

import pytest

from tests.sources.record.steps import quick, torch, trained
from triosim.trace.tables import Category, Phase

nn, functional = torch.nn, torch.nn.functional
F, B, O, R = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.RECOMPUTE


def _mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def _data():
    return torch.randn(4, 6), torch.randint(3, (4,))


def test_an_ordinary_step_is_forward_backward_optimizer() -> None:
    model = _mlp()
    look = quick(trained(model, torch.optim.SGD(model.parameters(), 0.1)), *_data())
    phases = [op.phase for op in look]
    assert phases == sorted(phases)
    assert set(phases) == {F, B, O}
    assert look.phases("addmm", "mm", "ones_like") == [F, F, B, B, B, B]


@pytest.mark.parametrize("foreach", [False, True])
def test_both_kinds_of_optimizer(foreach) -> None:
    model = _mlp()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
    look = quick(trained(model, optimizer), *_data())
    names = {op.name for op in look if op.phase == O}
    assert ("_foreach_addcdiv_" in names) == foreach
    assert ("addcdiv_" in names) != foreach
    assert "zeros_like" not in names  # the state is there already
    updated = {v.storage for op in look if op.phase == O for v in op.outputs if v.category == Category.WEIGHT}
    assert updated == {v.storage for v in look.values if v.name}


def test_fused_optimizer_reads_gradients_without_writing_them() -> None:
    model = _mlp()
    look = quick(trained(model, torch.optim.AdamW(model.parameters(), fused=True)), *_data())
    op = look.one("_fused_adamw_")
    assert {v.category for v in op.outputs} == {Category.WEIGHT, Category.OPTIMIZER_STATE}
    assert "grads" in op.roles


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_checkpointing_runs_again_is_recomputation(reentrant) -> None:
    from torch.utils.checkpoint import checkpoint

    inner, outer = nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 6)

    def step(x):
        checkpoint(inner, outer(x), use_reentrant=reentrant).sum().backward()

    look = quick(step, torch.randn(4, 6))
    assert look.phases("tanh") == [F, R]
    assert look.phases("addmm") == [F, F, R]
    assert look.one("tanh", R).module in ("1", "Sequential.1")
    again = look.one("tanh", R)
    assert again.outputs[0].category == Category.ACTIVATION
    assert look.one("tanh_backward").phase == B


def test_second_derivatives_are_backward_not_recomputation() -> None:
    w = torch.randn(3, requires_grad=True)

    def step(x):
        (g,) = torch.autograd.grad((x * w).pow(3).sum(), w, create_graph=True)
        g.pow(2).sum().backward()
        w.grad = None

    look = quick(step, torch.randn(3))
    assert R not in {op.phase for op in look}
    assert look.phases("sum") == [F, F]


def test_gradient_clipping_belongs_to_the_optimizer() -> None:
    model = _mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x, y):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    look = quick(step, *_data())
    clipping = [op for op in look if "norm" in op.name or op.name.startswith("_foreach_mul")]
    assert clipping
    assert {op.phase for op in clipping} == {O}


def test_zeroing_gradients_in_place_belongs_to_the_optimizer() -> None:
    model = _mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=True)

    def step(x, y):
        optimizer.zero_grad(set_to_none=False)
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    look = quick(step, *_data())
    zero = look.one("_foreach_zero_")
    assert zero.phase == O
    assert {v.category for v in zero.outputs} == {Category.GRADIENT}


def test_an_update_written_by_hand() -> None:
    w = torch.randn(6, 3, requires_grad=True)

    def step(x, y):
        functional.cross_entropy(x @ w, y).backward()
        with torch.no_grad():
            w.sub_(w.grad * 0.1)
            w.grad = None

    look = quick(step, *_data())
    assert look.phases("mul", "sub_") == [O, O]
    assert look.one("sub_").outputs[0].category == Category.WEIGHT


def test_gradient_accumulation_goes_forward_again() -> None:
    model = _mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x, y):
        optimizer.zero_grad()
        for part, target in zip(x.chunk(2), y.chunk(2), strict=True):
            functional.cross_entropy(model(part), target).backward()
        optimizer.step()

    look = quick(step, *_data())
    assert look.phases("ones_like", "nll_loss_forward") == [F, B]
    assert look.trace.meta.micro_batches == 2
    accumulated = [op for op in look if op.name == "add_" and op.phase == B]
    assert len(accumulated) == 4
    assert {v.category for op in accumulated for v in (*op.inputs, *op.outputs)} == {Category.GRADIENT}


def test_lbfgs_runs_the_model_inside_its_step() -> None:
    model = _mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)
    x, y = _data()

    def closure():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    look = quick(lambda: optimizer.step(closure))
    assert look.phases("addmm") == [F, F]
    assert look.phases("threshold_backward") == [B]
    assert look.trace.meta.symbols == ""  # the step makes its own data


def test_inference_is_forward_only() -> None:
    model = _mlp().eval()
    with torch.no_grad():
        look = quick(model, torch.randn(4, 6))
    assert {op.phase for op in look} == {F}
    assert not [v for v in look.values if v.category in (Category.ACTIVATION, Category.GRADIENT)]
    assert {op.forward for op in look} == {-1}


def test_inference_mode() -> None:
    model = _mlp().eval()

    def step(x):
        with torch.inference_mode():
            return model(x)

    look = quick(step, torch.randn(4, 6))
    assert look.phases("addmm") == [F, F]
    assert len(look.trace.weights()) == 4


def test_the_hooks_are_taken_out_again() -> None:
    from torch.nn.modules import module
    from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

    before = torch.autograd.backward, torch.autograd.grad, nn.Module._apply, torch.optim.Optimizer.__init__
    model = _mlp()
    quick(trained(model, torch.optim.SGD(model.parameters(), 0.1)), *_data())
    after = torch.autograd.backward, torch.autograd.grad, nn.Module._apply, torch.optim.Optimizer.__init__
    assert before == after
    assert not module._global_forward_pre_hooks
    assert not module._global_forward_hooks
    assert not _global_optimizer_pre_hooks
    assert not _global_optimizer_post_hooks
