"""Windows of an image against Hugging Face's own, called on fake tensors."""

from __future__ import annotations

import json

import pytest

from tests.sources.models.test_against_torch import BATCH, BOOKKEEPING, Log, our_rows, plain
from triosim.core.errors import InputError
from triosim.operators import kind
from triosim.sources.modelling import model
from triosim.trace.tables import Phase

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
initialization = pytest.importorskip("transformers.initialization")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional as F  # noqa: E402

SMALL = {
    "patch_size": 2, "embed_dim": 24, "depths": [2, 2], "num_heads": [3, 6], "window_size": 7, "drop_path_rate": 0.1,
}  # fmt: skip
POOLED = {"as_strided", "new_zeros", "copy"}
"""What PyTorch calls on a CPU where it averages over all places; its gradient is one of them."""


@pytest.fixture(params=[56, 60, 68], scope="module")
def both(request, tmp_path_factory):
    """Their parameters, forward and backward rows, and our trace; sides that windows and pairs do not divide too."""
    size = request.param
    with FakeTensorMode(), initialization.no_init_weights():
        config = transformers.SwinConfig(**SMALL, image_size=size, num_labels=10)
        config._attn_implementation = "eager"
        net = transformers.SwinForImageClassification(config)
        net.train()
        with Log() as log:
            scores = net(torch.empty(BATCH, 3, size, size)).logits
            loss = F.cross_entropy(scores.float(), torch.zeros(BATCH, dtype=torch.long))
            forward = len(log.rows)
            loss.backward()
        parameters = [(name, tuple(p.shape)) for name, p in net.named_parameters()]
    file = tmp_path_factory.mktemp("model") / "config.json"
    file.write_text(json.dumps({"model_type": "swin", **SMALL, "num_labels": 10}))
    trace = model(str(file), batch_size=BATCH, image_size=size)
    return parameters, log.rows[:forward], log.rows[forward:], trace


def computing(rows):
    """What computes, in order: name and shape of the first output."""
    found = []
    for name, _, outputs in rows:
        is_view = kind("aten::" + name) == "view" and name != "slice_backward"
        if not (is_view or plain(name) in BOOKKEEPING | {"rand"} or (plain(name) in POOLED and len(outputs[0]) < 4)):
            found.append((plain(name), outputs[0] if outputs else ()))
    return found


def test_same_parameters_in_the_same_order(both):
    parameters, _, _, trace = both
    shape, names = trace.values.shape.lists(), trace.values.name
    assert [(names[v], tuple(shape[v])) for v in trace.weights()] == parameters


def test_same_operators_in_the_same_order(both):
    _, forward, backward, trace = both
    assert computing(our_rows(trace, Phase.FORWARD)) == computing(forward)
    assert computing(our_rows(trace, Phase.BACKWARD)) == computing(backward)


def test_windows_have_to_fit():
    with pytest.raises(InputError, match="a window of 7 is wider than the 4 places of stage 3: give a larger image_s"):
        model("swin-t", image_size=64)
    with pytest.raises(InputError, match="num_heads 5 does not divide the width of its stage"):
        model("swin", configuration={**SMALL, "num_heads": (3, 5)})
