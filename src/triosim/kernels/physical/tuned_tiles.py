"""For which experts a serving engine has tiles that were looked for on the device.

vLLM and SGLang choose the tiles of Triton's grouped products by a table for each number of experts on a device, length
inside them, element type and device; where there is none, by a rule of thumb.  Which tables there are is a fact of
their repositories: ``data/tuned_tiles.json``, which does not have all of them.  Shapes that it lacks are priced by the
rule of thumb, up to twice as slow.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCHEMA = "triosim/tuned-tiles/1"
SEEN = "read off measurements of SGLang 0.5.10"
"""Shapes that are measured 1.4 to 2 times as fast as their neighbours, and whose table was not found by its name."""


@lru_cache(maxsize=1)
def tables() -> dict[str, Any]:
    """By engine and by the catalog's device: lengths inside experts for so many of them."""
    source = Path(__file__).parents[1] / "data" / "tuned_tiles.json"
    found: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
    if found["schema"] != SCHEMA:
        raise RuntimeError(f"{source.name} has schema {found['schema']!r}, expected {SCHEMA!r}")
    return found


def tuned(stack: str, device: str, local: NDArray[np.float64], inner: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether there is a table, for each call of 16-bit weights.

    Args:
        stack: ``"vllm"`` or ``"sglang"``; others have none.
        device: its name in the catalog.
        local: experts on the device.
        inner: length inside an expert, after division.
    """
    found = np.zeros(len(local), bool)
    for section in (stack, SEEN) if stack == "sglang" else (stack,):
        for experts, lengths in tables().get(section, {}).get(device, {}).items():
            found |= (local == int(experts)) & np.isin(inner, lengths)
    return found
