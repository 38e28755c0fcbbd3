"""Proximal policy optimization with a critic (Schulman et al., arXiv:1707.06347; Ouyang et al., arXiv:2203.02155)."""

from __future__ import annotations

from typing import Annotated, Literal

from triosim.core.dataclass import dataclass
from triosim.core.options import AtLeast
from triosim.core.registry import registered
from triosim.posttraining.recipe import (
    AS_POLICY,
    CRITIC,
    POLICY,
    PhaseOfStep,
    PostTraining,
    StepModel,
    reference_model,
    reward_model,
    scoring_phases,
)


@registered
@dataclass(frozen=True)
class Proximal(PostTraining):
    """Four models: the policy, its reference, a reward model and a critic that learns the value of each token.

    Attributes:
        responses: answers to each prompt.
        minibatches: updates over the answers of a step, of policy and critic.
        epochs: how often they are gone over.
        critic: name of the model that learns values, ``policy`` for the policy's own layers.
        reward: name of the model that scores answers, ``policy`` for the policy's own layers, or ``rule``.
        old: as of ``grpo``.
        reference: as of ``dpo``.
    """

    rolls_out = True
    responses: Annotated[int, AtLeast(1)] = 1
    minibatches: Annotated[int, AtLeast(1)] = 1
    epochs: Annotated[int, AtLeast(1)] = 1
    critic: str = AS_POLICY
    reward: str = AS_POLICY
    old: bool = True
    reference: Literal["auto", "model", "adapters", "none"] = "auto"

    @property
    def answers(self) -> int:
        """To each prompt."""
        return self.responses

    def models(self, adapters: bool) -> tuple[StepModel, ...]:
        """Policy, reference, reward model, critic."""
        return (
            StepModel(POLICY, trained=True), *reference_model(self.reference, adapters), *reward_model(self.reward),
            StepModel(CRITIC, self.critic, scores=True, trained=True),
        )  # fmt: skip

    def phases(self) -> tuple[PhaseOfStep, ...]:
        """Forwards, then the updates of critic and policy."""
        return (
            *scoring_phases(self.reward, self.old, self.reference),
            PhaseOfStep("values", CRITIC),
            PhaseOfStep("critic updates", CRITIC, True, self.minibatches, self.epochs),
            PhaseOfStep("policy updates", POLICY, True, self.minibatches, self.epochs),
        )
