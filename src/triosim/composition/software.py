"""Uncertainty of the software that runs a step: a stack's name does not say its release, and often no stack is named.

Frameworks change what they launch, fuse and overlap from release to release, those around mixtures of experts most of
all: the same cell of NVIDIA's archive took 8.9, 8.5 and 6.4 s in three releases within half a year.  A recording ran on
one software, and has no such uncertainty; a step by name is some release of its stack, and without ``--stack`` any of
several.  ``software.json`` has both as half-widths of 90 % intervals: ``validation/fit/software.py`` finds them.
"""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path

from triosim.operators import kind
from triosim.trace.tables import Trace

SCHEMA = "triosim/software/1"


@functools.cache
def spreads() -> dict[str, float]:
    """Natural logarithms of the factors: ``dense``, ``experts`` (releases) and ``unnamed`` (which stack).

    Raises:
        RuntimeError: the file has another schema.
    """
    found = json.loads((Path(__file__).parent / "software.json").read_text(encoding="utf-8"))
    if found["schema"] != SCHEMA:
        raise RuntimeError(f"software.json has schema {found['schema']!r}, expected {SCHEMA!r}")
    return {name: float(row["spread"]) for name, row in found["spreads"].items()}


def spread(trace: Trace, stack_named: bool) -> float:
    """Half-width of the 90 % interval of a training step by name, a natural logarithm.

    Args:
        trace: its operators.
        stack_named: whether somebody said which software runs it.
    """
    known = spreads()
    experts = any(kind(name) == "experts" for name in set(trace.operators.name))
    return math.hypot(known["experts" if experts else "dense"], 0.0 if stack_named else known["unnamed"])
