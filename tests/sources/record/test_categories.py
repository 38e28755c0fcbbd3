"""What every value is for."""

from __future__ import annotations

import pytest

from tests.sources.record.steps import example, quick, torch, trained
from triosim.trace.tables import Category, Phase

nn, functional = torch.nn, torch.nn.functional


def _gpt_step(**options):
    model = example("models").GPT(vocabulary=50, context=8, layers=2, width=16, heads=2, **options)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    step = trained(model, optimizer, lambda s, y: functional.cross_entropy(s.flatten(0, 1), y.flatten()))
    return model, step, torch.randint(50, (3, 8)), torch.randint(50, (3, 8))


def test_every_parameter_comes_first_in_registration_order() -> None:
    model, step, x, y = _gpt_step()
    look = quick(step, x, y)
    names = [name for name, _ in model.named_parameters()]
    assert [look.trace.values.name[i] for i in look.trace.weights()] == names
    assert [v.name for v in look.values[: len(names)]] == names
    assert [v.shape for v in look.values[: len(names)]] == [tuple(p.shape) for p in model.parameters()]


def test_every_weight_has_its_gradient_and_its_state() -> None:
    model, step, x, y = _gpt_step()
    look = quick(step, x, y)
    weights = range(len(list(model.parameters())))
    for category, wanted in ((Category.GRADIENT, 1), (Category.OPTIMIZER_STATE, 2)):
        found = {
            w: {v.storage for v in look.values if v.of == w and v.category == category and v.shape} for w in weights
        }
        assert all(len(storages) >= wanted for storages in found.values()), category
    for v in look.values:
        if v.category in (Category.GRADIENT, Category.OPTIMIZER_STATE):
            assert v.of in weights
            size = look.trace.values.elements()
            assert not v.shape or size[v.id] == size[v.of]  # the step count has no shape


def test_the_derivative_itself_is_the_gradient() -> None:
    model = nn.Linear(4, 3)
    look = quick(trained(model, torch.optim.SGD(model.parameters(), 0.1)), torch.randn(2, 4), torch.randint(3, (2,)))
    product = look.one("mm", Phase.BACKWARD)
    assert product.outputs[0].category == Category.GRADIENT
    assert product.outputs[0].of == look.weight("weight").id


def test_tied_weights_are_one_weight_whose_gradients_are_summed() -> None:
    _, step, x, y = _gpt_step(tied=True)
    look = quick(step, x, y)
    names = {v.name for v in look.values}
    assert "wte.weight" in names
    assert "lm_head.weight" not in names
    tied = look.weight("wte.weight").id
    partial = [op for op in look if op.name in ("add", "embedding_dense_backward", "mm") and op.phase == Phase.BACKWARD]
    summed = [op for op in partial if any(v.of == tied for v in op.outputs)]
    assert {op.name for op in summed} == {"add", "embedding_dense_backward", "mm"}
    assert next(op for op in summed if op.name == "add").forward == -1  # a sum of gradients differentiates nothing


def test_inputs_and_labels() -> None:
    _, step, x, y = _gpt_step()
    look = quick(step, x, y)
    assert look.one("nll_loss_forward").inputs[1].category == Category.LABEL
    indices = next(op for op in look if op.name == "embedding").inputs[1]
    assert indices.category == Category.INPUT
    assert [v.category for v in look.values].count(Category.INPUT) == 1


def test_a_label_that_is_copied_on_its_way_to_the_loss_is_still_a_label() -> None:
    model = nn.Embedding(9, 9)

    def step(x):
        scores = model(x)
        functional.cross_entropy(scores[:, :-1].flatten(0, 1), labels[:, 1:].flatten()).backward()

    labels = torch.randint(9, (2, 5))
    look = quick(step, torch.randint(9, (2, 5)))
    read = {v.storage: v.category for op in look for v in op.inputs}
    assert Category.LABEL in read.values()


