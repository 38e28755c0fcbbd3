"""Optuna's tree-structured Parzen estimator, for several costs too (Ozaki et al., GECCO 2020)."""

from __future__ import annotations

from triosim.core.registry import registered
from triosim.explore.searchers._optuna import OptunaPoints


@registered
class Tpe(OptunaPoints):
    """Samples where good points were dense and others were not."""

    sampler = "TPESampler"
