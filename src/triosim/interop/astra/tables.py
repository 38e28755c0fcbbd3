"""JSON files that hold one object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from triosim.errors import InputError

LARGEST = 1e300
"""Numbers beyond are slips."""


def table(path: Path, what: str) -> dict[str, Any]:
    """The object that a file holds.

    Args:
        path: the file.
        what: it is, and how it must look, for the message: ``"system file: it must be a JSON object"``.

    Raises:
        InputError: the file cannot be read or holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not text'}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} is no {what}")
    return found


def real(path: Path, key: str, value: Any) -> float:
    """A number that is not negative.

    Raises:
        InputError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < LARGEST:
        raise InputError(f"{path}: {key} must be a number that is not negative, got {value!r}")
    return float(value)
