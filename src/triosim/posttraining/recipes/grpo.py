"""Group relative policy optimization (Shao et al., arXiv:2402.03300, section 4.1): answers to one prompt compared."""

from __future__ import annotations

from typing import Annotated, Literal

from triosim.core.dataclass import dataclass
from triosim.core.options import AtLeast
from triosim.core.registry import registered
from triosim.posttraining.recipe import (
    POLICY,
    RULE,
    PhaseOfStep,
    PostTraining,
    StepModel,
    reference_model,
    reward_model,
    scoring_phases,
)


@registered
@dataclass(frozen=True)
class GroupRelative(PostTraining):
    """No critic: the mean reward of a prompt's answers takes its place.

    Attributes:
        responses: answers to each prompt.
        minibatches: updates over the answers of a step.
        epochs: how often they are gone over.
        reward: name of a model that scores answers; ``rule`` where a rule does, in no time of the devices.
        old: whether the policy's log-probabilities of its answers are worked out before the updates; off takes those of
            the engine that wrote them.
        reference: as of ``dpo``; ``none`` where nothing keeps the policy near.
    """

    rolls_out = True
    responses: Annotated[int, AtLeast(1)] = 8
    minibatches: Annotated[int, AtLeast(1)] = 1
    epochs: Annotated[int, AtLeast(1)] = 1
    reward: str = RULE
    old: bool = True
    reference: Literal["auto", "model", "adapters", "none"] = "auto"

    @property
    def answers(self) -> int:
        """Those of a group."""
        return self.responses

    def models(self, adapters: bool) -> tuple[StepModel, ...]:
        """Policy, reference, and the reward model where there is one."""
        return (StepModel(POLICY, trained=True), *reference_model(self.reference, adapters), *reward_model(self.reward))

    def phases(self) -> tuple[PhaseOfStep, ...]:
        """Forwards, then the updates."""
        updates = PhaseOfStep("policy updates", POLICY, True, self.minibatches, self.epochs)
        return (*scoring_phases(self.reward, self.old, self.reference), updates)
