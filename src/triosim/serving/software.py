"""How far a server lies from what the name of its engine tells: its version and settings, its host, and who measured.

An engine's file says how it schedules and what its kernels fuse, but not what a source ran: the release, options that
nobody wrote down, the processor, the client.  Sources that nobody had looked at before they were predicted tell how
much that is, of all steps alike (throughput and the time of a token in closed loops and queues) and of what a server
takes around its engine.  Less is left of engines of which several sources agree.
``data/software.json`` has both: ``validation/fit/served_software.py``.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from triosim.serving.fitted import document

SCHEMA = "triosim/served-software/1"


class SoftwareSpread(NamedTuple):
    """Within what nine of ten sources lie.

    Attributes:
        steps: natural logarithm of a factor, either way, of the time of a step.
        front: seconds that a server takes before and behind its engine, beyond what is taken of it.
    """

    steps: float
    front: float


@cache
def _known() -> dict[str, SoftwareSpread]:
    """By engine; ``""``: of those that no source ran."""
    found = document("software", SCHEMA)
    return {name: SoftwareSpread(row["steps"], row["front"]) for name, row in found["engines"].items()}


def between_sources(engine: str) -> SoftwareSpread:
    """Of an engine, by name or file."""
    return _known().get(engine, _known()[""])
