"""For which experts a serving engine has tiles that were looked for on the device.

vLLM and SGLang choose the tiles of Triton's grouped products by a table for each number of experts on a device, length
inside them, element type and device; where there is none, by a rule of thumb.  Which tables there are is a fact of
their repositories: ``data/tuned_tiles.json``, which does not have all of them; some are told by measurements alone
(``measured`` there).  Shapes that it lacks are priced by the rule of thumb, up to twice as slow.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SCHEMA = "triosim/tuned-tiles/1"


Lengths = dict[str, dict[str, dict[str, list[int]]]]
"""By engine, by the catalog's device, by the number of experts on it: lengths inside them."""


@lru_cache(maxsize=1)
def tables() -> tuple[Lengths, Lengths]:
    """What there are tables of by their names, and what by measurements alone."""
    source = Path(__file__).parents[1] / "data" / "tuned_tiles.json"
    found = json.loads(source.read_text(encoding="utf-8"))
    if found["schema"] != SCHEMA:
        raise RuntimeError(f"{source.name} has schema {found['schema']!r}, expected {SCHEMA!r}")
    return found["tables"], found["measured"]


def tuned(stack: str, device: str, local: NDArray[np.float64], inner: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether there is a table, for each call of 16-bit weights.

    Args:
        stack: an engine; those that have no tables have none.
        device: its name in the catalog.
        local: experts on the device.
        inner: length inside an expert, after division.
    """
    found = np.zeros(len(local), bool)
    for known in tables():
        for experts, lengths in known.get(stack, {}).get(device, {}).items():
            found |= (local == int(experts)) & np.isin(inner, lengths)
    return found
