"""An encoder of speech and a decoder of text against Hugging Face's own, called on fake tensors."""

from __future__ import annotations

import json
from unittest import mock

import pytest

from tests.sources.models.test_against_torch import BATCH, LENGTH, Log, our_rows
from tests.sources.models.test_against_transformers import computing
from triosim.core.errors import InputError
from triosim.sources.modelling import model, presets
from triosim.trace.tables import Category, Phase

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
initialization = pytest.importorskip("transformers.initialization")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional as F  # noqa: E402

SMALL = {
    "d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_layers": 3,
    "decoder_attention_heads": 2, "decoder_ffn_dim": 128, "vocab_size": 120, "num_mel_bins": 16,
    "max_source_positions": 40, "max_target_positions": 32,
}  # fmt: skip


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Their parameters, forward and backward rows, and our trace."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    modelling = transformers.models.whisper.modeling_whisper
    try:
        with (
            FakeTensorMode(), initialization.no_init_weights(),
            mock.patch.object(modelling, "create_causal_mask", return_value=None),  # as of tokens without padding
        ):  # fmt: skip
            config = transformers.WhisperConfig(**SMALL, pad_token_id=0, bos_token_id=1, eos_token_id=2)
            config._attn_implementation = "sdpa"
            net = transformers.WhisperForConditionalGeneration(config)
            net.tie_weights()
            net.train()
            tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
            speech = torch.empty(BATCH, SMALL["num_mel_bins"], 2 * SMALL["max_source_positions"])
            with Log() as log:
                scores = net(input_features=speech, decoder_input_ids=tokens, use_cache=False).logits
                loss = F.cross_entropy(scores.view(-1, scores.shape[-1]).float(), tokens.view(-1))
                forward = len(log.rows)
                loss.backward()
            parameters = [(name, tuple(p.shape)) for name, p in net.named_parameters()]
    finally:
        torch.set_default_dtype(before)
    file = tmp_path_factory.mktemp("model") / "config.json"
    file.write_text(json.dumps({"model_type": "whisper", **SMALL}))
    trace = model(str(file), batch_size=BATCH, sequence_length=LENGTH)
    return parameters, log.rows[:forward], log.rows[forward:], trace


def test_same_parameters_in_the_same_order(both):
    parameters, _, _, trace = both
    shape, names = trace.values.shape.lists(), trace.values.name
    assert [(names[v], tuple(shape[v])) for v in trace.weights()] == parameters


def test_same_operators_in_the_same_order(both):
    _, forward, backward, trace = both
    assert computing(our_rows(trace, Phase.FORWARD)) == computing(forward)
    assert computing(our_rows(trace, Phase.BACKWARD)) == computing(backward)


def test_positions_of_the_encoder_are_not_trained(both):
    *_, trace = both
    values = trace.values
    of = {values.name[v] for v in values.of[values.category == Category.GRADIENT]}
    missing = {values.name[v] for v in trace.weights()} - of
    assert missing == {"model.encoder.embed_positions.weight"}


def test_its_decoder_has_no_more_positions():
    assert presets()["whisper-large-v3"].parameters == 1_543_490_560
    with pytest.raises(InputError, match="sequence length 449 is more than the 448 positions"):
        model("whisper-tiny", sequence_length=449)


@pytest.mark.parametrize("attention", ["unfused", "flash2"])
def test_keys_are_more_than_queries(attention):
    trace = model("whisper-tiny", sequence_length=16, attention=attention, configuration={"encoder_layers": 1})
    shapes = {tuple(shape) for shape in trace.values.shape.lists()}
    assert ((6, 16, 1500) in shapes) == (attention == "unfused")
