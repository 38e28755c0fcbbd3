"""Communicator groups: which ranks take part in a collective.

ASTRA-sim takes them from a JSON file, ``{"1": [0, 1, 2, 3]}``, or from what PyTorch wrote into the trace.  The group
``"0"`` or ``""`` is all ranks.
"""

from __future__ import annotations

from pathlib import Path

from triosim.core.errors import InputError
from triosim.interop.astra.tables import table

EVERYBODY = ("", "0")
"""Names of the group of all ranks."""


def read(path: str | Path, ranks: int) -> dict[str, tuple[int, ...]]:
    """The groups of a communicator-group file, ranks in the order given.

    Raises:
        InputError: the file cannot be read, or a group names a rank twice or one that does not exist.
    """
    path = Path(path)
    found = table(path, 'communicator-group file: it must look like {"1": [0, 1, 2, 3]}')
    return {str(name): checked(members, f"{path}: group {name}", ranks) for name, members in found.items()}


def checked(members: object, where: str, ranks: int) -> tuple[int, ...]:
    """The members of a group if they make sense; an empty list is all ranks.

    Raises:
        InputError: a member is named twice, does not exist or is no number.
    """
    if not isinstance(members, list | tuple) or not all(type(rank) is int for rank in members):
        raise InputError(f"{where} must be a list of ranks")
    wrong = [rank for rank in members if not 0 <= rank < ranks]
    if wrong:
        raise InputError(f"{where} names rank {wrong[0]}, but ranks are 0 to {ranks - 1}")
    if len(set(members)) < len(members):
        raise InputError(f"{where} names a rank twice")
    return tuple(members) or tuple(range(ranks))
