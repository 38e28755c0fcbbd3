"""An encoder and a decoder against Hugging Face's own, called on fake tensors."""

from __future__ import annotations

import pytest

from tests.sources.models.test_against_torch import BATCH, LENGTH, Log, our_rows
from tests.sources.models.test_against_transformers import computing
from triosim.sources.modelling import model
from triosim.trace.tables import Phase

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
initialization = pytest.importorskip("transformers.initialization")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional as F  # noqa: E402

SMALL = {
    "d_model": 64, "d_kv": 8, "d_ff": 96, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4, "vocab_size": 120,
    "dropout_rate": 0.0,
}  # fmt: skip


@pytest.fixture(params=["relu", "gated-gelu"], scope="module")
def both(request):
    """Their parameters, forward and backward rows, and our trace."""
    configuration = {**SMALL, "feed_forward_proj": request.param}
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with FakeTensorMode(), initialization.no_init_weights():
            config = transformers.T5Config(**configuration)
            config._attn_implementation = "eager"
            net = transformers.T5ForConditionalGeneration(config)
            net.tie_weights()
            for module in net.modules():
                if type(module).__name__ == "T5LayerNorm":  # one kernel, as ours
                    module.forward = lambda x, w=module.weight: F.layer_norm(x, (x.shape[-1],), w)
                if type(module).__name__ == "T5DenseGatedActDense":
                    module.act = torch.nn.GELU("tanh")
            net.train()
            tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
            with Log() as log:
                scores = net(input_ids=tokens, decoder_input_ids=tokens, use_cache=False).logits
                loss = F.cross_entropy(scores.view(-1, scores.shape[-1]).float(), tokens.view(-1))
                forward = len(log.rows)
                loss.backward()
            parameters = [(name, tuple(p.shape)) for name, p in net.named_parameters()]
    finally:
        torch.set_default_dtype(before)
    trace = model("t5", batch_size=BATCH, sequence_length=LENGTH, configuration=configuration)
    return parameters, log.rows[:forward], log.rows[forward:], trace


def test_same_parameters_in_the_same_order(both):
    parameters, _, _, trace = both
    shape, names = trace.values.shape.lists(), trace.values.name
    assert [(names[v], tuple(shape[v])) for v in trace.weights()] == parameters


def test_same_operators_in_the_same_order(both):
    _, forward, backward, trace = both
    assert kept(our_rows(trace, Phase.FORWARD)) == kept(forward)
    assert kept(our_rows(trace, Phase.BACKWARD)) == kept(backward)


def kept(rows) -> list[tuple[str, tuple[int, ...]]]:
    """All but what counts distances and makes masks, which is as wide as it is long, and the product of scores by 1."""
    of_scores = (BATCH * SMALL["num_heads"] * LENGTH, LENGTH)
    counting = {(LENGTH, LENGTH), (LENGTH, 1), (1, LENGTH)}
    return [row for row in computing(rows) if row[1] not in counting and row != ("mul", of_scores)]
