"""JSON files that hold one object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from triosim.core import guarded
from triosim.core.errors import InputError, quoted

LARGEST = 1e300
SMALLEST = 1e-12
"""Numbers beyond are slips, 0 apart."""


def table(path: Path, what: str) -> dict[str, Any]:
    """The object that a file holds.

    Args:
        path: the file.
        what: it is, and how it must look, for the message: ``"system file: it must be a JSON object"``.

    Raises:
        InputError: the file cannot be read or holds something else.
    """
    return guarded.document(path, f"a {what}", form=".json")


def real(path: Path, key: str, value: Any) -> float:
    """A number that is not negative.

    Raises:
        InputError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < LARGEST:
        raise InputError(f"{path}: {key} must be a number that is not negative, got {quoted(value)}")
    if 0 < value < SMALLEST:
        raise InputError(f"{path}: {key} must be 0 or at least {SMALLEST}, got {value}")
    return float(value)
