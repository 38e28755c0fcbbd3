"""JSON of plain values: what it cannot write becomes null."""

from __future__ import annotations

import json
import math
from typing import Any


def finite(value: Any) -> Any:
    """Plain values in which what JSON cannot write (``inf``, NaN) is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return value


def json_text(value: Any) -> str:
    """The text of a file."""
    return json.dumps(finite(value), indent=1) + "\n"
