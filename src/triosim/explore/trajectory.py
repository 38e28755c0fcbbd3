"""Steps as JSON lines: what was tried, what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from triosim.explore.exploration import Exploration, Trial


def line(what: Exploration, trial: Trial, place: Mapping[str, Any]) -> str:
    """One step; ``place`` stands first."""
    costs = None if trial.costs is None else dict(zip(what.objectives, trial.costs, strict=True))
    found = {**place, "values": what.space.values(trial.point), "costs": costs}
    return json.dumps({**found, "why": trial.why} if trial.why else found) + "\n"
