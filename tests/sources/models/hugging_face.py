"""Families that read no text or read it both ways, as Hugging Face's ``transformers`` has them, small."""

from __future__ import annotations

from typing import Any

import pytest

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "roberta": {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
        "vocab_size": 120, "max_position_embeddings": 34, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0, "type_vocab_size": 1,
    },
    "vit": {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 64,
        "patch_size": 16, "num_labels": 10,
    },
}  # fmt: skip
CLASSES = {"roberta": "RobertaForMaskedLM", "vit": "ViTForImageClassification"}


def network(family: str, configuration: dict[str, Any]) -> Any:
    """The model of a family, without values for its parameters; calling it gives its scores."""
    transformers = pytest.importorskip("transformers")
    base = getattr(transformers, CLASSES[family])
    config = base.config_class(**configuration, attn_implementation="sdpa")

    class Scores(base):  # type: ignore[misc, valid-type]
        def initialize_weights(self) -> None:
            """Nothing: fake tensors have no values to choose."""

        def forward(self, x: Any) -> Any:
            return super().forward(x).logits

    return Scores(config)
