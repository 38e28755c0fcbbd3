"""What Qwen models share: a window that a configuration turns on, and their experts."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.sources.models._experts import ExpertRouter, Experts, is_sparse
from triosim.sources.models._family import Blocks, Count
from triosim.sources.models._llama_like import LlamaLike, Windowed
from triosim.sources.models._parts import FeedForward


@dataclass(frozen=True)
class QwenLike(Windowed):
    """A Llama with Qwen's window."""

    use_sliding_window: bool = False

    left_out: ClassVar = {"sliding_window": 4096}

    def window(self, layer: int) -> int:
        return super().window(layer) if self.use_sliding_window else 0


@dataclass(frozen=True)
class DenseQwen(QwenLike):
    """Whose later blocks have the window."""

    max_window_layers: Count = 28

    def usual_window(self, layer: int) -> bool:
        return layer >= self.max_window_layers


@dataclass(frozen=True)
class SoftmaxExperts(LlamaLike):
    """With experts that a softmax over all of them chooses, whose weights are cast to the type of the tokens."""

    num_experts: int = 128
    num_experts_per_tok: int = 8
    norm_topk_prob: bool = False

    def problem(self) -> str:
        return super().problem() or self._router.problem()

    @property
    def _router(self) -> ExpertRouter:
        return ExpertRouter(
            self.hidden_size, self.num_experts, self.num_experts_per_tok, f"{self.layout.kind}TopKRouter",
            normalised=self.norm_topk_prob, rounded=True,
        )  # fmt: skip


@dataclass(frozen=True)
class QwenExperts(SoftmaxExperts):
    """In all blocks, or every n-th but for some that are dense."""

    moe_intermediate_size: int = 768
    decoder_sparse_step: int = 1
    mlp_only_layers: Blocks = ()

    def experts(self) -> Experts:
        """The feed-forward part of a block that has them."""
        kind = self.layout.kind
        return Experts(
            self._router, self.moe_intermediate_size, f"{kind}SparseMoeBlock", f"{kind}Experts", router_first=False
        )

    def feed_forward(self, layer: int) -> FeedForward | Experts:
        if is_sparse(layer, self.decoder_sparse_step, self.mlp_only_layers):
            return self.experts()
        dense: FeedForward = super().feed_forward(layer)
        return dense


@dataclass(frozen=True)
class SharedExpert(QwenExperts):
    """Beside which every token passes a shared one, weighed by a gate."""

    shared_expert_intermediate_size: int = 512

    def experts(self) -> Experts:
        shared = FeedForward(self.hidden_size, self.shared_expert_intermediate_size, f"{self.layout.kind}MLP")
        return replace(super().experts(), router_first=True, shared=shared, shared_gate=True)
