"""The text encoders of diffusion models against Hugging Face's own, called on fake tensors."""

from __future__ import annotations

import json

import pytest

from tests.sources.models.test_against_torch import BATCH, LENGTH, Log, our_rows
from tests.sources.models.test_against_transformers import computing
from tests.sources.models.test_t5 import SMALL, kept
from triosim.core.errors import InputError
from triosim.sources.modelling import model
from triosim.trace.tables import Phase

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
initialization = pytest.importorskip("transformers.initialization")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional as F  # noqa: E402

CLIP = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 120,
    "max_position_embeddings": LENGTH, "projection_dim": 48, "eos_token_id": 2,
}  # fmt: skip
T5 = {**SMALL, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
CASES = {
    "CLIP": ("CLIPTextModel", "clip_text_model", CLIP, "last_hidden_state", computing),
    "CLIP, projected": ("CLIPTextModelWithProjection", "clip_text_model", CLIP, "text_embeds", computing),
    "OpenCLIP": (
        "CLIPTextModelWithProjection", "clip_text_model", {**CLIP, "hidden_act": "gelu"}, "text_embeds", computing,
    ),
    "T5": ("T5EncoderModel", "t5", T5, "last_hidden_state", kept),
}  # fmt: skip


def theirs(name, configuration, result):
    """Parameters, forward and backward rows."""
    cls = getattr(transformers, name)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), initialization.no_init_weights():
            config = cls.config_class(**configuration)
            config._attn_implementation = "eager" if name.startswith("T5") else "sdpa"
            net = cls(config)
            net.tie_weights()
            for module in net.modules():
                if type(module).__name__ == "T5LayerNorm":  # one kernel, as ours
                    module.forward = lambda x, w=module.weight: F.layer_norm(x, (x.shape[-1],), w)
                if type(module).__name__ == "T5DenseGatedActDense":
                    module.act = torch.nn.GELU("tanh")
            net.train()
            tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
            with Log() as log:
                y = net(input_ids=tokens)[result]
                loss = F.mse_loss(y.float(), torch.empty_like(y).float())
                forward = len(log.rows)
                loss.backward()
            parameters = [(name, tuple(p.shape)) for name, p in net.named_parameters()]
    finally:
        torch.set_default_dtype(before)
    return parameters, log.rows[:forward], log.rows[forward:]


@pytest.fixture(params=CASES, scope="module")
def both(request, tmp_path_factory):
    name, kind, configuration, result, rows = CASES[request.param]
    file = tmp_path_factory.mktemp("model") / "config.json"
    file.write_text(json.dumps({"model_type": kind, "architectures": [name], **configuration}))
    trace = model(str(file), batch_size=BATCH, sequence_length=LENGTH)
    return theirs(name, configuration, result), trace, rows


def test_same_parameters_in_the_same_order(both):
    (parameters, _, _), trace, _ = both
    shape, names = trace.values.shape.lists(), trace.values.name
    ours = [(names[v], tuple(shape[v])) for v in trace.weights()]
    if not any(name.startswith(("text_model.", "shared.")) for name, _ in parameters):
        ours = [(name.removeprefix("text_model."), size) for name, size in ours]  # files have it, newer classes not
    assert ours == parameters


def test_same_operators_in_the_same_order(both):
    (_, forward, backward), trace, rows = both
    assert rows(our_rows(trace, Phase.FORWARD)) == rows(forward)
    assert rows(our_rows(trace, Phase.BACKWARD)) == rows(backward)


def test_what_reads_texts_says_so():
    with pytest.raises(InputError, match="hidden_act must be quick_gelu or gelu"):
        model("clip-vit-l-14-text", configuration={"hidden_act": "relu"})
    with pytest.raises(InputError, match="sequence length 78 is more than the 77 positions"):
        model("clip-vit-l-14-text", sequence_length=78)


@pytest.mark.parametrize(
    ("name", "states"),
    [("clip-vit-l-14-text", (1, 768)), ("openclip-bigg-14-text", (1, 1280)), ("t5-xxl-encoder", (1, 512, 4096))],
)
def test_encoders_end_in_what_diffusion_models_read(name, states):
    trace = model(name, training=False)
    assert tuple(trace.values.shape[int(trace.operators.outputs[len(trace) - 1][0])].tolist()) == states
