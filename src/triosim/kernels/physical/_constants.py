"""What all physical models share: the files of their constants, and the memory bandwidth that each needs."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from triosim.core.errors import InputError
from triosim.hardware.accelerator import Accelerator

SCHEMA = "triosim/physical-constants/1"

T = TypeVar("T")


def document(kind: str) -> dict[str, Any]:
    """The file ``data/physical/KIND.json``.

    Raises:
        RuntimeError: it has another schema.
    """
    source = Path(__file__).parents[1] / "data" / "physical" / f"{kind}.json"
    found: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
    if found["schema"] != SCHEMA:
        raise RuntimeError(f"{kind}.json has schema {found['schema']!r}, expected {SCHEMA!r}")
    return found


def constants(kind: str, cls: type[T]) -> dict[str, T]:
    """Objects of the dataclass ``cls``, whose fields are all numbers, by class of kernel."""
    assert is_dataclass(cls)
    names = [field.name for field in fields(cls)]
    rows = document(kind)["constants"].items()
    return {key: cls(**{name: float(row[name]["value"]) for name in names}) for key, row in rows}


def spreads(kind: str) -> dict[str, tuple[float, float]]:
    """Half-widths of the 90 % interval by class: on devices whose families were fitted, and on others."""
    return {key: (float(row["seen"]), float(row["unseen"])) for key, row in document(kind)["spread"].items()}


def bandwidth(device: Accelerator) -> float:
    """Memory bandwidth in bytes per second.

    Raises:
        InputError: it is not known.
    """
    if device.memory_bandwidth is None:
        raise InputError(
            f"device {device.name or '(unnamed)'!r} has no memory bandwidth: name a device of the catalog (triosim "
            "devices) or add it to the device's file"
        )
    return device.memory_bandwidth
