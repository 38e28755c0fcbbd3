"""Diffusion models, operator by operator against the same written in PyTorch, and against the recorder."""

from __future__ import annotations

import functools

import pytest

from triosim.core.errors import InputError
from triosim.operators import kind
from triosim.sources.modelling import model
from triosim.trace.tables import Phase, Trace

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tests.sources.models import diffusion_models  # noqa: E402
from tests.sources.models.test_against_torch import Log, assert_same_trace, computing, our_rows, plain  # noqa: E402

BATCH = 2


def latents(channels: int, side: int):
    return torch.empty(BATCH, channels, side, side)


def numbers(count: int):
    return lambda: torch.zeros(count, dtype=torch.long)


DIT = {"hidden_size": 64, "depth": 2, "num_heads": 4, "patch_size": 2, "sample_size": 8, "num_classes": 10}
CASES = {
    "dit": (
        DIT, lambda: diffusion_models.DiT(64, 2, 4, 2, 8, 10),
        (functools.partial(latents, 4, 8), numbers(BATCH), numbers(BATCH)),
    ),
}  # fmt: skip
"""By family: configuration, the model in PyTorch, and what makes its inputs."""


def torch_step(make, inputs):
    """Parameters, forward rows, backward rows of a step of a model under the squared error."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with FakeTensorMode(), torch.device("cpu"):
            net, given = make(), [f() for f in inputs]
            with Log() as log:
                y = net(*given)
                loss = F.mse_loss(y.float(), torch.empty_like(y).float())
                forward = len(log.rows)
                loss.backward()
    finally:
        torch.set_default_dtype(before)
    return [(n, tuple(p.shape)) for n, p in net.named_parameters()], log.rows[:forward], log.rows[forward:]


@pytest.fixture(params=CASES, scope="module")
def both(request):
    configuration, make, inputs = CASES[request.param]
    return torch_step(make, inputs), model(request.param, batch_size=BATCH, configuration=configuration)


def test_same_parameters_in_the_same_order(both):
    (parameters, _, _), trace = both
    shape, names = trace.values.shape.lists(), trace.values.name
    assert [(names[v], tuple(shape[v])) for v in trace.weights()] == parameters


def test_same_operators_in_the_same_order(both):
    (_, forward, backward), trace = both
    expected = [row for row in computing(forward, False) if row[0] != "scalar_tensor"]  # a number as an argument
    assert computing(our_rows(trace, Phase.FORWARD), False) == expected
    assert computing(our_rows(trace, Phase.BACKWARD), False) == computing(backward, False)


def test_products_read_the_same_shapes(both):
    (_, forward, backward), trace = both

    def products(rows) -> list:
        kinds = ("linear", "convolution", "attention")
        return [(plain(name), reads[:6]) for name, reads, _ in rows if kind("aten::" + name) in kinds]

    assert products(our_rows(trace, Phase.FORWARD)) == products(forward)
    assert products(our_rows(trace, Phase.BACKWARD)) == products(backward)


@pytest.mark.parametrize("family", CASES)
def test_same_trace_as_the_recorder_makes(family):
    recording = pytest.importorskip("triosim.sources.record.function", reason="the recorder is not here")
    configuration, make, inputs = CASES[family]
    with recording.fake():
        net = make()
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, foreach=True)
        given = [f() for f in (*inputs, inputs[0])]

    def step(*given):
        F.mse_loss(net(*given[:-1]), given[-1]).backward()
        optimizer.step()
        optimizer.zero_grad()

    recorded = recording.record(step, *given, device="fake")
    built: Trace = model(
        family, batch_size=BATCH, configuration=configuration, precision="float32", optimizer="sgd",
        fused_optimizer=False,
    )  # fmt: skip
    assert_same_trace(built, recorded, ("scalar_tensor",))


def test_pixels_follow_from_latents():
    assert model("dit", configuration=DIT).meta.workload == "dit, 64 pixels, bfloat16"
    with pytest.raises(InputError, match="positions for images of 64 pixels, not 128: leave the size out"):
        model("dit", configuration=DIT, image_size=128)
