"""Constants of serving that scripts fitted: the JSON documents in ``serving/data``."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any


def document(name: str, schema: str) -> dict[str, Any]:
    """The file ``data/NAME.json``.

    Raises:
        RuntimeError: it has another schema.
    """
    source = resources.files("triosim.serving") / "data" / f"{name}.json"
    found: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
    if found["schema"] != schema:
        raise RuntimeError(f"{name}.json has schema {found['schema']!r}, expected {schema!r}")
    return found
