"""What tells replaced words from others against Hugging Face's own, called on fake tensors."""

from __future__ import annotations

import json

import pytest

from tests.sources.models.hugging_face import CONFIGURATIONS
from tests.sources.models.test_against_torch import BATCH, LENGTH, Log, computing, our_rows
from triosim.sources.modelling import model
from triosim.trace.tables import Phase

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
initialization = pytest.importorskip("transformers.initialization")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

SMALL = CONFIGURATIONS["electra"]


@pytest.fixture(params=[32, 64], scope="module")
def both(request, tmp_path_factory):
    """Their parameters, forward and backward rows, and our trace; with embeddings as wide as blocks, too."""
    configuration = {**SMALL, "embedding_size": request.param}
    with FakeTensorMode(), initialization.no_init_weights():
        config = transformers.ElectraConfig(**configuration)
        config._attn_implementation = "sdpa"
        net = transformers.ElectraForPreTraining(config)
        net.train()
        tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
        with Log() as log:
            loss = net(tokens, labels=tokens).loss
            forward = len(log.rows)
            loss.backward()
        parameters = [(name, tuple(p.shape)) for name, p in net.named_parameters()]
    file = tmp_path_factory.mktemp("model") / "config.json"
    named = {"model_type": "electra", "architectures": ["ElectraForPreTraining"]}
    file.write_text(json.dumps({**named, **configuration}))
    trace = model(str(file), batch_size=BATCH, sequence_length=LENGTH, precision="float32")
    return parameters, log.rows[:forward], log.rows[forward:], trace


def test_same_parameters_in_the_same_order(both):
    parameters, _, _, trace = both
    shape, names = trace.values.shape.lists(), trace.values.name
    assert [(names[v], tuple(shape[v])) for v in trace.weights()] == parameters


def test_same_operators_in_the_same_order(both):
    _, forward, backward, trace = both
    assert computing(our_rows(trace, Phase.FORWARD), False) == computing(forward, False)
    assert computing(our_rows(trace, Phase.BACKWARD), False) == computing(backward, False)
