"""Switch Transformers: a T5 in whose blocks a token takes one of many experts (Fedus et al., arXiv:2101.03961).

No token is dropped, whatever ``expert_capacity`` says: what experts have no room for is for the plan to say.  Module
names are those of Hugging Face's ``SwitchTransformersForConditionalGeneration``, which keeps each expert's weights
apart where here those of a block are one tensor.
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models.t5 import T5


@registered
@dataclass(frozen=True)
class SwitchTransformers(T5):
    """Configuration, named as in Hugging Face's ``config.json``."""

    num_experts: int = 8
    num_sparse_encoder_layers: int = 3
    num_sparse_decoder_layers: int = 3

    inner: ClassVar = "mlp"
    architectures: ClassVar = {"SwitchTransformersEncoderModel": {"encoder_only": True}}
    model_types: ClassVar = ("switch_transformers",)
    fixed: ClassVar = {"router_bias": False, "router_dtype": "float32", "router_type": "tokens_masked"}

    def problem(self) -> str:
        for stack, (layers, sparse) in self._depths.items():
            if sparse > layers:
                return f"num_sparse_{stack}_layers {sparse} is more than the {layers} layers that there are"
        return super().problem() or ("" if self.feed_forward_proj == "relu" else "feed_forward_proj must be relu")

    @property
    def _depths(self) -> dict[str, tuple[int, int]]:
        """Blocks of each stack, and how many of them have experts."""
        decoder = self.num_decoder_layers or self.num_layers
        return {
            "encoder": (self.num_layers, self.num_sparse_encoder_layers),
            "decoder": (decoder, self.num_sparse_decoder_layers),
        }

    def mixture(self, stack: str, layer: int) -> Experts | None:
        layers, sparse = self._depths[stack]
        step = layers // sparse
        if step > 1 and layer % step != 1:
            return None
        router = ExpertRouter(
            self.d_model, self.num_experts, 1, "SwitchTransformersTop1Router", name="router.classifier",
            normalised=False, rounded=True, full_precision=True,
        )  # fmt: skip
        return Experts(
            router, self.d_ff, "SwitchTransformersSparseMLP", "SwitchTransformersExperts", "relu", gated=False,
            names=("wi", "wo"), dropout=self.dropout_rate,
        )  # fmt: skip
