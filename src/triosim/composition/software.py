"""Uncertainty of the software that runs a step: releases, which stack where none is named, and what is left untold.

Frameworks change what they launch, fuse and overlap from release to release, those around mixtures of experts most of
all: the same cell of NVIDIA's archive took 8.9, 8.5 and 6.4 s in three releases within half a year.  A recording ran on
one software, and has no such uncertainty; a step by name is some release of its stack, and without ``--stack`` any of
several.  What a stack's file does not say (options of a job, clocks and cooling of a machine, drivers, what a script
does between steps) makes published steps of one source differ from predictions all alike: how much is read off sources
that nobody had looked at, and less of stacks of which several sources agree.  What is untold mostly takes time, so that
the middle of the interval lies above the prediction.  ``software.json`` has all as half-widths of 90 % intervals, and
that shift: ``validation/fit/software.py`` finds them.
"""

from __future__ import annotations

import functools
import json
import math
import re
from pathlib import Path
from typing import Any

from triosim.operators import kind
from triosim.trace.tables import Trace

SCHEMA = "triosim/software/3"
_RELEASE = re.compile(r"-(\d{4}|compile)$")


@functools.cache
def _document() -> dict[str, dict[str, dict[str, Any]]]:
    """What the file holds.

    Raises:
        RuntimeError: it has another schema.
    """
    found: dict[str, Any] = json.loads((Path(__file__).parent / "software.json").read_text(encoding="utf-8"))
    if found["schema"] != SCHEMA:
        raise RuntimeError(f"software.json has schema {found['schema']!r}, expected {SCHEMA!r}")
    return found


def spreads() -> dict[str, float]:
    """Natural logarithms of the factors: ``dense``, ``experts`` (releases), ``unnamed`` (which stack) and ``unseen``
    (between sources of a stack that no source was compared with)."""
    return {name: float(row["spread"]) for name, row in _document()["spreads"].items()}


def shift() -> float:
    """How far the middle of what sources take lies above what is predicted of them, a natural logarithm."""
    return float(_document()["spreads"]["unseen"]["shift"])


def family(stack: str) -> str:
    """The stack that another is a release of, or that compiled.

    Example:
        >>> family("nemo-2024"), family("torchtitan-compile"), family("megatron-core")
        ('nemo', 'torchtitan', 'megatron-core')
    """
    return _RELEASE.sub("", stack)


def between_sources(stack: str) -> float:
    """How far sources that run a stack lie from what its file says, a natural logarithm; ``""`` for any stack."""
    known = _document()["stacks"].get(family(stack))
    return spreads()["unseen"] if known is None else float(known["spread"])


def spread(trace: Trace, stack: str) -> float:
    """Half-width of the 90 % interval of a training step by name, a natural logarithm.

    Args:
        trace: its operators.
        stack: which software runs it, ``""`` where nobody said.
    """
    known = spreads()
    experts = any(kind(name) == "experts" for name in set(trace.operators.name))
    which = 0.0 if stack else known["unnamed"]
    return math.hypot(known["experts" if experts else "dense"], which, between_sources(stack))


def nameable(trace: Trace) -> float:
    """Part of the variance of a step of unknown software that naming it takes away at most.

    Args:
        trace: its operators.
    """
    whole, known = spread(trace, ""), _document()["stacks"]
    least = min((spread(trace, stack) for stack in known), default=whole)
    return max(1 - (least / whole) ** 2, 0.0)
