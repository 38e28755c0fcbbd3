"""Attention within chunks, in three of four blocks."""

from __future__ import annotations

import json

import pytest

from triosim.core.errors import InputError
from triosim.sources.modelling import model
from triosim.sources.models.llama4 import chunk_window

SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "intermediate_size_mlp": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50, "attention_chunk_size": 64,
}  # fmt: skip


@pytest.mark.parametrize(("length", "chunk"), [(128, 64), (192, 64), (4096, 64), (32768, 8192)])
def test_the_window_has_as_many_pairs_as_the_chunks(length, chunk):
    window = chunk_window(length, chunk)
    pairs = window * length - window * (window - 1) // 2
    assert pairs == pytest.approx(length // chunk * (chunk * (chunk + 1) // 2), rel=0.02)


@pytest.mark.parametrize(("length", "chunk"), [(64, 64), (10, 64), (100, 0)])
def test_one_chunk_is_no_window(length, chunk):
    assert chunk_window(length, chunk) == 0


def test_the_last_of_four_blocks_sees_all():
    trace = model("llama4", sequence_length=128, configuration=SMALL, training=False)
    rows = [row for row, name in enumerate(trace.operators.name) if "attention" in name]
    seen = [json.loads(trace.operators.args[row]).get("window_size_left") for row in rows]
    assert seen == [chunk_window(128, 64) - 1] * 3 + [None]


def test_the_text_model_of_a_nested_configuration(tmp_path):
    text = {"model_type": "llama4_text", "rope_theta": 500000.0, **SMALL}
    config = {"model_type": "llama4", "text_config": text, "vision_config": {"hidden_size": 8}}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    trace = model(str(file), sequence_length=64)
    assert len(trace.weights()) == len(model("llama4", sequence_length=64, configuration=SMALL).weights())
    assert trace.meta.notes == (
        f"{file}: of model_type 'llama4' the text model alone (text_config), without vision_config",
        f"{file}: passed over rope_theta",
    )


def test_neither_it_nor_its_text_is_known(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "seen", "text_config": {"model_type": "read"}}))
    with pytest.raises(InputError, match=r"no family reads model_type 'read', only .*bert"):
        model(str(file))


def test_many_keys_that_are_passed_over(tmp_path):
    file = tmp_path / "config.json"
    keys = {f"key_{at}": at for at in range(10)}
    file.write_text(json.dumps({"model_type": "llama4_text", **SMALL, **keys}))
    (note,) = model(str(file), sequence_length=64).meta.notes
    assert note.endswith("passed over key_0, key_1, key_2, key_3, key_4, key_5, key_6, key_7 and 2 more")
