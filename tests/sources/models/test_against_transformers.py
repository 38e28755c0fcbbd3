"""Parameters and operators of every family against Hugging Face's own model, called on fake tensors."""

from __future__ import annotations

import pytest

from tests.sources.models.test_against_torch import BATCH, BOOKKEEPING, LENGTH, Log, our_rows, plain
from triosim.operators import kind
from triosim.sources.modelling import model
from triosim.trace.tables import Phase

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional as F  # noqa: E402

CLASSES = 120
LLAMA = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": CLASSES,
}  # fmt: skip

CASES = {
    "llama": ("llama", LLAMA),
    "mistral": ("mistral", {**LLAMA, "sliding_window": 8}),
    "qwen2": ("qwen2", LLAMA),
    "qwen3": ("qwen3", {**LLAMA, "head_dim": 32}),
    "mixtral": ("mixtral", {**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "qwen3_moe",
        {**LLAMA, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    ),
}  # fmt: skip

MASK = {"where", "scalar_tensor", "bitwise_and", "new_ones", "le", "eq", "expand"}


def theirs(model_type: str, configuration: dict):
    """Parameters in order, and the rows of the forward and of the backward."""
    config = transformers.AutoConfig.for_model(model_type, **configuration)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            net = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
            for module in net.modules():
                if type(module).__name__.endswith("RMSNorm"):  # one kernel, as ours
                    module.forward = lambda x, w=module.weight: F.layer_norm(x, (x.shape[-1],), w)
            net.train()
            tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
            with Log() as log:
                scores = net(tokens, use_cache=False).logits
                forward = len(log.rows)
                F.cross_entropy(scores.view(-1, scores.shape[-1]).float(), tokens.view(-1)).backward()
    finally:
        torch.set_default_dtype(before)
    parameters = [(name, tuple(p.shape)) for name, p in net.named_parameters()]
    return parameters, log.rows[:forward], log.rows[forward:]


SAME = {"_fused_rms_norm": "native_layer_norm", "_fused_rms_norm_backward": "native_layer_norm_backward"}


def computing(rows) -> list[tuple[str, tuple[int, ...]]]:
    """What computes, in order: name and shape of the first output; masks are left out, and the heads that are repeated
    on a CPU for lack of a kernel for grouped ones."""
    found = []
    for name, inputs, outputs in rows:
        name = SAME.get(name, plain(name))
        repeated = any(shapes and len(shapes[0]) == 5 for shapes in (inputs, outputs))
        is_view = kind("aten::" + name) == "view" and name != "slice_backward"
        if not (is_view or name in BOOKKEEPING or name in MASK or repeated):
            found.append((name, outputs[0] if outputs else ()))
    return found


def of_model(rows) -> list[tuple[str, tuple[int, ...]]]:
    """From the first norm or product to the scores, in either direction."""
    rows = computing(rows)
    loss = ("_log_softmax", "nll_loss_forward", "nll_loss_backward", "_log_softmax_backward_data", "ones_like")
    rows = [row for row in rows if row[0] not in loss and row != ("_to_copy", (BATCH * LENGTH, CLASSES))]
    return rows[next(at for at, (name, _) in enumerate(rows) if name in ("native_layer_norm", "mm", "addmm")) :]


@pytest.fixture(params=CASES, scope="module")
def both(request):
    model_type, configuration = CASES[request.param]
    trace = model(model_type, batch_size=BATCH, sequence_length=LENGTH, configuration=configuration)
    return theirs(model_type, configuration), trace


def test_same_parameters_in_the_same_order(both):
    (parameters, _, _), trace = both
    shape, names = trace.values.shape.lists(), trace.values.name
    assert [(names[v], tuple(shape[v])) for v in trace.weights()] == parameters


def test_same_operators_in_the_same_order(both):
    (_, forward, backward), trace = both
    assert of_model(our_rows(trace, Phase.FORWARD)) == of_model(forward)
    assert of_model(our_rows(trace, Phase.BACKWARD)) == of_model(backward)
