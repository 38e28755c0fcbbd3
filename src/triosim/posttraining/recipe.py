"""Recipes of post-training: which models take part in a step, and which phases it has.

A recipe is one file of :mod:`triosim.posttraining.recipes`.  The phases of a step come one after another on the same
devices; each is a pass of one model over all samples of the step, or its updates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.core.options import configured
from triosim.core.registry import Registry

POLICY, REFERENCE, CRITIC, REWARD = "policy", "reference", "critic", "reward"
"""Models of a step, by what they are for."""
AS_POLICY = "policy"
"""Name of a model that has the policy's own layers."""
RULE = "rule"
"""What scores answers where no model does; it takes no time of the devices."""


@dataclass(frozen=True)
class StepModel:
    """A model that takes part.

    Attributes:
        name: what it is for.
        of: which model it is, as a workload is named; :data:`AS_POLICY` for the policy's own layers.
        scores: whether it gives one number for each token instead of scores of the vocabulary.
        trained: whether it has gradients and an optimizer.
        within_policy: whether it is the policy without its adapters, and so takes no memory of its own.
    """

    name: str
    of: str = AS_POLICY
    scores: bool = False
    trained: bool = False
    within_policy: bool = False


@dataclass(frozen=True)
class PhaseOfStep:
    """A phase of a step.

    Attributes:
        name: for people.
        model: name of the model that runs.
        trains: whether it runs forward, backward and optimizer; otherwise the forward alone, without gradients.
        updates: for one that trains, into how many parts the samples are divided, each with an update of its own.
        epochs: how often it goes over all samples.
    """

    name: str
    model: str
    trains: bool = False
    updates: int = 1
    epochs: int = 1


class PostTraining(ABC):
    """A recipe; its options are the fields of a dataclass.

    Attributes:
        rolls_out: whether the policy writes the answers within the step.
    """

    rolls_out: ClassVar[bool] = False

    @property
    @abstractmethod
    def answers(self) -> int:
        """Samples of each prompt."""

    @abstractmethod
    def models(self, adapters: bool) -> tuple[StepModel, ...]:
        """Models that take part, the policy first.

        Args:
            adapters: whether the policy is trained by adapters beside frozen weights.

        Raises:
            InputError: an option needs adapters, and there are none.
        """

    @abstractmethod
    def phases(self) -> tuple[PhaseOfStep, ...]:
        """Phases in order, but for the roll-out, which comes first."""


RECIPES: Registry[PostTraining] = Registry(
    "triosim.posttraining.recipes", "triosim.posttraining", "post-training", PostTraining
)
"""Recipes, by the names of their files."""


def recipe(text: str) -> PostTraining:
    """A recipe as it is typed: ``dpo`` or ``grpo,responses=8,minibatches=4``.

    Raises:
        InputError: there is no such recipe or option.
    """
    name, *options = text.split(",")
    given: dict[str, str] = {}
    for option in options:
        key, equals, value = (part.strip() for part in option.partition("="))
        if not (key and equals and value):
            raise InputError(f"post {name}: {quoted(option)} is no option: give a name and a value, as responses=8")
        given[key] = value
    return configured(RECIPES.get(name.strip()), given, f"post {name.strip()}")


def reference_model(how: str, adapters: bool) -> tuple[StepModel, ...]:
    """The model that the policy is kept near to, where the step runs one.

    Args:
        how: ``auto``, ``model``, ``adapters`` or ``none``.
        adapters: as of :meth:`PostTraining.models`.

    Raises:
        InputError: it is the policy without its adapters, and that has none.
    """
    if how == "none":
        return ()
    if how == "adapters" and not adapters:
        raise InputError("post: reference=adapters is the policy without its adapters: give --lora, or reference=model")
    return (StepModel(REFERENCE, within_policy=adapters and how != "model"),)


def reward_model(of: str) -> tuple[StepModel, ...]:
    """The model that scores answers, where one does.

    Args:
        of: as of :class:`StepModel`, or :data:`RULE`.
    """
    return () if of == RULE else (StepModel(REWARD, of, scores=True),)


def scoring_phases(reward: str, old: bool, reference: str) -> tuple[PhaseOfStep, ...]:
    """Forwards that score the answers of a step before the first update.

    Args:
        reward: as of :func:`reward_model`.
        old: whether the policy's log-probabilities of its own answers are worked out.
        reference: as of :func:`reference_model`.
    """
    phases = (
        ("rewards", REWARD, reward != RULE), ("old policy", POLICY, old), ("reference", REFERENCE, reference != "none"),
    )  # fmt: skip
    return tuple(PhaseOfStep(name, model) for name, model, runs in phases if runs)
