"""Backward operators know the forward operator they differentiate, and with it their module."""

from __future__ import annotations

import pytest

from tests.sources.record.steps import Look, example, quick, torch, trained
from triosim.operators import canonical, kind
from triosim.trace.tables import Phase

nn, functional = torch.nn, torch.nn.functional

NOT_DERIVATIVES = {"detach", "ones_like", "add", "add_"}
"""Accumulation into ``.grad``, the gradient of the loss itself, sums of gradients."""


def _model(name: str):
    models = example("models")
    if name == "gpt":
        return models.GPT(40, 8, 2, 16, 2), torch.randint(40, (2, 8)), torch.randint(40, (2, 8))
    return models.ResNet((1, 1), 10, 8), torch.randn(2, 3, 32, 32), torch.randint(10, (2,))


@pytest.fixture(scope="module", params=["gpt", "resnet"])
def look(request) -> Look:
    model, x, y = _model(request.param)
    step = trained(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        lambda s, t: functional.cross_entropy(s.flatten(0, -2), t.flatten()),
    )
    return quick(step, x, y, device="fake")


def test_every_derivative_has_its_forward_operator(look) -> None:
    backward = [op for op in look if op.phase == Phase.BACKWARD]
    derivatives = [op for op in backward if op.name not in NOT_DERIVATIVES]
    assert len(derivatives) > 30
    for op in derivatives:
        assert op.forward >= 0, op
        assert look.ops[op.forward].phase == Phase.FORWARD
        assert op.module == look.ops[op.forward].module


def test_backward_operators_differentiate_their_namesake(look) -> None:
    for op in look:
        name, backward = canonical(op.name)
        if not backward or op.phase != Phase.BACKWARD:
            continue
        forward = canonical(look.ops[op.forward].name)[0]
        same = {"threshold": "relu", "native_layer_norm": "native_layer_norm", "embedding_dense": "embedding",
                "nll_loss": "nll_loss"}  # fmt: skip
        assert forward == same.get(name, name) or kind(forward) == kind(name), (op.name, forward)


def test_matrix_products_differentiate_matrix_products(look) -> None:
    for op in look.named("mm", Phase.BACKWARD):
        assert look.ops[op.forward].name in ("mm", "addmm")


def test_sums_of_gradients_differentiate_nothing(look) -> None:
    sums = [op for op in look if op.phase == Phase.BACKWARD and op.name in ("add", "add_")]
    assert sums
    assert {op.forward for op in sums} == {-1}
    assert all(op.module is not None for op in sums)


def test_accumulation_belongs_to_the_module_that_owns_the_weight(look) -> None:
    for op in look.named("detach", Phase.BACKWARD):
        if op.forward < 0:
            weight = next(v for v in (*op.inputs, *op.outputs)).of
            assert op.module == look.values[weight].name.rpartition(".")[0]


def test_every_second_use_of_a_shared_module_is_told_apart() -> None:
    shared = nn.Linear(4, 4)

    def step(x):
        shared(torch.tanh(shared(x))).sum().backward()
        shared.zero_grad()

    look = quick(step, torch.randn(2, 4, requires_grad=True))
    first, second = [op.row for op in look.named("addmm")]
    assert {op.module for op in look.named("addmm")} == {""}
    assert {op.forward for op in look.named("mm", Phase.BACKWARD)} == {first, second}
    assert len(look.trace.modules) == 1


def test_a_function_with_its_own_derivative() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(context, x, w):
            context.save_for_backward(x, w)
            return (x.view(-1, 4) @ w).relu()

        @staticmethod
        def backward(context, g):
            x, w = context.saved_tensors
            return g @ w.t(), x.t() @ g

    w = torch.randn(4, 4, requires_grad=True)

    def step(x):
        Scaled.apply(x, w).sum().backward()
        w.grad = None

    look = quick(step, torch.randn(2, 4))
    (forward,) = look.named("mm", Phase.FORWARD)
    assert [op.forward for op in look.named("mm", Phase.BACKWARD)] == [forward.row] * 2


def test_recomputed_operators_are_what_backward_differentiates() -> None:
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())

    def step(x):
        checkpoint(model, x, use_reentrant=True).sum().backward()
        model.zero_grad()

    look = quick(step, torch.randn(2, 4, requires_grad=True))
    assert look.ops[look.one("sigmoid_backward").forward].phase == Phase.RECOMPUTE


def test_modules_are_listed_with_their_class_in_order_of_first_use() -> None:
    model = example("models").GPT(40, 8, 1, 16, 2)
    look = quick(model, torch.randint(40, (1, 8)), device="fake")
    modules = look.trace.modules
    assert modules.path[:5] == ("", "wte", "wpe", "h.0", "h.0.ln_1")
    assert modules.kind[:5] == ("GPT", "Embedding", "Embedding", "GPTBlock", "LayerNorm")
    assert look.one("_scaled_dot_product_flash_attention_for_cpu").module == "h.0.attn"


def test_a_module_that_raises_does_not_stay_on_the_stack() -> None:
    class Raises(nn.Module):
        def forward(self, x):
            raise ValueError

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Raises()

        def forward(self, x):
            try:
                self.inner(x)
            except ValueError:
                return torch.exp(x)

    assert quick(Model(), torch.randn(2)).one("exp").module == ""
