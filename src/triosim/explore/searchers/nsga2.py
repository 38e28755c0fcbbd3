"""Optuna's NSGA-II (Deb et al., IEEE Trans. Evolutionary Computation 2002)."""

from __future__ import annotations

from triosim.core.registry import registered
from triosim.explore.searchers._optuna import OptunaPoints


@registered
class Nsga2(OptunaPoints):
    """Generations sorted by dominance and crowding."""

    sampler = "NSGAIISampler"
