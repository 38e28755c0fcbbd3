"""Bytes that stay between forward and backward, and from step to step, against our recorder on fake tensors."""

from __future__ import annotations

import json
from unittest import mock

import pytest

from tests.sources.models.test_against_torch import BATCH, LENGTH, bytes_of
from tests.sources.models.test_against_transformers import MPT
from tests.sources.models.test_swin import SMALL as SWIN
from tests.sources.models.test_whisper import SMALL as WHISPER
from triosim.sources.modelling import model
from triosim.trace.tables import Category

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
initialization = pytest.importorskip("transformers.initialization")

from torch.nn import functional as F  # noqa: E402

IMAGE = 56
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
CASES = {
    "mpt": ("MptForCausalLM", MPT, {**MPT, **SPECIAL}, {"sequence_length": LENGTH}),
    "whisper": ("WhisperForConditionalGeneration", WHISPER, {**WHISPER, **SPECIAL}, {"sequence_length": LENGTH}),
    "swin": (
        "SwinForImageClassification", {**SWIN, "num_labels": 10}, {**SWIN, "num_labels": 10, "image_size": IMAGE},
        {"image_size": IMAGE},
    ),
}  # fmt: skip
"""Class, configuration of a file, what the class is told, and the size of ours."""


def inputs(kind):
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    if kind == "mpt":
        return {"input_ids": tokens, "use_cache": False}, tokens
    if kind == "swin":
        return {"pixel_values": torch.empty(BATCH, 3, IMAGE, IMAGE)}, torch.zeros(BATCH, dtype=torch.long)
    speech = torch.empty(BATCH, WHISPER["num_mel_bins"], 2 * WHISPER["max_source_positions"])
    return {"input_features": speech, "decoder_input_ids": tokens, "use_cache": False}, tokens


@pytest.mark.parametrize("kind", CASES)
def test_same_bytes_as_the_recorder_counts(kind, tmp_path):
    recording = pytest.importorskip("triosim.sources.record.function", reason="the recorder is not here")
    name, configuration, told, size = CASES[kind]
    cls = getattr(transformers, name)
    with recording.fake(), initialization.no_init_weights():
        config = cls.config_class(**told)
        config._attn_implementation = "sdpa" if kind == "whisper" else "eager"
        net = cls(config)
        net.tie_weights()
        net.train()
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, foreach=True)
        given, labels = inputs(kind)

    def step(given, labels):
        scores = net(**given).logits
        F.cross_entropy(scores.view(-1, scores.shape[-1]), labels.view(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()

    whisper = transformers.models.whisper.modeling_whisper
    with mock.patch.object(whisper, "create_causal_mask", return_value=None):  # as of tokens without padding
        recorded = recording.record(step, given, labels, device="fake")
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": kind, **configuration}))
    built = model(str(file), batch_size=BATCH, precision="float32", optimizer="sgd", fused_optimizer=False, **size)
    for category in (Category.WEIGHT, Category.ACTIVATION, Category.OPTIMIZER_STATE):
        assert bytes_of(built, category) == bytes_of(recorded, category), category
