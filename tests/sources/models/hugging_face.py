"""Families that read no text or read it both ways, as Hugging Face's ``transformers`` has them, small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "roberta": {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
        "vocab_size": 120, "max_position_embeddings": 34, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0, "type_vocab_size": 1,
    },
    "electra": {
        "hidden_size": 64, "embedding_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128, "vocab_size": 120, "max_position_embeddings": 32, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    "albert": {
        "hidden_size": 64, "embedding_size": 32, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2,
        "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 120, "max_position_embeddings": 32,
        "hidden_act": "gelu",
    },
    "distilbert": {
        "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "vocab_size": 120, "max_position_embeddings": 32,
        "dropout": 0.0, "attention_dropout": 0.0,
    },
    "vit": {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 64,
        "patch_size": 16, "num_labels": 10,
    },
    "resnet_hf": {"depths": [2, 1, 2], "hidden_sizes": [32, 64, 128], "embedding_size": 16, "num_labels": 10},
    "convnext": {"depths": [2, 2, 2], "hidden_sizes": [16, 24, 32], "num_labels": 10},
}  # fmt: skip
CLASSES = {
    "albert": "AlbertForMaskedLM", "convnext": "ConvNextForImageClassification", "distilbert": "DistilBertForMaskedLM",
    "electra": "ElectraForMaskedLM", "resnet_hf": "ResNetForImageClassification", "roberta": "RobertaForMaskedLM",
    "vit": "ViTForImageClassification",
}  # fmt: skip


def network(family: str, configuration: dict[str, Any]) -> Any:
    """The model of a family, without values for its parameters; calling it gives its scores."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    initialization = pytest.importorskip("transformers.initialization")
    base = getattr(transformers, CLASSES[family])
    stages = {"num_stages": len(configuration["depths"])} if "depths" in configuration else {}
    config = base.config_class(**configuration, **stages)

    if base._supports_sdpa:
        config._attn_implementation = "sdpa"

    class Scores(base):  # type: ignore[misc, valid-type]
        def forward(self, x: Any) -> Any:
            return super().forward(x).logits

    with initialization.no_init_weights(), mock.patch.object(torch, "linspace", return_value=Rates()):
        net = Scores(config)  # fake tensors have no values to choose
    net.tie_weights()
    return net


class Rates:
    """Rates of 0 at which blocks are dropped, which a fake tensor cannot tell."""

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth

    def split(self, depths: Sequence[int]) -> list[Rates]:
        return [Rates(depth) for depth in depths]

    def tolist(self) -> list[float]:
        return [0.0] * self.depth
