"""Optuna's samplers as searchers (Akiba et al., KDD 2019); the extra ``search`` installs it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from triosim.core.errors import InputError
from triosim.explore.exploration import AskTell, Trial
from triosim.explore.space import ChoiceSpace, Point


def _seed(seed: int) -> int:
    """A seed as Optuna takes it, of 32 bits: itself, or what a larger one is mixed to."""
    return seed if seed < 2**32 else int(np.random.SeedSequence(seed).generate_state(1)[0])


class OptunaPoints(AskTell):
    """A study of Optuna that is asked and told."""

    sampler: str

    def __init__(self, space: ChoiceSpace, objectives: int, seed: int) -> None:
        super().__init__(space, objectives, seed)
        try:
            import optuna
        except ImportError:
            raise InputError(
                "this searcher needs Optuna, which is not installed: pip install 'triosim[search]', or take genetic"
            ) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.failed = optuna.trial.TrialState.FAIL
        self.distributions: dict[str, Any] = {
            choice.name: optuna.distributions.IntDistribution(0, len(choice.values) - 1)
            if choice.ordered
            else optuna.distributions.CategoricalDistribution(tuple(range(len(choice.values))))
            for choice in space.choices
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sampler = getattr(optuna.samplers, self.sampler)(seed=_seed(seed))
            self.study = optuna.create_study(directions=["minimize"] * objectives, sampler=sampler)
        self.last: Any = None

    def ask(self) -> Point:
        """What the sampler suggests."""
        self.last = self.study.ask(self.distributions)
        return tuple(int(self.last.params[choice.name]) for choice in self.space.choices)

    def tell(self, trial: Trial) -> None:
        """A point that cannot be run has failed."""
        if trial.costs is None:
            self.study.tell(self.last, state=self.failed)
        else:
            self.study.tell(self.last, list(trial.costs))
