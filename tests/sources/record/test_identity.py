"""Which value a tensor is: views, writing in place, recycled memory."""

from __future__ import annotations

from tests.sources.record.steps import Look, quick, torch
from triosim.trace.tables import Category


def test_a_view_is_another_value_on_the_same_storage() -> None:
    look = quick(lambda x: torch.exp(x.transpose(0, 1)), torch.randn(3, 5))
    view, exp = look.ops
    assert view.view
    assert not exp.view
    assert view.outputs[0].storage == view.inputs[0].storage
    assert view.outputs[0].id != view.inputs[0].id
    assert view.outputs[0].shape == (5, 3)
    assert exp.inputs == view.outputs
    assert exp.outputs[0].storage != view.outputs[0].storage
    assert view.seconds == 0


def test_a_slice_keeps_its_offset() -> None:
    look = quick(lambda x: torch.exp(x[2:]), torch.randn(4, 5))
    sliced = look.named("slice")[-1].outputs[0]
    assert look.trace.values.offset[sliced.id] == 10
    assert sliced.shape == (2, 5)


def test_an_unannotated_view_is_found_by_its_storage() -> None:
    """``matmul`` of 3-D by 2-D ends in ``_unsafe_view``, whose schema does not say that it is a view."""
    look = quick(lambda x, w: x @ w, torch.randn(2, 3, 4), torch.randn(4, 5))
    op = look.one("_unsafe_view")
    assert op.view
    assert op.outputs[0].storage == look.one("mm").outputs[0].storage


def test_writing_in_place_makes_the_next_version() -> None:
    def step(x):
        y = torch.exp(x)
        y.add_(1)
        return torch.log(y)

    exp, add, log = quick(step, torch.randn(3)).ops
    assert add.inputs == exp.outputs
    assert add.outputs[0].storage == exp.outputs[0].storage
    assert (exp.outputs[0].version, add.outputs[0].version) == (0, 1)
    assert log.inputs == add.outputs


def test_a_base_written_through_a_view_is_read_in_its_new_version() -> None:
    def step(x):
        y = torch.exp(x)
        y[0].mul_(2)
        return torch.log(y)

    look = quick(step, torch.randn(3, 4))
    log = look.one("log")
    assert log.inputs[0].version == 1
    assert log.inputs[0].shape == (3, 4)
    assert look.trace.writers()[log.row] == [look.one("mul_").row]


def test_memory_that_is_handed_out_again_is_a_new_storage() -> None:
    """The loop frees and allocates the same bytes again and again."""
    addresses = []

    x = torch.randn(1000)

    def step():
        for _ in range(20):
            y = torch.exp(x)
            addresses.append(y.data_ptr())
            del y

    look = quick(step)
    assert len(set(addresses)) < len(addresses)
    assert len({op.outputs[0].storage for op in look.named("exp")}) == 20


def test_an_out_argument_is_written_and_not_read() -> None:
    def step(x):
        y = torch.empty(3)
        torch.add(x, 1, out=y)
        return torch.exp(y)

    empty, add, exp = quick(step, torch.randn(3)).ops
    assert [role for role in add.roles if role == "out"] == []
    assert add.outputs[0].storage == empty.outputs[0].storage
    assert add.outputs[0].version == 1
    assert exp.inputs == add.outputs


def test_an_overwrite_does_not_read_what_it_overwrites() -> None:
    def step(x):
        y = torch.empty(3)
        y.copy_(x)
        y.zero_()

    look = quick(step, torch.randn(3))
    assert look.one("copy_").roles == ["src"]
    assert look.one("zero_").inputs == []
    assert [v.version for op in look for v in op.outputs] == [0, 1, 2]


def test_lists_are_flattened_and_written_element_by_element() -> None:
    def step(x):
        ys = [torch.exp(x), torch.log(x)]
        torch._foreach_add_(ys, [x, x])
        return ys

    look = quick(step, torch.rand(3))
    op = look.one("_foreach_add_")
    assert op.roles == ["self", "self", "other", "other"]
    assert [v.version for v in op.outputs] == [1, 1]
    assert [v.storage for v in op.outputs] == [v.storage for v in op.inputs[:2]]


def test_changing_only_the_shape_in_place_writes_nothing() -> None:
    def step(x):
        y = torch.exp(x)
        y.t_()
        return torch.log(y)

    look = quick(step, torch.randn(2, 3))
    assert look.one("t_").view
    assert look.one("log").inputs[0].version == 0
    assert look.one("log").inputs[0].shape == (3, 2)


def test_batch_norm_writes_its_running_statistics_although_its_schema_does_not_say_so() -> None:
    model = torch.nn.BatchNorm1d(4)
    look = quick(model, torch.randn(8, 4), model=model)
    op = look.one("native_batch_norm")
    written = [v for v in op.outputs if v.category == Category.BUFFER]
    assert [v.shape for v in written] == [(4,), (4,)]
    assert all(v.version == 1 for v in written)
    model.eval()
    still = quick(model, torch.randn(8, 4), model=model)
    assert all(v.version == 0 for op in still for v in op.inputs)


def test_saved_results_are_recognised_when_autograd_brings_them_back() -> None:
    """Autograd unpacks a saved result as a new tensor object."""
    w = torch.randn(3, requires_grad=True)

    def step(x):
        torch.sigmoid(x * w).sum().backward()
        w.grad = None

    look: Look = quick(step, torch.randn(3))
    backward = look.one("sigmoid_backward")
    saved = backward.inputs[backward.roles.index("output")]
    assert saved.storage == look.one("sigmoid").outputs[0].storage