def test_regression_targets_are_labels() -> None:
    model = nn.Linear(3, 2)
    step = trained(model, torch.optim.SGD(model.parameters(), 0.1), functional.mse_loss)
    look = quick(step, torch.randn(4, 3), torch.randn(4, 2))
    op = look.one("mse_loss")
    assert op.inputs[op.roles.index("target")].category == Category.LABEL
    assert op.inputs[op.roles.index("self")].category == Category.ACTIVATION


def test_activations_are_what_backward_reads() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    step = trained(model, torch.optim.SGD(model.parameters(), 0.1))
    look = quick(step, torch.randn(3, 4), torch.randint(2, (3,)))
    assert look.one("tanh").outputs[0].category == Category.ACTIVATION
    assert look.named("addmm")[0].outputs[0].category == Category.TEMPORARY  # tanh keeps its result, not its input
    assert look.one("tanh_backward").outputs[0].category == Category.TEMPORARY


def test_buffers_and_tensors_kept_in_plain_attributes() -> None:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(4))
            self.shift = torch.zeros(4)

        def forward(self, x):
            return x * self.scale + self.shift

    look = quick(Model(), torch.randn(2, 4))
    scale, shift = look.one("mul").inputs[1], look.one("add").inputs[1]
    assert (scale.category, scale.name) == (Category.BUFFER, "scale")
    assert (shift.category, shift.name) == (Category.BUFFER, "")


def test_a_weight_outside_of_any_module_is_a_weight() -> None:
    w = torch.randn(4, 2, requires_grad=True)
    optimizer = torch.optim.SGD([w], 0.1)

    def step(x):
        optimizer.zero_grad()
        (x @ w).sum().backward()
        optimizer.step()

    look = quick(step, torch.randn(3, 4))
    assert len(look.trace.weights()) == 1
    assert look.one("mm", Phase.FORWARD).inputs[1].category == Category.WEIGHT
    assert look.one("mm", Phase.BACKWARD).outputs[0].of == look.trace.weights()[0]


def test_a_model_in_two_parts_keeps_both_sets_of_weights() -> None:
    big, small = nn.Linear(4, 40), nn.Linear(40, 2)
    look = quick(lambda x: small(big(x)), torch.randn(3, 4))
    assert {v.name for v in look.values if v.name} == {"weight", "bias", "Linear.weight", "Linear.bias"}
    assert [op.module for op in look.named("addmm")] == ["", "Linear"]


def test_the_model_can_be_given_when_only_its_parts_are_called() -> None:
    model = nn.ModuleDict({"encoder": nn.Linear(4, 8), "decoder": nn.Linear(8, 2)})
    look = quick(lambda x: model["decoder"](model["encoder"](x)), torch.randn(3, 4), model=model)
    assert [op.module for op in look.named("addmm")] == ["encoder", "decoder"]
    assert look.weight("decoder.weight").shape == (2, 8)


@pytest.mark.parametrize("name", ["ResNet", "DenseNet", "VGG", "Llama"])
def test_example_models_are_recorded_whole(name) -> None:
    models = example("models")
    if name == "Llama":
        model = models.Llama(vocabulary=30, layers=2, width=16, inner=24, heads=4, kv_heads=2)
        x, y = torch.randint(30, (2, 6)), torch.randint(30, (2, 6))
    else:
        small = {
            "ResNet": {"blocks": (1, 1), "width": 8},
            "DenseNet": {"blocks": (2, 2), "growth": 4},
            "VGG": {"depth": 11},
        }
        model = getattr(models, name)(classes=10, **small[name])
        x, y = torch.randn(2, 3, 32, 32), torch.randint(10, (2,))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    step = trained(model, optimizer, lambda s, t: functional.cross_entropy(s.flatten(0, -2), t.flatten()))
    look = quick(step, x, y, device="fake")
    count = len(list(model.parameters()))
    assert len(look.trace.weights()) == count
    assert {v.of for v in look.values if v.category == Category.GRADIENT} == set(range(count))
    assert look.trace.meta.symbols == "traced twice"
    backward = [op for op in look if op.phase == Phase.BACKWARD and op.name not in ("detach", "ones_like", "add")]
    assert all(op.forward >= 0 for op in backward)
