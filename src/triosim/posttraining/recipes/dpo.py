"""Direct preference optimization (Rafailov et al., arXiv:2305.18290): of two answers one is preferred."""

from __future__ import annotations

from typing import Literal

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.posttraining.recipe import POLICY, REFERENCE, PhaseOfStep, PostTraining, StepModel, reference_model


@registered
@dataclass(frozen=True)
class DirectPreference(PostTraining):
    """The chosen and the rejected answer go through the model as one batch, as in Hugging Face's ``trl``.

    The loss compares log-probabilities of policy and reference (section 4, equation 7), so the reference's are worked
    out first, without gradients.

    Attributes:
        reference: ``model`` for frozen weights of its own, ``adapters`` for the policy without its adapters, ``none``
            where its log-probabilities are known before the training; ``auto`` takes adapters where there are some.
    """

    reference: Literal["auto", "model", "adapters", "none"] = "auto"

    @property
    def answers(self) -> int:
        """Chosen and rejected."""
        return 2

    def models(self, adapters: bool) -> tuple[StepModel, ...]:
        """Policy and reference."""
        return (StepModel(POLICY, trained=True), *reference_model(self.reference, adapters))

    def phases(self) -> tuple[PhaseOfStep, ...]:
        """Forward of the reference, update of the policy."""
        before = () if self.reference == "none" else (PhaseOfStep("reference", REFERENCE),)
        return (*before, PhaseOfStep("policy update", POLICY, trains=True))
