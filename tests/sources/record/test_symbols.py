"""Dimensions that follow the batch or the sequence, found by tracing twice."""

from __future__ import annotations

from tests.sources.record.steps import example, quick, torch, trained
from triosim.sources.record.twice import Extents, compare, extents, resized
from triosim.trace.tables import BATCH, SEQUENCE, UNDECIDED, Phase

nn, functional = torch.nn, torch.nn.functional


def _gpt():
    model = example("models").GPT(40, 8, 1, 16, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return trained(model, optimizer, lambda s, y: functional.cross_entropy(s.flatten(0, 1), y.flatten()))


def test_batch_and_sequence_of_a_language_model() -> None:
    look = quick(_gpt(), torch.randint(40, (3, 8)), torch.randint(40, (3, 8)))
    assert (look.trace.meta.batch_size, look.trace.meta.sequence_length) == (3, 8)
    assert look.trace.meta.symbols == "traced twice"
    attention = look.one("_scaled_dot_product_flash_attention_for_cpu")
    assert attention.outputs[0].symbols == (BATCH, 0, SEQUENCE, 0)
    product = look.named("addmm")[0]
    assert product.outputs[0].symbols == (BATCH | SEQUENCE, 0)  # rows are batch times sequence
    assert look.one("arange").outputs[0].symbols == (SEQUENCE,)
    for op in look:
        if op.phase == Phase.OPTIMIZER:
            assert not any(any(v.symbols) for v in op.outputs)


def test_the_hardware_run_and_the_fake_run_agree() -> None:
    x, y = torch.randint(40, (3, 8)), torch.randint(40, (3, 8))
    real, fake = quick(_gpt(), x, y), quick(_gpt(), x, y, device="fake")
    assert [op.name for op in real if op.phase != Phase.OPTIMIZER] == [
        op.name for op in fake if op.phase != Phase.OPTIMIZER
    ]
    for a, b in zip(real, fake, strict=False):
        if a.phase != Phase.OPTIMIZER:
            assert [v.shape for v in a.outputs] == [v.shape for v in b.outputs]
            assert [v.symbols for v in a.outputs] == [v.symbols for v in b.outputs]
            assert [v.category for v in a.outputs] == [v.category for v in b.outputs]
            assert (a.module, a.forward, a.view) == (b.module, b.forward, b.view)


def test_images_have_no_sequence() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2))
    look = quick(model, torch.randn(5, 3, 8, 8))
    assert look.trace.meta.sequence_length is None
    assert look.one("convolution").outputs[0].symbols == (BATCH, 0, 0, 0)
    assert look.one("addmm").outputs[0].symbols == (BATCH, 0)


def test_a_dimension_that_grows_otherwise_is_undecided() -> None:
    look = quick(lambda x: torch.cat([x, torch.zeros(1, 4)]).exp(), torch.randn(6, 4))
    assert look.one("exp").outputs[0].symbols == (UNDECIDED, 0)


def test_a_step_that_runs_other_operators_with_another_batch_is_not_decided() -> None:
    look = quick(lambda x: [torch.exp(row) for row in x], torch.randn(3, 4))
    assert look.trace.meta.symbols == ""
    assert any("another batch" in note for note in look.trace.meta.notes)


def test_a_step_that_does_not_take_another_sequence_keeps_its_batch() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 2))
    look = quick(model, torch.randint(9, (5, 6)))
    assert look.one("embedding").outputs[0].symbols == (BATCH, 0, 0)
    assert any("sequence length" in note for note in look.trace.meta.notes)


def test_a_step_without_inputs_is_traced_once() -> None:
    x = torch.randn(4, 3)
    look = quick(lambda: torch.exp(x))
    assert look.trace.meta.symbols == ""
    assert look.trace.meta.batch_size == 4


def test_inputs_in_containers() -> None:
    look = quick(lambda batch: batch["a"] * batch["b"][0], {"a": torch.randn(4, 3), "b": [torch.randn(4, 3)]})
    assert look.one("mul").outputs[0].symbols == (BATCH, 0)


def test_extents_are_read_off_the_inputs() -> None:
    tokens, image = torch.zeros(2, 9, dtype=torch.int64), torch.zeros(4, 3, 8, 8)
    assert extents([tokens], None, None) == Extents(2, 9)
    assert extents([image], None, None) == Extents(4, None)
    assert extents([image], 8, 5) == Extents(8, 5)
    assert extents([3, "x"], None, None) == Extents(None, None)


def test_resized_inputs_keep_everything_but_their_extents() -> None:
    tokens = torch.zeros(2, 9, dtype=torch.int64)
    mask, positions = torch.zeros(2, 9, 9, dtype=torch.bool), torch.arange(9)
    image = torch.zeros(2, 3, 8, 8, requires_grad=True).to(memory_format=torch.channels_last)
    found = resized([tokens, mask, positions, image, "x"], Extents(2, 9), Extents(4, 3))
    assert [tuple(t.shape) for t in found[:4]] == [(4, 3), (4, 3, 3), (3,), (4, 3, 8, 8)]
    assert [t.dtype for t in found[:4]] == [tokens.dtype, mask.dtype, positions.dtype, image.dtype]
    assert found[3].is_contiguous(memory_format=torch.channels_last)
    assert found[3].requires_grad
    assert found[4] == "x"


def test_resized_inputs_lie_in_memory_as_before() -> None:
    """A slice of a longer tensor is not contiguous, so flattening it copies; the second trace must copy too."""
    look = quick(lambda x: x.flatten().exp(), torch.randn(4, 9)[:, :-1])
    assert look.one("exp").outputs[0].symbols == (BATCH,)
    now, then = Extents(4, 8), Extents(6, 8)
    for given in (
        torch.empty(4, 8), torch.empty(4, 9)[:, 1:], torch.empty(8, 4).t(), torch.empty(8, 5)[:, :4].t(),
        torch.empty(4, 16)[:, ::2], torch.empty(4, 1).expand(4, 8), torch.empty(4, 3, 8).permute(0, 2, 1),
    ):  # fmt: skip
        (made,) = resized([given], now, then)
        assert made.shape == (6, *given.shape[1:])
        assert made.is_contiguous() == given.is_contiguous()
        assert made.transpose(0, 1).is_contiguous() == given.transpose(0, 1).is_contiguous()
        assert [s == 0 for s in made.stride()] == [s == 0 for s in given.stride()]
        (same,) = resized([given], now, now)
        if all(given.stride()):
            ranks = [sorted(t.stride()).index(t.stride(0)) for t in (same, given)]
            assert ranks[0] == ranks[1]


def test_tracing_again_leaves_the_model_as_it_was() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    seen = []

    def step(x, y):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if type(x) is torch.Tensor:
            seen.append([p.detach().clone() for p in (*model.parameters(), *model.buffers())])

    quick(step, torch.randn(3, 4), torch.randint(4, (3,)))
    for now, then in zip((*model.parameters(), *model.buffers()), seen[-1], strict=True):
        assert torch.equal(now, then)
    assert all(type(p.grad) is torch.Tensor for p in model.parameters())
    assert all(type(t) is torch.Tensor for state in optimizer.state.values() for t in state.values())
    step(torch.randn(3, 4), torch.randint(4, (3,)))


def test_comparing_different_steps_gives_nothing() -> None:
    from triosim.sources.record.observer import StepTape

    class Row:
        def __init__(self, name):
            self.name = name

    one, other = (StepTape(None, None, [], rows=[Row(n)]) for n in ("aten::exp", "aten::log"))
    assert compare(one, other, BATCH, 1, 2) is None
